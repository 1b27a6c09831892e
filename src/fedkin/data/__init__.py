"""Data: the catalogue of real sets, partitioners, synthetic generators, tables of the user's own."""

from __future__ import annotations

from fedkin.data.parquet import from_parquet
from fedkin.data.registry import catalogue, info, load, prepare
from fedkin.data.tabular import from_csv, from_table

__all__ = ["catalogue", "from_csv", "from_parquet", "from_table", "info", "load", "prepare"]
