"""The scattering transform: image features that depend on no data at all."""

from dpilot.transfer.scattering.filters import Filters
from dpilot.transfer.scattering.transform import Scattering, scatter, scattered

__all__ = ["Filters", "Scattering", "scatter", "scattered"]
