"""A released model for other programs: ONNX with its preprocessing, or one skops file; each with its privacy statement.

::

    from dpilot import export
    export.to_onnx(clf, "model.onnx")                     # a fit, an estimator, or a run of one's own torch model
    export.to_skops(clf, "model.skops")
    export.load("model.onnx").predict_columns(frame)      # as ``dpilot predict model.onnx DATA``

What is exported was released: it costs nothing. ``dpilot verify`` checks either file.

Promises: the file predicts what the model predicts. May import: fit, linear, train and what is below.
"""

from dpilot.export.files import load, to_skops
from dpilot.export.onnx_model import OnnxModel, to_onnx

__all__ = ["OnnxModel", "load", "to_onnx", "to_skops"]
