"""What is trained, on which features: models, fine-tuning methods, backbones, scattering, linear heads.

Names load on first use. Promises: features and weights come from public files or declared numbers, and the gradients of
heads keep the bound that they state. May import: data, engine, statistics, private_sum and below; not train.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpilot.transfer import augment, backbones, models, random_images, scattering
    from dpilot.transfer.features import Features
    from dpilot.transfer.preparation import prepare
    from dpilot.transfer.probe import Head, fit_heads
    from dpilot.transfer.probing import Probe, fit_probe

__all__ = [
    "Features",
    "Head",
    "Probe",
    "augment",
    "backbones",
    "fit_heads",
    "fit_probe",
    "models",
    "prepare",
    "random_images",
    "scattering",
]

_HOMES = {
    "Features": "features",
    "Head": "probe",
    "Probe": "probing",
    "fit_heads": "probe",
    "fit_probe": "probing",
    "prepare": "preparation",
}
_PACKAGES = ("augment", "backbones", "models", "random_images", "scattering")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'dpilot.transfer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
