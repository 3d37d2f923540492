"""scikit-learn estimator for private logistic regression."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from dpilot._arrays import Floats
from dpilot.data.cells import Cells, plain
from dpilot.data.reading import codes as cell_codes
from dpilot.data.values import key
from dpilot.errors import InvalidInput
from dpilot.linear.bought_classes import buy_and_fit, is_bought
from dpilot.linear.declared_bounds import parse_bounds
from dpilot.linear.fitting import Fitted, fit_rows
from dpilot.linear.inputs import features, features_and_target, loose, unit_ids, without_unit
from dpilot.linear.logistic import LogisticSteps, probabilities
from dpilot.linear.model import inside
from dpilot.linear.parameters import PrivateEstimator
from dpilot.numerics.products import products

__all__ = ["LogisticRegression", "codes", "resolve_classes"]

_CLASSES = 'the classes that were found (classes="public")'


def codes(labels: Cells, classes: NDArray[Any]) -> Floats:
    """The place of each label among the classes; nan, the null record, for a label that is not one of them.

    Labels are compared by value (``data.values.key``), so that none changes what the others are.

    >>> codes(np.array(["b", "z", "a"]), np.array(["a", "b"])).tolist()
    [1.0, nan, 0.0]
    >>> codes(np.append([0, 1], "z"), np.array([0, 1])).tolist()
    [0.0, 1.0, nan]
    """
    found = cell_codes(plain(labels), classes.tolist(), ())
    return np.where(found >= 0, found.astype(np.float64), np.nan)


def resolve_classes(classes: Any, labels: Cells) -> tuple[NDArray[Any], tuple[str, ...]]:
    """The classes in order, and what is unprotected by them: those declared, or ("public") those that were found."""
    if isinstance(classes, str) and classes == "public":
        return _collect_labels(labels), (_CLASSES,)
    if classes is None or isinstance(classes, str) or len(classes) == 0:
        raise InvalidInput(
            f'classes is {classes!r}: expected the list of labels, "buy" to pay for those of many records, or '
            '"public" to publish those in the data. '
            "Which labels occur is about the records, so they are declared."
        )
    known = np.unique(np.asarray(list(classes)))
    _check_apart(known.tolist())
    return known, ()


def _check_apart(classes: list[Any]) -> None:
    seen: dict[str, Any] = {}
    for each in classes:
        compared = key(each)
        if compared is None or compared in seen:
            other = "a value that cannot be compared" if compared is None else f"the same as {seen[compared]!r}"
            raise InvalidInput(
                f"classes has {each!r}, {other}: expected texts, and numbers below 2^53, that differ as values "
                '(1, 1.0, "1" and True are one).'
            )
        seen[compared] = each


@dataclass(eq=False, repr=False, kw_only=True)
class LogisticRegression(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """Differentially private logistic regression that asks for no bounds, for two classes or more.

    ``classes`` are declared (a list), bought ("buy": those of many records, within the budget), or taken from the data
    and published ("public"); leaving them out is an error, because which labels occur is itself about the records.

    Guarantee:
        As ``LinearRegression``: (epsilon, delta)-DP in all, every entry in ``privacy_``, the ledger charged first, the
        same default of delta, and the same meaning of ``unit``.

    Edge cases:
        A record whose label is none of the classes, or with a value that is no finite number, is the null record.
        One class alone is predicted always.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(20_000, 2)); y = np.where(X[:, 0] + rng.logistic(size=20_000) > 0, "yes", "no")
        >>> model = LogisticRegression(classes=["no", "yes"]).fit(X, y)
        >>> 0.6 < model.score(X, y) < 0.8, model.predict([[9.0, 0.0], [-9.0, 0.0]]).tolist()
        (True, ['yes', 'no'])
    """

    classes: Any = None
    bounds: Any = None
    fit_intercept: bool = True

    def fit(self, X: Any, y: Any, *, units: Any = None) -> Self:
        """Fit on the records (X, y), charging the ledger first; ``units`` as in ``LinearRegression.fit``."""
        unit = self._unit(units=units)
        X, ids = unit_ids(X, unit, units)
        values, labels = features_and_target(self, X, y, self.bounds)
        if is_bought(self.classes, ids):
            return cast(Self, buy_and_fit(self, X, y, labels))
        classes, unprotected = resolve_classes(self.classes, labels)
        rows, length = self._rows(np.column_stack([values, codes(labels, classes)]), ids, unit)
        count = values.shape[1]
        problem, others = self._problem(count, length, intercept=self.fit_intercept)
        fitted = fit_rows(
            rows,
            problem,
            parse_bounds(self.bounds, count, target=False),
            LogisticSteps(len(classes)),
            ledger=self.ledger,
            random_state=self.random_state,
            unprotected=(*unprotected, *others),
            numeric_target=False,
            unit=unit,
        )
        self.classes_ = classes
        self._keep(fitted)
        return self

    def decision_function(self, X: Any) -> Floats:
        """Scores: of the second class where there are two, else one a class."""
        check_is_fitted(self)
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba(self, X: Any) -> Floats:
        """The probability of each class."""
        check_is_fitted(self)
        found = probabilities(self._scores(X))
        return np.ones((found.shape[0], 1)) if self.classes_.size == 1 else found

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest class of each row."""
        check_is_fitted(self)
        return np.asarray(self.classes_[np.argmax(self.predict_proba(X), axis=1)])

    def _scores(self, X: Any) -> Floats:
        values = inside(features(self, without_unit(X, self.privacy_.unit)), self.center_, self.lower_, self.upper_)
        return np.asarray(products(values, self.coef_.T) + self.intercept_)

    def _keep(self, fitted: Fitted) -> None:
        """Store what was released, in the units of the data; rows of ``coef_`` as scikit-learn has them."""
        scaling, theta = fitted.scaling, fitted.solution.theta
        count = scaling.center.size - 1
        self.coef_ = theta[:count].T / scaling.scale[:-1]
        constant = theta[-1] if self.fit_intercept else np.zeros(theta.shape[1])
        self.intercept_ = constant - self.coef_ @ scaling.center[:-1] if self.fit_intercept else constant
        self.center_, self.scale_ = scaling.center[:-1], scaling.scale[:-1]
        self.lower_, self.upper_ = scaling.lower[:-1], scaling.upper[:-1]
        self.privacy_ = fitted.privacy

    def __sklearn_tags__(self) -> Any:
        tags = loose(super().__sklearn_tags__())
        tags.classifier_tags.poor_score = True
        return tags


def _collect_labels(labels: Cells) -> NDArray[Any]:
    """The labels that occur, one of those that are equal as values: numbers first, then words."""
    if labels.dtype.kind in "fiub":
        found = labels[np.isfinite(labels)] if labels.dtype.kind == "f" else labels
    else:
        values = [label.real if isinstance(label, complex) else label for label in labels.tolist() if _is_label(label)]
        words = sorted({label for label in values if isinstance(label, str)})
        apart = {key(label): label for label in reversed([*sorted(_numeric(values)), *words])}
        found = np.array(list(reversed(apart.values())), dtype=object if words else None)
    if found.dtype != object:
        check_classification_targets(found)
    if not found.size:
        raise InvalidInput('classes is "public", and no record has a label: expected at least one. Declare them.')
    return found if found.dtype == object else np.unique(found)


def _numeric(labels: list[Any]) -> set[Any]:
    return {label for label in labels if not isinstance(label, str)}


def _is_label(label: Any) -> bool:
    """Whether it is a word, or a finite number that floats tell from others."""
    known = isinstance(label, Real | np.bool_ | str | complex)
    return known and key(label) not in (None, "nan", "inf", "-inf")
