"""Results: what a run leaves behind, summarised, exported, and put to use on new samples."""

from fedkin.result.history import History, Record
from fedkin.result.result import Models, Result, load

__all__ = ["History", "Models", "Record", "Result", "load"]
