from tests.pages import made_up

people, _ = made_up.adult(20)
people.drop(columns="income").to_csv("people.csv", index=False)
console("dpilot key create hospital")
import os

os.environ["DPILOT_KEY"] = "hospital"
