"""What a fit trains: each learner plans its cost from declared numbers, runs under receipts, and predicts."""

from __future__ import annotations

from dpilot.fit.declaration import FitTask
from dpilot.fit.learners.base import Learner
from dpilot.fit.learners.finetune import FineTune
from dpilot.fit.learners.heads import Heads
from dpilot.fit.learners.least_squares import LeastSquares
from dpilot.fit.learners.networks import Network

__all__ = ["Learner", "learner"]


def learner(model: str, task: FitTask) -> Learner:
    """The learner called ``model``, for the kind of target that ``task`` has.

    "auto" is the autopilot's linear head for classes and self-tuned least squares for numbers; "logistic" and "linear"
    are one layer and "mlp" two, trained by private stochastic gradient descent; "finetune" adapts a sentence encoder.
    """
    if model == "finetune":
        return FineTune()
    if model == "auto":
        return LeastSquares() if task.numeric else Heads()
    return Network("mlp" if model == "mlp" else "linear")
