from tests.pages import made_up

made_up.patients().to_csv("patients.csv", index=False)
made_up.patients(20).drop(columns="readmitted").to_csv("new_patients.csv", index=False)
