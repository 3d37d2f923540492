from pathlib import Path

from tests.pages import made_up

frame, schema_file = made_up.adult()
frame.to_csv("adult.csv", index=False)
frame.to_parquet("adult.parquet")
frame.drop(columns="income").head(20).to_csv("new.csv", index=False)
made_up.pictures("pictures", 200)
bank = made_up.patients()
bank.rename(columns={"readmitted": "deposit"}).to_csv("bank.csv", index=False)
Path("bank.toml").write_text(made_up.PATIENTS_SCHEMA.replace("readmitted", "deposit"))
console("dpilot ledger create adult.parquet --total 9")
console("dpilot ledger create bank.csv --total 9")

# %% before "dpilot schema check adult.toml"
Path("adult.toml").write_text(schema_file.read_text())

# %% before "dpilot fit --resume"
from unittest.mock import patch

from dpilot.cli.main import main

stopped = "fit bank.csv --schema bank.toml --epsilon 1 --model additive --out runs/stopped"
with patch("dpilot.fit.pipeline.softmax", side_effect=KeyboardInterrupt):  # before the figures
    assert main(stopped.split()) == 130
