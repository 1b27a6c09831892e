"""Numbers over clients: mean, spread, best and worst 5 %, who gained."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def summarise(values: Sequence[float] | np.ndarray, larger_is_better: bool = True) -> dict[str, float]:
    """Mean and standard deviation over clients, and the means of the ⌈5 %⌉ best and worst clients; NaN is left out.

    >>> summarise([0.5, 1.0, 0.75])
    {'mean': 0.75, 'std': 0.2041241452319315, 'best5': 1.0, 'worst5': 0.5}
    """
    kept = np.asarray(values, dtype=float)
    kept = np.sort(kept[np.isfinite(kept)])
    if not len(kept):
        return dict.fromkeys(("mean", "std", "best5", "worst5"), float("nan"))
    tail = int(np.ceil(0.05 * len(kept)))
    low, high = float(kept[:tail].mean()), float(kept[-tail:].mean())
    best, worst = (high, low) if larger_is_better else (low, high)
    return {"mean": float(kept.mean()), "std": float(kept.std()), "best5": best, "worst5": worst}


def coverage(label: str, valued: int, clients: int) -> str:
    """Whom a mean leaves out, in words; nothing where that is nobody.

    >>> coverage("auroc", 11, 12)
    'auroc of 11 of 12 clients: the test samples of the others give it no value'
    """
    if valued == clients:
        return ""
    return f"{label} of {valued} of {clients} clients: the test samples of the others give it no value"


def weighted_mean(values: Sequence[float] | np.ndarray, counts: Sequence[float] | np.ndarray) -> float:
    """The mean over all test samples: total correct / total samples."""
    v, n = np.asarray(values, dtype=float), np.asarray(counts, dtype=float)
    kept = np.isfinite(v) & (n > 0)
    return float((v[kept] * n[kept]).sum() / n[kept].sum()) if kept.any() else float("nan")


def gains(
    values: Sequence[float] | np.ndarray, alone: Sequence[float] | np.ndarray, larger_is_better: bool = True
) -> dict[str, int]:
    """How many clients do better, worse or the same as when training alone.

    >>> gains([0.9, 0.5, 0.7], [0.8, 0.6, 0.7])
    {'gained': 1, 'lost': 1, 'same': 1}
    """
    difference = np.asarray(values, dtype=float) - np.asarray(alone, dtype=float)
    difference = difference if larger_is_better else -difference
    return {
        "gained": int((difference > 1e-12).sum()),
        "lost": int((difference < -1e-12).sum()),
        "same": int((np.abs(difference) <= 1e-12).sum()),
    }
