from pathlib import Path

from dpilot import Schema
from tests.pages import made_up

visits = made_up.visits(2_000)
visits.to_csv("visits.csv", index=False)
visits.drop(columns="readmitted").head(20).to_csv("new_visits.csv", index=False)
Path("visits.toml").write_text(made_up.PATIENTS_SCHEMA)
console("dpilot ledger create visits.csv --total 9 --unit patient_id")

# %% before "clf.fit("
schema = Schema.from_toml("visits.toml")
X, y, ids = visits[["age", "stay_days", "smoker"]], visits["readmitted"], visits["patient_id"]

# %% before "dpilot schema init visits.csv"
import os

os.remove("visits.toml")

# %% before "dpilot schema check visits.toml"
Path("visits.toml").write_text(made_up.VISITS_SCHEMA)
