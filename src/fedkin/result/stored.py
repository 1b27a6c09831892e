"""What the files of a run directory must look like, whoever wrote them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from fedkin.errors import FedkinError, first_fault
from fedkin.files import read_text
from fedkin.task import Task


class Named(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str


class Config(BaseModel):
    """The sections of config.toml that every run has."""

    model_config = ConfigDict(extra="allow")

    data: dict[str, Any]
    model: Named
    algorithm: Named
    graph: dict[str, Any] = {}
    run: dict[str, Any]
    versions: dict[str, str] = {}


class ResultFacts(BaseModel):
    """The JSON file beside result.safetensors."""

    model_config = ConfigDict(extra="allow", strict=True)

    names: list[str]
    task: dict[str, Any]
    choice: list[str]
    metrics: dict[str, dict[str, list[float | None]]]
    notes: list[str]
    facts: dict[str, Any]


def read_config(out: Path) -> dict[str, Any]:
    """config.toml of a run directory, its sections checked."""
    path = out / "config.toml"
    try:
        found = tomllib.loads(read_text(path))
        Config.model_validate(found)
    except ValidationError as problem:
        raise FedkinError(f"{out} is not a run directory: {first_fault('config.toml', problem)}") from problem
    except (FedkinError, tomllib.TOMLDecodeError, RecursionError) as problem:
        raise FedkinError(f"{out} is not a run directory: {problem}") from problem
    return {"graph": {}, "versions": {}, **found}


def read_records(path: Path, clients: int, first: int | None = None) -> list[dict[str, Any]]:
    """The records of a history, one JSON object per line, of the first bytes only if told; an unfinished line is left out."""
    text = read_text(path)
    if first is not None:
        text = text.encode()[:first].decode(errors="replace")
    records = []
    for number, line in enumerate(text.split("\n")[:-1], 1):
        if line.strip():
            try:
                records.append(_record(json.loads(line), clients))
            except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as problem:
                raise FedkinError(f"{path} is damaged in line {number}: {problem}") from problem
    return records


def _record(found: Any, clients: int) -> dict[str, Any]:
    """One record: the number of its round, what the method logged, one number or null per client and metric."""
    if not isinstance(found, dict) or type(found.get("round")) is not int or not isinstance(found.get("log"), dict):
        raise ValueError("no record of a round")
    for key in ("seconds", "evaluation_seconds", "bytes", "messages", "participants"):
        if not isinstance(found.get(key, 0), int | float):
            raise ValueError(f"{key} is {found[key]!r}")
    for when in ("pre", "post"):
        for metric, values in dict(found.get(when, {})).items():
            if np.array(values, dtype=float).shape != (clients,):
                raise ValueError(f"{when} {metric} is not one number for each of {clients} clients")
    return found


def check_facts(path: Path, facts: Mapping[str, Any]) -> None:
    """The JSON file of a result: names, metrics and choices for the same clients."""
    try:
        found = ResultFacts.model_validate(facts)
    except ValidationError as problem:
        raise FedkinError(f"{path} is no result: {first_fault(path.name, problem)}") from problem
    clients = len(found.names)
    per_client: list[Sequence[object]] = [
        found.choice,
        *(values for table in found.metrics.values() for values in table.values()),
    ]
    if not clients or any(len(values) != clients for values in per_client):
        raise FedkinError(f"{path} is no result: its lists do not have one entry for each of {clients} clients")
    headline = f"test_{Task.read(found.task).metric}"
    for when in ("pre", "post", "deployed"):
        if headline not in found.metrics.get(when, {}):
            raise FedkinError(f"{path} is no result: metrics lack {when} {headline}")
    if not isinstance(facts["facts"].get("finished"), bool) or type(facts["facts"].get("rounds")) is not int:
        raise FedkinError(f"{path} is no result: it does not say whether the run finished, and after how many rounds")


ARRAY_AXES = {
    "rows": "K B", "models": "K M", "counters": "K N", "sizes": "K", "influence": "K K", "label_counts": "K C",
    "extra/kin": "K K", "extra/kin_peers": "K p", "extra/kin_weights": "K p+1", "extra/kin_of_peers": "K P",
    "extra/learned_graphs": "r K K", "extra/learned_rounds": "r", "extra/edge_traffic": "E 2",
    "extra/roc": "K 22", "extra/calibration": "K 3 10", "extra/blend_weights": "K J", "extra/blend_sizes": "J", "extra/statistics": "K q",
    "extra/alone_roc": "K 22", "extra/alone_calibration": "K 3 10", "extra/start_kin": "s M", "extra/start_fedavg": "1 M",
}  # fmt: skip
"""The axes of every array of a result. K: clients, C: classes, P: clients of the run that newcomers joined, J: both, E: entries of
the graph's adjacency; other letters stand for one number throughout."""
WHOLE_NUMBERS = (
    "sizes",
    "extra/blend_sizes",
    "counters",
    "label_counts",
    "extra/kin_peers",
    "extra/learned_rounds",
    "extra/edge_traffic",
)
"""Whole numbers from 0; all others are floating-point numbers."""
MAY_DIVERGE = ("rows", "models", "extra/start_kin", "extra/start_fedavg")
"""Weights, where NaN is no sign of damage; all others are finite."""


def check_tensors(path: Path, tensors: Mapping[str, Tensor], axes: Mapping[str, int]) -> None:
    """The tensors of a result: those it needs, and each with the axes, kind and range of its numbers."""

    def fault(name: str, what: str) -> FedkinError:
        return FedkinError(f"{path} is no result: {name!r} {what}")

    for name, needed in {"rows": True, "sizes": True, "counters": "models" in tensors}.items():
        if needed and name not in tensors:
            raise fault(name, "is missing")
    known = dict(axes)
    for name, text in ARRAY_AXES.items():
        if name not in tensors:
            continue
        value, letters = tensors[name], text.split()
        fits = value.ndim == len(letters)
        for letter, size in zip(letters, value.shape if fits else ()):
            base, _, more = letter.partition("+")
            due = int(base) if base.isdigit() else known.setdefault(base, size - int(more or 0))
            fits &= size == due + int(more or 0)
        if not fits:
            told = " × ".join(str(known.get(letter, letter)) for letter in letters)
            raise fault(name, f"has shape {tuple(value.shape)}, not {told}")
        if value.is_floating_point() == (name in WHOLE_NUMBERS):
            raise fault(name, f"holds {value.dtype}")
        if name in WHOLE_NUMBERS and value.numel() and int(value.min()) < 0:
            raise fault(name, "is negative")
        if name not in MAY_DIVERGE and value.is_floating_point() and not bool(value.isfinite().all()):
            raise fault(name, "holds NaN or infinity")
    peers = tensors.get("extra/kin_peers")
    if peers is not None and peers.numel() and int(peers.max()) >= axes["K"]:
        raise fault("extra/kin_peers", "names a client that there is not")
