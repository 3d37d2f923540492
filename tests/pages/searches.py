from tests.pages import made_up

people = made_up.patients(5_000)
X, y = people[["age", "stay_days"]], people["readmitted"]
