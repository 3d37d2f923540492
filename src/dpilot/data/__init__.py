"""Tables as they are declared (schema), read (files, frames, cells), encoded and split; data sets on disk.

Promises that what becomes of a record depends on that record and the schema alone, and that no value raises. Imports
statistics (to buy bounds) and what is below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpilot.data.mapped import MappedDataset
    from dpilot.data.parquet import ParquetDataset

__all__ = ["MappedDataset", "ParquetDataset"]


def __getattr__(name: str) -> Any:  # on first use: most who read a schema train on no data set on disk
    if name == "MappedDataset":
        from dpilot.data.mapped import MappedDataset

        return MappedDataset
    if name == "ParquetDataset":
        from dpilot.data.parquet import ParquetDataset

        return ParquetDataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
