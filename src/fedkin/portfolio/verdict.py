"""What auto found, in words: who does better together, who helps whom, who stays alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedkin.result import Result

FEW = 5
"""With fewer held-out samples nothing is said about a client."""


def standing(told: dict[str, Any]) -> str:
    """better, same, alone or unknown: by the gain to expect on new samples, which no test sample has a part in."""
    if told["samples"] < FEW:
        return "unknown"
    if told["kept_alone"]:
        return "alone"
    return "better" if told["gain"][1] > 0 else "same"


def helpers(result: Result, k: int, most: int = 3) -> list[tuple[str, float]]:
    """The other clients with the largest weights in client k's kin, and the weights."""
    if result.kin is None:
        return []
    row = result.kin[k].copy()
    row[k] = 0
    return [(result.names[int(j)], float(row[j])) for j in np.argsort(-row, kind="stable")[:most] if row[j] > 0.02]


def sentence(result: Result) -> str:
    """The headline."""
    told = {name: dict(entry) for name, entry in result.auto.items()}
    found = {name: standing(entry) for name, entry in told.items()}
    by = {what: [name for name, own in found.items() if own == what] for what in ("better", "same", "alone", "unknown")}
    if len(by["unknown"]) == len(found):
        return f"No client has {FEW} samples to judge by; nothing can be said about who gains."
    clients = len(found)
    parts = [f"{len(by['better'])} of {clients} clients do better together, none is expected to do worse"]
    if by["same"]:
        parts.append(f"{len(by['same'])} about the same")
    if by["better"]:
        most = max(by["better"], key=lambda name: told[name]["gain"][0])
        kin = helpers(result, result.names.index(most))
        parts.append(f"{most} gains most" + (f", from {_listed([name for name, _ in kin])}" if kin else ""))
    if by["alone"]:
        parts.append(f"{_listed(by['alone'])} {'stays' if len(by['alone']) == 1 else 'stay'} alone")
    if by["unknown"]:
        parts.append(f"too few samples to judge {_listed(by['unknown'])}")
    return "; ".join(parts) + "."


def _listed(names: Sequence[str], most: int = 3) -> str:
    shown = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
