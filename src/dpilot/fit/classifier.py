"""``AutoClassifier``: the autopilot as a scikit-learn estimator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from dpilot import _validate
from dpilot._arrays import Floats
from dpilot.data.cells import check_numeric
from dpilot.data.frames import Frame
from dpilot.errors import InvalidInput
from dpilot.fit.arrays import (
    Labels,
    array_frame,
    class_schema,
    column_names,
    is_images,
    join_target,
    name_classes,
    text_schema,
    unit_schema,
)  # fmt: skip
from dpilot.fit.class_weights import CAP
from dpilot.fit.estimators import AutoEstimator, PaidFigures, PrivateScore, check_schema, refuse_arguments
from dpilot.fit.figures import softmax
from dpilot.fit.source import category_codes
from dpilot.linear.bought_classes import buy_and_fit, is_bought
from dpilot.linear.classifier import codes, resolve_classes
from dpilot.linear.inputs import features, features_and_target, loose, target_cells, without_unit
from dpilot.metrics.counts import Layout, Scored, counts_event, noisy_counts
from dpilot.metrics.figures import Figures
from dpilot.metrics.scores import scores
from dpilot.privacy.budget import Budget
from dpilot.privacy.gaussian import gdp_mu

if TYPE_CHECKING:
    from dpilot.fit.model import FittedModel

__all__ = ["AutoClassifier"]


@dataclass(eq=False, repr=False, kw_only=True)
class AutoClassifier(ClassifierMixin, AutoEstimator):  # type: ignore[misc]
    """A private classifier that tunes, trains and scores itself in one budget: nothing else to choose.

    ``X`` is, with ``schema``, a frame whose columns it declares; without, a table of numbers, whose bounds are bought;
    or images (n, height, width) or (n, channels, height, width), as bytes or as floats from 0 to 1, which become
    scattering features. With ``rows="unit"`` each row of the table is one vector (an embedding, hashed words), scaled
    to unit length by itself: no bounds are bought, which serves wide tables. ``classes`` are declared, bought
    ("buy", those of many records) or published ("public"); with a schema they are its target's. ``text`` names the
    columns of a frame that are texts, where no schema does ("review", a list of them, or {"review": "minilm"} with its
    encoder); other columns are numbers.
    ``model``: "auto", the tuned linear head; "logistic" or "mlp", or "finetune", adapters on the encoder of one text.

    Guarantee:
        (epsilon, delta)-DP for adding or removing one record (with ``unit``, one unit with all its rows, of which at
        most ``rows_per_unit`` count, 8 by default), everything stored on the estimator included; the number of records,
        or of units, is published when ``size="public"``. Every entry is in ``privacy_``. With ``ledger``, a path or a
        Ledger, each fit is charged there before a record is read, or refused with BudgetExceeded.

    Edge cases:
        ``delta`` None is min(1e-5, 1/(10 size)), or 1e-6 where the size is bought (``size="private"``); 1/size or more
        is refused unless ``allow_large_delta``. ``privacy_`` shows what was used.
        A record outside its declared domain, or whose label is none of the classes, is the null record: silent. When
        predicting, a null record gets equal probabilities, so the first class. A missing number is no such thing.
        ``score`` is exact, for records that are public; ``private_score`` buys noisy figures of private ones.
        ``class_weight`` is a weight a class ({"yes": 5}, the others 1) or "balanced", by noisy counts that are paid: it
        multiplies the loss before clipping, no weight more than ``weight_cap`` times another. ``decision`` "prior", the
        default with "balanced", predicts by probabilities over noisy priors. ``objective`` is what tuning aims at:
        "accuracy", "macro", "worst_class", "worst_group" or the recall of a class, "recall:yes".
        ``model`` "auto" is grids, which learn what pairs of columns tell, where records and budget allow, else the
        "additive" head, which alone has ``coef_``; each can be asked for by its name, and so can "logistic" and "mlp".
        ``epochs`` is the most passes over the records of one run. ``random_state`` fixes the noise: for tests only.
        Where fewer than ``stop_below`` of the records can be used, by a noisy count that costs at most 2 %
        (``health_``), FitStopped is raised and nothing else is paid. ``checkpoint`` is a folder: a fit that is
        interrupted goes on from there, without paying again, when ``fit`` is called again on the same records; a
        finished fit is saved in it.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(20_000, 2)); y = np.where(X[:, 0] > 0, "yes", "no")
        >>> model = AutoClassifier(epsilon=1.0, classes=["no", "yes"]).fit(X, y)
        >>> model.predict([[2.0, 0.0], [-2.0, 0.0]]).tolist(), model.privacy_.spent.epsilon <= 1.0
        (['yes', 'no'], True)
        >>> bool(model.metrics_["accuracy"].value > 0.9)
        True
    """

    classes: Any = None
    objective: str = "accuracy"
    class_weight: Any = None
    weight_cap: float = CAP
    decision: str | None = None
    rows: str | None = None
    text: Any = None
    model: str = "auto"

    def fit(self, X: Any, y: Any = None, *, units: Any = None, **unknown: Any) -> Self:
        """Fit on the records (X, y), charging the ledger first; without ``y`` the schema's target is a column of X.

        ``units`` are ids of whom the rows are of, one for each: with them, or with the parameter ``unit``, which names
        a column of a frame, a unit with all its rows is protected.
        """
        refuse_arguments(unknown)
        if self.rows is not None:
            _validate.one_of(("unit",), "Or leave it out: bounds of each column are bought then.", rows=self.rows)
        if self.rows is not None and (self.schema is not None or is_images(X)):
            raise InvalidInput(
                'rows is "unit" beside a schema or images: expected a table of numbers alone. In a schema, declare '
                'type = "vector".'
            )
        if self.text is not None and (self.schema is not None or self.rows is not None or is_images(X)):
            raise InvalidInput(
                f"text is {self.text!r} beside a schema, rows or images: expected a frame alone. In a schema, declare "
                'type = "text".'
            )
        if self.model != "auto" and is_images(X):
            raise InvalidInput(f'model is {self.model!r} and X are images: expected "auto", a head on their features.')
        if self.schema is None and is_bought(self.classes, units):
            return cast(Self, buy_and_fit(self, X, y, target_cells(y)))
        if self.schema is not None:
            return self._fit_table(X, y, units)
        if self.text is not None:
            return self._fit_texts(X, y, units)
        if self.protected is not None:
            raise InvalidInput(f"protected is {self.protected!r} without a schema: expected one that declares it.")
        return self._fit_images(X, y, units) if is_images(X) else self._fit_array(X, y, units)

    def predict_proba(self, X: Any) -> Floats:
        """The probability of each class; post-processing of what was released."""
        check_is_fitted(self)
        logits = np.nan_to_num(self._logits(X), nan=0.0)[:, : self.classes_.size]
        return softmax(logits)

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest class of each row."""
        check_is_fitted(self)
        return np.asarray(self.classes_[np.argmax(self.predict_proba(X), axis=1)])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of records whose class is predicted, exactly: for records that are public, and no others.

        Nothing is charged. scikit-learn's searches and cross-validation call this, so they are for public records too.
        """
        check_is_fitted(self)
        right = np.argmax(self.predict_proba(X), axis=1) == self._codes(y)
        return float(np.average(right, weights=sample_weight))

    @np.errstate(all="ignore")  # whatever the caller set: an underflow would reveal one record
    def private_score(
        self, X: Any, y: Any, *, epsilon: float, delta: float | None = None, ledger: Any = None, units: Any = None
    ) -> PrivateScore:
        """Noisy figures of private records, for an (epsilon, delta) of their own.

        Without a ``delta`` it is that of the fit. Charged to ``ledger``, or to the estimator's where none is given:
        figures of records that the model was fitted to add to what the fit cost.
        Where the model protects units, so do its figures: they are of one row of each, drawn in secret, whose ids are a
        column of X or ``units``, as for ``fit``.
        """
        check_is_fitted(self)
        probabilities, target = self.predict_proba(X), self._codes(y)
        if len(target) != len(probabilities):
            raise InvalidInput("X and y have inconsistent numbers of records: expected one label a record.")
        scored = self._rows_to_score(X, units, len(target))
        probabilities, target = probabilities[scored], target[scored]

        def figures(budget: Budget) -> PaidFigures:
            sigma, layout = 1 / gdp_mu(budget), Layout(Labels(self.classes_, target).names)
            padded = np.pad(probabilities, ((0, 0), (0, len(layout.classes) - probabilities.shape[1])))
            count = partial(noisy_counts, Scored(target, padded), layout, noise_multiplier=sigma)
            return PaidFigures(counts_event(sigma), lambda receipt, noise: scores(count(receipt=receipt, noise=noise)))

        return self._score_privately(figures, epsilon, delta, ledger)

    def _fit_table(self, X: Any, y: Any, units: Any) -> Self:
        if self.classes is not None:
            raise InvalidInput("classes are given beside a schema: expected None, as the schema declares the target's.")
        check_schema(self.schema)
        X, ids = self._take_ids(X, units)
        table, schema = join_target(X, y, self._without_ids(ids))
        columns = schema.features
        self._fit(*self._with_ids(table, schema, ids))
        self.feature_names_in_ = np.asarray([column.name for column in columns], dtype=object)
        self.n_features_in_ = len(columns)
        self.classes_ = np.asarray(self.fitted_.classes, dtype=object)
        return self

    def _fit_array(self, X: Any, y: Any, units: Any) -> Self:
        X, ids = self._take_ids(X, units)
        values, labels = features_and_target(self, X, y)
        known, unprotected = self._labels(labels)
        names, count = column_names(self), len(known.names)
        schema = class_schema(names, count) if self.rows is None else unit_schema(len(names), count)
        table, schema = self._with_ids(array_frame(values, schema, known.cells()), schema, ids)
        self._fit(table, schema, class_names=known.names, unprotected=unprotected, labels=tuple(known.classes.tolist()))
        self.classes_ = known.classes
        return self

    def _fit_texts(self, X: Any, y: Any, units: Any) -> Self:
        X, ids = self._take_ids(X, units)
        if y is None:
            raise InvalidInput("y is None beside text: expected the labels, as no schema names a target.")
        known, unprotected = self._labels(target_cells(y))
        schema = text_schema(Frame.of(X).names, self.text, len(known.names))
        table, schema = join_target(X, known.cells(), schema)
        columns = schema.features
        for column in columns:
            if column.type == "numeric":
                check_numeric(X[column.name], column.name)
        table, schema = self._with_ids(table, schema, ids)
        self._fit(table, schema, class_names=known.names, unprotected=unprotected, labels=tuple(known.classes.tolist()))
        self.feature_names_in_ = np.asarray([column.name for column in columns], dtype=object)
        self.n_features_in_, self.classes_ = len(columns), known.classes
        return self

    def _fit(
        self, table: Any, schema: Any, *, labels: tuple[Any, ...] | None = None, learner: Any = None, **more: Any
    ) -> None:
        from dpilot.fit.learners.heads import HeadPredictor

        names = dict(zip(labels or (), more.get("class_names") or (), strict=False))
        chosen = {
            "model": self.model,
            "objective": self.objective,
            "class_weight": name_classes(self.class_weight, names),
            "weight_cap": self.weight_cap,
            "decision": self.decision,
        }
        declared, source = self._declare(table, schema, chosen=chosen, **more)
        if declared.task.numeric:
            raise InvalidInput(
                f"the target {declared.task.target.name!r} is numeric: expected classes. See AutoRegressor."
            )
        result = self._fit_records(declared, source, labels=labels, learner=learner)
        self.encoder_, self.metrics_ = result.model.reader, Figures(result.metrics)
        if isinstance(result.trained.predictor, HeadPredictor):
            self.coef_ = result.trained.predictor.weights

    def _fit_images(self, X: Any, y: Any, units: Any) -> Self:
        from dpilot.fit.images import ImageSource
        from dpilot.fit.learners.heads import Heads

        known, unprotected = self._labels(target_cells(y))
        if len(known.codes) != len(X):
            raise InvalidInput("X and y have inconsistent numbers of records: expected one label a record.")
        _, ids = self._take_ids(X, units)
        if ids is not None and len(ids) != len(X):
            raise InvalidInput("X and units have inconsistent numbers of rows: expected one id for each image.")
        source = ImageSource(X, known.codes, len(known.names), ids, self.unit or "unit")
        shape, labels = tuple(np.shape(X)[1:]), tuple(known.classes.tolist())
        more = {"class_names": known.names, "unprotected": unprotected, "learner": Heads(image_shape=shape)}
        self._fit(source, source.schema, labels=labels, **more)
        self.classes_ = known.classes
        return self

    def _labels(self, labels: NDArray[Any]) -> tuple[Labels, tuple[str, ...]]:
        classes, unprotected = resolve_classes(self.classes, labels)
        return Labels(classes, codes(labels, classes)), unprotected

    def _logits(self, X: Any) -> Floats:
        from dpilot.fit.images import Scatterer

        fitted: FittedModel = self.fitted_
        X = without_unit(X, self.privacy_.unit)
        plain = self.schema is None and self.text is None and not isinstance(fitted.reader, Scatterer)
        return fitted.outputs(features(self, X) if plain else X)

    def _codes(self, y: Any) -> Floats:
        if self.schema is not None:
            schema = self.fitted_.schema  # with classes, where they were bought
            return category_codes({schema.target.name: y}, schema.target, schema)
        return codes(target_cells(y), self.classes_)

    def __sklearn_tags__(self) -> Any:
        tags = loose(super().__sklearn_tags__())
        tags.classifier_tags.poor_score = True
        return tags
