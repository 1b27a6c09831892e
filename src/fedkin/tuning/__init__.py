"""Parameters by trial: on samples that every client holds out of its own training, never on test samples."""

from fedkin.tuning.tune import tune
from fedkin.tuning.tuning import Tuning

__all__ = ["Tuning", "tune"]
