"""A checker of pipelines: which steps in front of a private estimator learn from the records without paying."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["PipelineFinding", "check_pipeline"]

_SCALE: Final = "PrivateStandardScaler, or nothing: dpilot's estimators scale inside their own budget"
_LEARNS: Final = {
    "StandardScaler": ("takes exact means and deviations from the records", _SCALE),
    "MinMaxScaler": ("takes exact extremes, each one record's value", _SCALE),
    "MaxAbsScaler": ("takes exact extremes, each one record's value", _SCALE),
    "RobustScaler": ("takes exact quantiles from the records", _SCALE),
    "QuantileTransformer": ("takes exact quantiles from the records", _SCALE),
    "PowerTransformer": ("fits exact powers to the records", _SCALE),
    "PCA": ("takes exact directions from the records", "a projection fixed beforehand (GaussianRandomProjection)"),
    "TruncatedSVD": ("takes exact directions from the records", "a projection fixed beforehand"),
    "KNNImputer": (
        "fills one record from others",
        'SimpleImputer(strategy="constant", keep_empty_features=True), or leave missing values',
    ),
    "IterativeImputer": (
        "fits exact models to the records",
        'SimpleImputer(strategy="constant", keep_empty_features=True)',
    ),
    "SelectKBest": ("chooses columns by exact scores", "columns chosen beforehand"),
    "SelectFromModel": ("chooses columns by an exact model", "columns chosen beforehand"),
    "VarianceThreshold": ("chooses columns by exact variances", "columns chosen beforehand"),
    "KBinsDiscretizer": ("takes exact edges from the records", "FunctionTransformer with declared edges"),
    "TargetEncoder": ("takes exact target means of each category", "OneHotEncoder with declared categories"),
    "LabelEncoder": ("publishes the labels that occur", "declared classes"),
    "CountVectorizer": ("publishes the words that occur", "HashingVectorizer"),
    "TfidfVectorizer": ("publishes words and their frequencies", "HashingVectorizer"),
}
_ROW_BY_ROW: Final = {
    "Normalizer", "Binarizer", "PolynomialFeatures", "FunctionTransformer", "HashingVectorizer", "FeatureHasher",
    "GaussianRandomProjection", "SparseRandomProjection", "PrivateStandardScaler",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PipelineFinding:
    """A step that is not private: where it is, what it does, and what to put in its place."""

    step: str
    kind: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.step} ({self.kind}) {self.problem}. Use {self.remedy}."


def check_pipeline(pipeline: Any) -> list[PipelineFinding]:
    """Every step in front of the last that learns from records without privacy; an empty list means none was found.

    Looks into pipelines, column transformers, unions and what transforms a target. Nothing is fitted and no data is
    needed.

    Edge cases:
        An unknown step that can be fitted is a finding: it may learn, and nothing says that it is paid for.
        A step that works row by row is none, nor is an encoder whose categories are declared and unknown ones ignored.
        A FunctionTransformer is believed to treat each row by itself. What scikit-learn makes of the types of a table
        is not looked at: its steps convert, or refuse, a column as a whole.

    Example:
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> from dpilot.linear import LinearRegression
        >>> [finding.kind for finding in check_pipeline(make_pipeline(StandardScaler(), LinearRegression()))]
        ['StandardScaler']
    """
    return [finding for name, step in _steps(pipeline) for finding in _findings(name, step)]


def _steps(estimator: Any) -> Iterator[tuple[str, Any]]:
    """What is fitted before the private estimator, which may be inside of others."""
    if steps := getattr(estimator, "steps", None):
        yield from ((name, step) for name, step in steps[:-1])
        yield from _steps(steps[-1][1])
    elif hasattr(estimator, "regressor") and hasattr(estimator, "transformer"):
        yield "transformer of the target", estimator.transformer
        yield from _steps(estimator.regressor)


def _findings(name: str, step: Any) -> Iterator[PipelineFinding]:
    kind = type(step).__name__
    if step is None or isinstance(step, str):  # "passthrough" and "drop"
        return
    inner = (
        getattr(step, "steps", None) or getattr(step, "transformers", None) or getattr(step, "transformer_list", None)
    )
    if inner:
        for part in [*inner, ("remainder", getattr(step, "remainder", None))]:
            yield from _findings(f"{name} / {part[0]}", part[1])
    elif kind in ("OneHotEncoder", "OrdinalEncoder"):
        yield from _encoder(name, step)
    elif kind == "SimpleImputer":
        yield from _imputer(name, step)
    elif kind in _LEARNS:
        yield PipelineFinding(name, kind, *_LEARNS[kind])
    elif kind not in _ROW_BY_ROW and hasattr(step, "fit"):
        yield PipelineFinding(
            name, kind, "is fitted to the records, and is not known to pay for it", "a step known to be private"
        )


def _imputer(name: str, step: Any) -> Iterator[PipelineFinding]:
    kind, remedy = type(step).__name__, 'strategy="constant" with keep_empty_features=True'
    if step.strategy != "constant":
        yield PipelineFinding(name, kind, f"takes the exact {step.strategy} of the records", remedy)
    elif not step.keep_empty_features:
        yield PipelineFinding(name, kind, "drops a column, and warns, where every record lacks a value", remedy)
    if step.add_indicator:
        problem = "adds a column where any record lacks a value"
        yield PipelineFinding(name, kind, problem, 'a schema, in which missing = "indicator"')


def _encoder(name: str, step: Any) -> Iterator[PipelineFinding]:
    kind = type(step).__name__
    if isinstance(step.categories, str):
        yield PipelineFinding(
            name, kind, "publishes the categories that occur", "categories=[...], declared for each column"
        )
    if (said := {"error": "raises on", "warn": "warns of"}.get(step.handle_unknown)) is not None:
        remedy = 'handle_unknown="ignore"' if kind == "OneHotEncoder" else 'handle_unknown="use_encoded_value"'
        yield PipelineFinding(name, kind, f"{said} a category that one record has, which is a release", remedy)
    if step.min_frequency is not None or step.max_categories is not None:
        problem = "joins categories that few records have, by exact counts"
        yield PipelineFinding(name, kind, problem, "neither min_frequency nor max_categories")
