"""Checkpoints: all state of server and clients after a round, in safetensors + JSON, written atomically."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt, ValidationError
from torch import Tensor

from fedkin.algorithm import State
from fedkin.errors import FedkinError, first_fault
from fedkin.files import FileBatch, Manifest, read_tensors, write_tensors

KEPT = 2


class SavedProgress(BaseModel):
    """How far a run has come: seconds of training and evaluation, bytes and messages."""

    model_config = ConfigDict(extra="forbid", strict=True)

    seconds: NonNegativeFloat
    evaluation_seconds: NonNegativeFloat
    traffic: dict[Literal["down", "up", "peers", "messages"], NonNegativeInt]


class CheckpointFacts(BaseModel):
    """The JSON file beside a checkpoint's tensors."""

    model_config = ConfigDict(extra="allow", strict=True)

    round: NonNegativeInt
    values: dict[str, Any]
    log: dict[str, Any]
    progress: SavedProgress


def save(
    directory: Path,
    state: State,
    private: Mapping[str, Tensor],
    progress: Mapping[str, Any],
    after_piece: Callable[[], None] | None = None,
    batch: FileBatch | None = None,
) -> Path:
    """Write `checkpoints/round-000010.safetensors` (+ .json with checksum), then drop all but the newest two.

    With a batch all of this happens when the batch ends.
    """
    if batch is None:
        with FileBatch(directory) as own:
            return save(directory, state, private, progress, after_piece, own)
    path = directory / "checkpoints" / f"round-{state.round:06d}.safetensors"
    tensors = {f"state/{name}": value for name, value in state.arrays.items()}
    tensors |= {f"clients/{name}": value for name, value in private.items()}
    facts = {"round": state.round, "values": dict(state.values), "log": dict(state.log), "progress": dict(progress)}
    write_tensors(path, tensors, facts, after_piece, batch.write)
    for old in sorted({*path.parent.glob("round-*.safetensors"), path})[:-KEPT]:
        batch.remove([old.with_suffix(".json"), old])
    return path


def read_checkpoint(path: Path) -> tuple[State, dict[str, Tensor], dict[str, Any]]:
    """The server's state, the clients' private state, and the run's progress."""
    tensors, facts = read_tensors(path)
    try:
        CheckpointFacts.model_validate(facts)
    except ValidationError as problem:
        raise FedkinError(f"{path} is no checkpoint: {first_fault(path.name, problem)}") from problem
    arrays = {name.removeprefix("state/"): t for name, t in tensors.items() if name.startswith("state/")}
    private = {name.removeprefix("clients/"): t for name, t in tensors.items() if name.startswith("clients/")}
    return State(facts["round"], arrays, facts["values"], facts["log"]), private, facts["progress"]


def latest(directory: Path, accept_changes: bool = False) -> Path | None:
    """The newest checkpoint that is intact and as fedkin wrote it; a damaged or half-written one is passed over."""
    manifest = Manifest(directory, accept_changes)
    for path in sorted((directory / "checkpoints").glob("round-*.safetensors"), reverse=True):
        told = path.with_suffix(".json").relative_to(directory).as_posix()
        if manifest.exists and not accept_changes and not manifest.agrees(told):
            continue
        try:
            read_checkpoint(path)
        except FedkinError:
            continue
        return path
    return None


def refuse_other_shapes(path: Path, state: State, ours: State) -> None:
    """A checkpoint of a run with other clients or another model is refused."""
    for name in ("rows", "influence"):
        own, theirs = ours.arrays.get(name), state.arrays.get(name)
        lost = theirs is None and name == "rows"
        if own is not None and (lost or (theirs is not None and theirs.shape != own.shape)):
            raise FedkinError(f"{path} does not fit this run: its {name} have another shape; start the run again")
