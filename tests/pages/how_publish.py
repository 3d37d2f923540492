from pathlib import Path

from tests.pages import made_up

made_up.patients().to_csv("patients.csv", index=False)
Path("patients.toml").write_text(made_up.PATIENTS_SCHEMA)
console("dpilot fit patients.csv --schema patients.toml --epsilon 1 --out run")
