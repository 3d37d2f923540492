import numpy as np
from tests.pages import made_up
from dpilot import AutoClassifier, Schema

visits = made_up.visits()
visits.to_csv("visits.csv", index=False)
visits.drop(columns="readmitted").head(20).to_csv("new_visits.csv", index=False)
open("visits.toml", "w").write(made_up.PATIENTS_SCHEMA)
console("dpilot ledger create visits.csv --total 9 --unit patient_id")

# %% before "clf.fit("
schema = Schema.from_toml("visits.toml")
X, y, ids = visits[["age", "stay_days"]].to_numpy(), visits["readmitted"], visits["patient_id"]

# %% before "dpilot schema init visits.csv"
import os
os.remove("visits.toml")

# %% before "dpilot schema check visits.toml"
open("visits.toml", "w").write(made_up.VISITS_SCHEMA)
