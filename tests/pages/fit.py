import pandas as pd
from tests.pages import made_up

frame, schema_file = made_up.adult()
frame.to_csv("adult.csv", index=False)
frame.to_parquet("adult.parquet")
frame.drop(columns="income").head(20).to_csv("new.csv", index=False)
made_up.pictures("pictures", 200)
bank = made_up.patients()
bank.rename(columns={"readmitted": "deposit"}).to_csv("bank.csv", index=False)
open("bank.toml", "w").write(made_up.PATIENTS_SCHEMA.replace("readmitted", "deposit"))
console("dpilot ledger create adult.parquet --total 9")
console("dpilot ledger create bank.csv --total 9")

# %% before "dpilot schema check adult.toml"
open("adult.toml", "w").write(schema_file.read_text())
