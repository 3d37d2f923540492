from pathlib import Path

from tests.pages import made_up

frame, schema_file = made_up.adult()
frame.to_csv("adult.csv", index=False)
Path("adult.toml").write_text(schema_file.read_text())
made_up.serve()
plan = made_up.plan_of(60_000)
