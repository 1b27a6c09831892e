"""How SFL is run in the contract tests."""

from __future__ import annotations

OTHER = {"structure": "learned", "edges": 1}
WITH = {
    "mix": {"structure": "mixed"},
    "edges": {"structure": "learned"},
    "embedding": {"structure": "learned"},
    "fit_steps": {"structure": "learned"},
    "fit_lr": {"structure": "learned"},
}
