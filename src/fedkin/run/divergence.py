"""A run that has come to nothing stops: every client failed, or rows on the server are no longer finite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from fedkin.algorithm import Setting, State
from fedkin.errors import EveryoneFailed, FedkinError
from fedkin.run import checkpoint


def refuse_divergence(number: int, state: State, setting: Setting, asked: int, out: Path | None) -> None:
    """Stop after round `number`, of which `asked` clients were part, if nothing good can follow."""
    failed: Mapping[str, str] = state.log.get("failed", {})
    if failed and len(failed) >= asked:
        name, reason = next(iter(failed.items()))
        raise EveryoneFailed(f"round {number}: every client failed, first {name!r}: {reason}{_kept(out)}", failed)
    diverged = list(state.log.get("diverged", []))
    if "rows" in state.arrays:
        ids = setting.everyone if state.changed is None else state.changed
        rows = state.rows if state.changed is None else state.rows[torch.from_numpy(ids)]
        seen = rows[:1] if rows.stride(0) == 0 else rows  # one row that all have
        if not bool(torch.isfinite(seen.sum())):
            bad = torch.isfinite(rows).all(dim=1).logical_not().nonzero()
            diverged += [setting.names[ids[int(k)]] for k in bad]
    if diverged:
        raise FedkinError(
            f"round {number}: the model of client {diverged[0]!r} diverged when it was mixed with others; "
            f"use a smaller step or learning rate{_kept(out)}"
        )


def _kept(out: Path | None) -> str:
    last = checkpoint.latest(out) if out else None
    return f" (the last good checkpoint, {last}, is kept)" if last else ""
