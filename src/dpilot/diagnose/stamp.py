"""That somebody said the records are public, and what everything made from them says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dpilot import _validate
from dpilot.errors import InvalidInput

NOT_PRIVATE: Final = "not private: exact values of records declared public"
"""The stamp of what ``dpilot.diagnose`` makes."""


def require_public(public: object) -> None:
    """Refuse to look at records that nobody declared public."""
    if public is not True:
        raise InvalidInput(
            f"public is {public!r}, and exact values would be shown: expected public=True from who knows that "
            "anybody may see these records (public or synthetic data). For private records, run.steps() has what the "
            "run released."
        )


def new_figure(width: float, height: float, title: str) -> Any:
    """An empty figure whose title says that what it shows is not private."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise _validate.missing_extra("matplotlib", "plot") from None

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{title}\n{NOT_PRIVATE}", fontsize=10)
    return figure


def save_figure(figure: Any, path: str | Path) -> Path:
    """Write the figure in the format that the path ends with."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text, which can be searched
        figure.savefig(path, dpi=130)
    return Path(path)
