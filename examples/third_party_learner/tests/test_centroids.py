"""A fit by the name of this package's learner, and one record more: run with `python -m pytest`, it being installed."""

import numpy as np
import pandas as pd

from dpilot import Schema, audit, load
from dpilot.audit.verify import verify
from dpilot.fit.table import fit_table

COLUMNS = {
    "a": {"type": "numeric", "bounds": [-3, 3], "missing": "null"},
    "b": {"type": "numeric", "bounds": [-3, 3]},
    "y": {"type": "categorical", "categories": ["no", "yes"], "role": "target"},
}
SCHEMA = Schema.from_dict({"columns": COLUMNS})


def frame(size: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    values = rng.uniform(-3, 3, (size, 2))
    return pd.DataFrame(values, columns=["a", "b"]).assign(y=np.where(values.sum(1) > 0, "yes", "no"))


def test_a_fit_learns_is_saved_and_read_again(tmp_path):
    data = frame(2_000)
    fitted = fit_table(data, SCHEMA, epsilon=1.0, delta=1e-5, model="centroids")
    assert fitted.epsilon <= 1.0
    assert (fitted.predict(data) == data["y"]).mean() > 0.85
    folder = fitted.save(tmp_path / "run")
    assert (load(folder).predict(data) == fitted.predict(data)).all()
    assert verify(folder).held


def test_a_record_more_moves_only_what_is_released_and_that_by_its_bound():
    data, odd = frame(100), {"a": 3.0, "b": -3.0, "y": "yes"}

    def run(rows):
        fitted = fit_table(rows, SCHEMA, epsilon=2.0, delta=1e-5, size=100, model="centroids")
        return fitted.predictor.state(), fitted.record.metrics, fitted.record.decisions

    for row in (odd, {**odd, "a": np.nan}, {**odd, "b": 1e300}, {**odd, "y": "maybe"}):
        found = audit.replay(run, data, pd.concat([data, pd.DataFrame([row])], ignore_index=True))
        assert found.differences == ()
        assert found.largest <= 1 + 1e-6
