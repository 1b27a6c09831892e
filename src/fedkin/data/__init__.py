"""Data: the catalogue of real sets, partitioners, synthetic generators, tables of the user's own."""

from __future__ import annotations

from fedkin.data.catalogue import catalogue, info, load, prepare

__all__ = ["catalogue", "info", "load", "prepare"]
