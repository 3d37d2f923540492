from tests.pages import made_up

made_up.patients().to_csv("patients.csv", index=False)
open("patients.toml", "w").write(made_up.PATIENTS_SCHEMA)
open("about.toml", "w").write('controller = "St. Mary"\npurpose = "planning of beds"\n')
console("dpilot ledger create patients.csv --total 2")
for month in ("march", "april"):
    console(f"dpilot fit patients.csv --schema patients.toml --epsilon 1 --out {month}")
