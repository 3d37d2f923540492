"""What a fit trains: each learner plans its cost from declared numbers, runs under receipts, and predicts.

Promises: a plan depends on declared and bought numbers alone, and no learner releases without a receipt. May import:
what a fit is made of (declaration, purchases, source, figures), grids, and what is below fit; not ``pipeline``.
"""

from __future__ import annotations

from typing import Final, cast

from dpilot._plugins import LEARNERS, load_plugin
from dpilot.data.column_types import type_of
from dpilot.fit.declaration import MODELS, Declaration
from dpilot.fit.expansion import MOST_NUMBERS
from dpilot.fit.learners.base import Learner
from dpilot.fit.learners.finetune import FineTune
from dpilot.fit.learners.grids import Grids
from dpilot.fit.learners.heads import Heads
from dpilot.fit.learners.least_squares import LeastSquares
from dpilot.fit.learners.networks import Network
from dpilot.privacy.gaussian import gdp_mu

__all__ = ["Learner", "learner"]


_FEWEST: Final = 300.0
"""Records times mu from which on private quantiles and grids are worth their noise (benchmarks/tables)."""
_FEWEST_OF_NUMBERS: Final = 3_000.0
"""The same where the target is a number: least squares needs few."""
_MOST_CLASSES: Final = 40


def learner(declared: Declaration) -> Learner:
    """The learner of a fit, from what is declared alone.

    "auto" is grids where records and budget allow, else the autopilot's linear head for classes and self-tuned least
    squares for numbers; "additive" is that head; "logistic" and "linear" are one layer and "mlp" two, trained by
    private stochastic gradient descent; "finetune" adapts a sentence encoder. Another name is that of an installed
    package's entry point in "dpilot.learners": what it gives without arguments is the learner.
    """
    model = declared.options.model
    if model not in MODELS:
        return cast(Learner, load_plugin(LEARNERS, model)())
    numeric = declared.task.numeric
    if model == "finetune":
        return FineTune()
    if model == "grids" or (model == "auto" and _suits_grids(declared)):
        return Grids()
    if model in ("auto", "additive"):
        return LeastSquares() if numeric else Heads(marginals=_pays(declared) and _has_numbers(declared))
    return Network("mlp" if model == "mlp" else "linear")


def _pays(declared: Declaration) -> bool:
    """Whether there are enough records for the budget; where their number is bought nobody knows it beforehand."""
    fewest = _FEWEST_OF_NUMBERS if declared.task.numeric else _FEWEST
    return declared.size is not None and declared.size * gdp_mu(declared.budget) >= fewest


def _has_numbers(declared: Declaration) -> bool:
    """Whether there are numbers that are widened; beside hashed texts, whose rows are sparse, none is read for it."""
    features = declared.schema.features
    numbers = sum(column.type == "numeric" for column in features)
    return 1 <= numbers <= MOST_NUMBERS and not any(each.type == "text" and not each.encoder for each in features)


def _suits_grids(declared: Declaration) -> bool:
    """Whether grids were measured to be better than the autopilot's other models on such tables.

    Not where trials have an objective of their own, or few passes or another device are asked for; nor beside texts and
    vectors, of which nothing was measured.
    """
    task, options, features = declared.task, declared.options, declared.schema.features
    asked = options.objective != "accuracy" or options.epochs is not None or options.device not in (None, "cpu")
    plain = not any(type_of(column).is_unit for column in features)
    return (
        _pays(declared) and not asked and plain and len(features) > 1
        and (not task.numeric or task.interval is not None) and task.outputs <= _MOST_CLASSES
    )  # fmt: skip
