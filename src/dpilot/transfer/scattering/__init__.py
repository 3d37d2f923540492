"""The scattering transform: image features. Promises: they depend on no data at all.

May import: transfer's features and pixels, and numerics.
"""

from dpilot.transfer.scattering.filters import Filters
from dpilot.transfer.scattering.transform import Scattering, scatter, scattered

__all__ = ["Filters", "Scattering", "scatter", "scattered"]
