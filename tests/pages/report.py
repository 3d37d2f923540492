from pathlib import Path

from tests.pages import made_up

made_up.patients().to_csv("patients.csv", index=False)
Path("patients.toml").write_text(made_up.PATIENTS_SCHEMA)
Path("about.toml").write_text('controller = "St. Mary"\npurpose = "planning of beds"\n')
console("dpilot ledger create patients.csv --total 2")
for month in ("march", "april"):
    console(f"dpilot fit patients.csv --schema patients.toml --epsilon 1 --out {month}")
