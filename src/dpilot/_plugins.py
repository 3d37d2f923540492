"""What other packages add by entry points, found by name when it is asked for, and never named by a file that is read.

[project.entry-points."dpilot.clipping"]
half-normal = "my_package.rules:HalfNormal"

[project.entry-points."dpilot.learners"]
stumps = "my_package.stumps:Stumps"
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Final

from dpilot.errors import InvalidInput

CLIPPING: Final = "dpilot.clipping"
LEARNERS: Final = "dpilot.learners"


def plugin_names(group: str) -> list[str]:
    """The names that installed packages add to ``group``; none of them is imported."""
    return sorted({each.name for each in entry_points(group=group)})


def load_plugin(group: str, name: str) -> Any:
    """What is called ``name`` in ``group``, imported from the package that adds it.

    Raises:
        InvalidInput: where two packages add it, or the package does not import.
    """
    found = list({each.value: each for each in entry_points(group=group) if each.name == name}.values())
    if len(found) != 1:
        homes = ", ".join(each.value for each in found) or "none"
        raise InvalidInput(f"{name} in {group} is added by {homes}: expected one installed package. Remove the others.")
    try:
        return found[0].load()
    except Exception as problem:
        raise InvalidInput(
            f"{name} of {found[0].value} does not import ({problem}): mend or remove that package."
        ) from None
