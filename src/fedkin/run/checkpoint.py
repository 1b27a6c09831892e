"""Checkpoints: all state of server and clients after a round, in safetensors + JSON, written atomically."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedkin.algorithm import State
from fedkin.errors import FedkinError
from fedkin.files import read_tensors, write_tensors

KEPT = 2


def save(
    directory: Path,
    state: State,
    private: Mapping[str, Tensor],
    progress: Mapping[str, Any],
    after_piece: Callable[[], None] | None = None,
) -> Path:
    """Write `checkpoints/round-000010.safetensors` (+ .json with checksum), then drop all but the newest two."""
    path = directory / "checkpoints" / f"round-{state.round:06d}.safetensors"
    tensors = {f"state/{name}": value for name, value in state.arrays.items()}
    tensors |= {f"clients/{name}": value for name, value in private.items()}
    facts = {"round": state.round, "values": dict(state.values), "log": dict(state.log), "progress": dict(progress)}
    write_tensors(path, tensors, facts, after_piece)
    for old in sorted(path.parent.glob("round-*.safetensors"))[:-KEPT]:
        old.with_suffix(".json").unlink(missing_ok=True)
        old.unlink(missing_ok=True)
    return path


def read(path: Path) -> tuple[State, dict[str, Tensor], dict[str, Any]]:
    """The server's state, the clients' private state, and the run's progress."""
    tensors, facts = read_tensors(path)
    arrays = {name.removeprefix("state/"): t for name, t in tensors.items() if name.startswith("state/")}
    private = {name.removeprefix("clients/"): t for name, t in tensors.items() if name.startswith("clients/")}
    return State(facts["round"], arrays, facts["values"], facts["log"]), private, facts["progress"]


def latest(directory: Path) -> Path | None:
    """The newest checkpoint that is intact; a damaged or half-written one is passed over."""
    for path in sorted((directory / "checkpoints").glob("round-*.safetensors"), reverse=True):
        try:
            read_tensors(path)
        except FedkinError:
            continue
        return path
    return None
