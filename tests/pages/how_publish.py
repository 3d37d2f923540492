from tests.pages import made_up

made_up.patients().to_csv("patients.csv", index=False)
open("patients.toml", "w").write(made_up.PATIENTS_SCHEMA)
console("dpilot fit patients.csv --schema patients.toml --epsilon 1 --out run")
