"""Words that a page may use and what they mean; a page explains those alone that stand on it."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["TERMS", "find_terms"]

TERMS: Final = {
    "Accountant": "What adds up the costs of all steps.",
    "Calibration": "Whether of those for whom the model says 30 %, about 30 % are of the class.",
    "Clipping": "Cutting what one record may add to a step down to a threshold. Without it no amount of noise would "
    "hide a record.",
    "Delta": "The chance with which the promise may fail.",
    "Differential privacy": "A way of computing with noise, so that results are nearly as likely with any one record "
    "as without it.",
    "Epsilon": "How far “nearly” goes: the logarithm of the largest factor between the two chances.",
    "Gradient": "What one record asks a step to change in the model.",
    "Grids": "Tables that say how pairs and triples of columns move the prediction.",
    "Held-out": "Of records that training did not use, kept for measuring.",
    "Ledger": "The list of everything that was computed from the records and released, with its cost.",
    "Marginals": "How the values of each column are spread, counted with noise.",
    "Momentum": "Keeping a part of the last step in the next.",
    "Mu": "Another measure of the loss, of Gaussian noise: its squares add up.",
    "Noise multiplier": "The size of the noise, in units of the most that one record can add.",
    "Norm": "The length of a gradient: how much a record asks for.",
    "Null record": "A row with a value outside what was declared. It counts as a row that says nothing.",
    "Pareto line": "What can be had by giving up one good for another.",
    "Record": "One row of the data.",
    "ROC": "How many of a class are found, against how many others are taken for it, at every threshold of a score.",
    "Residual": "What the model so far gets wrong of a record.",
    "Slack": "What a record leaves of the threshold; its noisy sum tells whether the threshold is too high.",
    "Signal": "What the records say together, without the noise.",
    "Slots": "Narrow ranges below the threshold; how many norms lie in each is released with noise.",
    "Step": "One small improvement of the model, with noise, from some of the records or from all of them.",
    "Trial": "A short training with one setting, to see how good it is.",
    "Walk": "All steps of a training, one after the other: how far the model was carried.",
    "Waves": "Smooth functions of all columns together.",
}
_FORMS: Final = {"Mu": r"\bmu\b|\bmu²", "Held-out": r"\bheld[- ]out\b", "Norm": r"\bnorms?\b"}


def find_terms(text: str) -> tuple[tuple[str, str], ...]:
    """The words that a text uses, each with its meaning.

    >>> [term for term, _ in find_terms("In each step <b>noise</b> is added to the gradients.")]
    ['Gradient', 'Step']
    """
    shown = re.sub(r"<[^>]*>", " ", text)
    return tuple(
        (term, meaning)
        for term, meaning in TERMS.items()
        if re.search(_FORMS.get(term, rf"\b{term}"), shown, re.IGNORECASE)
    )
