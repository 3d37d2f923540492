from pathlib import Path

from tests.pages import made_up

frame, schema_file = made_up.adult()
frame.to_parquet("adult.parquet")
Path("adult.toml").write_text(schema_file.read_text())
model, _, dataset = made_up.network()
