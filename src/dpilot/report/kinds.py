"""What is known of a figure by its name: what people call it, what it means, and how its number is written."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from dpilot.report import words

Form = Literal["share", "score", "explained", "size", "other"]
"""A share of one, in percent; a score from 0 to 1; R squared; a size, 0 or more; anything else."""

_LEAST: Final = "noise makes it look a little lower than it is"
_MOST: Final = "0 is equal; noise makes it look a little larger than it is"


class Kind(NamedTuple):
    """A title for people, a meaning in half a sentence, and the form of the number."""

    title: str
    meaning: str
    form: Form
    difference: bool = False

    @property
    def share(self) -> bool:
        return self.form == "share"

    def say(self, value: object) -> str:
        """The number as this kind of figure is written."""
        if self.difference:
            return words.points(value)
        return words.percent(value) if self.share else words.number(value)


_KNOWN: Final = {
    "accuracy": Kind("Accuracy", "the share of records that the model gets right", "share"),
    "share_of_the_most_common_class": Kind(
        "Most common class",
        "the share of records in the most common class: what predicting it always would get right",
        "share",
    ),
    "accuracy_above_that_share": Kind(
        "Above the most common class",
        "how far the accuracy is above that; where the interval holds 0, the model cannot be said to be better",
        "share",
        True,
    ),
    "equal_opportunity_gap": Kind(
        "Equal opportunity gap",
        "of records of the second class, the share found in the group where it is largest less that where it is "
        f"smallest; {_MOST}",
        "share",
        True,
    ),
    "false_positive_gap": Kind(
        "False positive gap",
        "of records of the first class, the share predicted the second in the group where it is largest less that "
        f"where it is smallest; {_MOST}",
        "share",
        True,
    ),
    "selection_gap": Kind(
        "Selection gap",
        "the share predicted the second class in the group where it is largest less that where it is smallest; "
        f"{_MOST}",
        "share",
        True,
    ),
    "macro": Kind(
        "Mean class accuracy", "the accuracy in each class, averaged, every class counting the same", "share"
    ),
    "worst_class": Kind("Worst class", f"the accuracy in the class where it is lowest; {_LEAST}", "share"),
    "worst_group": Kind("Worst group", f"the accuracy in the group where it is lowest; {_LEAST}", "share"),
    "recall": Kind("Recall by class", "the share of the records of a class that the model gets right", "share"),
    "precision": Kind(
        "Precision by class", "of the records that are predicted a class, the share that is of it", "share"
    ),
    "average_precision": Kind(
        "Average precision (PR-AUC)",
        "the mean, over records of the second class, of the precision among those that score "
        "as high; guessing has the share of that class",
        "score",
    ),
    "group_accuracy": Kind(
        "Accuracy by group", "the share of the records of a group that the model gets right", "share"
    ),
    "confusion": Kind("Confusion", "of the records of a class, the share that is predicted as another", "share"),
    "group_against_others": Kind(
        "Group against others", "the accuracy of a group less that of all other records; below 0 it is worse", "share"
    ),
    "predicted_against_others": Kind(
        "Predicted, against others", "how much more often a group is predicted the class than all others", "share"
    ),
    "true_positives_against_others": Kind(
        "Found, against others",
        "the same of records of the class; below 0 they are missed more often",
        "share",
    ),
    "false_positives_against_others": Kind(
        "Predicted wrongly, against others", "the same of records that are not of the class", "share"
    ),
    "group_recall": Kind("Recall by group and class", "the share of a group's records of a class got right", "share"),
    "true_positive_rate": Kind("True positives", "of the second class, the share that scores as high", "share"),
    "false_positive_rate": Kind("False positives", "of the first class, the share that scores as high", "share"),
    "calibration": Kind("Calibration", "of the records with such a score, the share of the second class", "share"),
    "demographic_parity": Kind(
        "Demographic parity",
        "the share predicted the second class in the group where it is smallest, over that in the group where it is "
        f"largest; 100 % is equal; {_LEAST}",
        "share",
    ),
    "selection_rate": Kind("Share predicted", "the share of a group for whom the class is predicted", "share"),
    "auc": Kind(
        "AUC", "the chance that a record of the second class scores above one of the first; 0.5 is guessing", "score"
    ),
    "log_loss": Kind("Log loss", "the mean surprise at the true class; lower is better", "other"),
    "rmse": Kind("Root mean squared error", "the typical size of an error, in units of the target", "size"),
    "mae": Kind("Mean absolute error", "the mean size of an error, in units of the target", "size"),
    "r2": Kind(
        "R squared", "the share of the target's spread that the model explains; the mean alone has 0", "explained"
    ),
    "loss_above_that_of_the_shortest_walk": Kind(
        "Loss above that of the shortest walk",
        "how much more a record loses on average than with the shortest of the walks; below 0 the walk fits better",
        "other",
    ),
    "group_records": Kind("Records by group", "how many records that were scored a group has", "size"),
    "group_rmse": Kind("Error by group", "the typical size of an error in a group, in units of the target", "size"),
    "group_mean_residual": Kind(
        "Mean residual by group", "how far predictions of a group are too high on average; below 0, too low", "other"
    ),
}
AGAINST_OTHERS: Final = (
    "group_against_others",
    "predicted_against_others",
    "true_positives_against_others",
    "false_positives_against_others",
)
"""Of each group, less that of all other records."""
TO_COMPARE: Final = (
    "worst_class",
    "group_accuracy",
    "worst_group",
    "demographic_parity",
    "equal_opportunity_gap",
    "false_positive_gap",
    "selection_gap",
    "group_records",
    "group_rmse",
)
"""Figures that serve to compare models and repeat what others say better: they stand among the details."""
DRAWN: Final = (
    "true_positive_rate",
    "false_positive_rate",
    "calibration",
    "group_recall",
    "group_mean_residual",
    *AGAINST_OTHERS,
)
"""Figures with a picture or a table of their own."""
_ALIASES: Final = {
    "macro_accuracy": "macro",
    "balanced_accuracy": "macro",
    "worst_class_accuracy": "worst_class",
    "worst_group_accuracy": "worst_group",
    "roc_auc": "auc",
    "pr_auc": "average_precision",
    "class_accuracy": "recall",
    "r^2": "r2",
}


def key(name: str) -> str:
    """One spelling for all the ways a figure is called.

    >>> key("R^2"), key("worst-class accuracy")
    ('r2', 'worst_class')
    """
    plain = str(name).lower().replace(" ", "_").replace("-", "_")
    return _ALIASES.get(plain, plain)


def is_known(name: str) -> bool:
    return key(name) in _KNOWN


def kind(name: str) -> Kind:
    """What is known of a figure of this name; one that is not known is a share if it calls itself an accuracy."""
    form: Form = "share" if "accuracy" in str(name).lower() else "other"
    return _KNOWN.get(key(name), Kind(words.label(name), "", form))
