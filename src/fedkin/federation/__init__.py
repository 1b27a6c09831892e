"""The clients, their data, and what is to be learned. No training happens here.

reading.py checks what a user hands over, targets.py turns targets into class codes or floats, split.py holds samples
back for tests and joins the clients' arrays; federation.py is the whole. Samples stay as they are stored (scaling.py), where
they are (unread.py, readers.py, datasets.py). Raw tables: table.py from frame to federation,
columns.py how a column becomes inputs, faults.py which cannot, notices.py what a reader should know.
"""

from __future__ import annotations

from fedkin.federation.federation import Federation
from fedkin.federation.scaling import Rescaling
from fedkin.federation.split import PARTS, Holdout, Split

__all__ = ["PARTS", "Federation", "Holdout", "Rescaling", "Split"]
