"""frozen.safetensors: the frozen part of all clients' models, saved once in a run's directory and referred to by its hash."""

from __future__ import annotations

from pathlib import Path

from fedkin.errors import FedkinError
from fedkin.files import FileBatch, read_tensors, write_tensors
from fedkin.models import ModelSpec
from fedkin.models.frozen import frozen_hash, with_frozen
from fedkin.result.stored import read_config

FROZEN = "frozen.safetensors"
FROZEN_HASH = "frozen_sha256"
"""The key of [model] in config.toml that refers to it."""


def write_frozen(out: Path, spec: ModelSpec | None, batch: FileBatch) -> None:
    """Write a model's frozen part, if it has one and it is not there yet."""
    if spec is None or not spec.frozen:
        return
    told = frozen_hash(spec.frozen)
    if (out / FROZEN).exists() and read_tensors(out / FROZEN)[1].get(FROZEN_HASH) == told:
        return
    write_tensors(out / FROZEN, dict(spec.frozen), {FROZEN_HASH: told}, None, batch.write)


def read_frozen(out: Path, spec: ModelSpec) -> ModelSpec:
    """The model with the frozen part that a run's directory holds; another than config.toml refers to is refused."""
    path = out / FROZEN
    if not path.exists():
        raise FedkinError(f"{path} is missing: it holds the frozen part of every client's model; put it back")
    tensors, _ = read_tensors(path)
    if frozen_hash(tensors) != read_config(out)["model"].get(FROZEN_HASH):
        raise FedkinError(f"{path} is not the frozen part that config.toml refers to (its hash differs); put it back")
    return with_frozen(spec, tensors, str(path))
