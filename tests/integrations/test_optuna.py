"""Optuna over private estimators: which trials are paid, and which are shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

optuna = pytest.importorskip("optuna")

from dpilot import Ledger  # noqa: E402
from dpilot.errors import InvalidInput  # noqa: E402
from dpilot.integrations.optuna import search  # noqa: E402
from dpilot.linear import LogisticRegression  # noqa: E402
from dpilot.privacy import Budget  # noqa: E402

X = np.random.default_rng(0).normal(size=(3000, 3))
Y = (X[:, 0] > 0).astype(int)
HOW: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-5, "trials": 4}
pytestmark = pytest.mark.filterwarnings("ignore")


def suggest(trial: Any) -> Any:
    return LogisticRegression(classes=[0, 1], fit_intercept=trial.suggest_categorical("intercept", [True, False]))


def test_in_selection_only_the_selected_trial_is_shown(tmp_path: Any, capfd: Any) -> None:
    path = tmp_path / "a.ledger"
    Ledger.open(path, dataset="d", budget=Budget(3.0, 1e-4))
    asked: list[Any] = []

    def noted(trial: Any) -> Any:
        asked.append(trial)
        return suggest(trial)

    found = search(noted, X, Y, ledger=path, **HOW)
    (shown,) = found.study.trials
    assert shown.params == found.study.best_params
    assert shown.value == found.study.best_value
    assert found.best_estimator.fit_intercept == shown.params["intercept"]
    assert found.privacy.spent.epsilon <= 2.0
    assert [entry.part for entry in Ledger.read(path).entries()] == ["train", "held-out"]
    assert not any("Trial" in text or "study" in text for text in capfd.readouterr())
    assert all(not trial.study.trials[0].state.is_finished() for trial in asked)  # none is told of a score


@pytest.mark.slow
def test_composed_trials_are_all_shown_and_samplers_learn_from_them() -> None:
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=1))
    study.set_user_attr("pruner", "none")
    study.pruner = optuna.pruners.NopPruner()
    found = search(suggest, X, Y, study=study, mode="composed", random_state=1, **HOW)
    assert found.study is study
    assert len(study.trials) == 4
    assert all(each.value is not None for each in study.trials)
    assert found.best_estimator.score(X, Y) > 0.9


def test_what_breaks_the_promise_is_refused() -> None:
    plain = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler())
    with pytest.raises(InvalidInput, match="prunes"):
        search(suggest, X, Y, study=plain, **HOW)
    learns = optuna.create_study(direction="maximize", pruner=optuna.pruners.NopPruner())
    with pytest.raises(InvalidInput, match="learns from scores"):
        search(suggest, X, Y, study=learns, **HOW)
    low = optuna.create_study(pruner=optuna.pruners.NopPruner(), sampler=optuna.samplers.RandomSampler())
    with pytest.raises(InvalidInput, match="minimizes"):
        search(suggest, X, Y, study=low, **HOW)
    fitted = LogisticRegression(classes=[0, 1]).fit(X, Y)
    with pytest.raises(InvalidInput, match="was fitted"):
        search(lambda trial: fitted, X, Y, **HOW)
