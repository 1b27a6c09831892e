"""A site's own files: site.toml, and the data it points at.

state = "state"                 # where private state and models go (default: state, beside this file)
trust = ["myapp"]               # packages whose models ("myapp.nets:small") and tasks the server may name

[policy]                        # what may leave; see `policy`
letters = ["predictions"]

[[clients]]
name = "north"
data = "north.csv"              # CSV with a header, or NPZ with x and y (and x_test, y_test, x_validation, y_validation)
target = "outcome"              # the column to predict (CSV)
drop = ["id"]                   # columns to leave out (CSV)
missing = [-999]                # cells that stand for missing ones (CSV, with `prepare`, like all of the next line)
date = ["admitted"]             # columns of dates; also sep = ";", encoding = "latin-1", decimal = ","
model = "tree:5"                # this client's own model, for methods that exchange predictions
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, model_validator

from fedkin.engines.flower.policy import Policy
from fedkin.engines.flower.raw_table import encoded_table
from fedkin.errors import FedkinError, unknown
from fedkin.task import Scale


class ClientFile(BaseModel):
    """One client of a site, as site.toml has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    data: str
    target: str = "y"
    drop: list[str] = []
    missing: list[str | int | float] = []
    date: list[str] = []
    sep: str | None = None
    encoding: str | None = None
    decimal: str = "."
    model: str | None = None


class SiteFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    clients: list[ClientFile]
    state: str = "state"
    audit: str = "audit.jsonl"
    """Where every array that left is written down."""
    disclose: bool = False
    """As in [policy], where it belongs."""
    trust: list[str] = []
    policy: Policy = Policy()

    @model_validator(mode="after")
    def _one_word(self) -> SiteFile:
        """`disclose` outside [policy], as older files have it."""
        if self.disclose and not self.policy.disclose:
            object.__setattr__(self, "policy", self.policy.model_copy(update={"disclose": True}))
        return self


def load_arrays(
    client: ClientFile, folder: Path, scheme: Sequence[Mapping[str, Any]] = (), scale: Scale | None = None
) -> Any:
    """The samples of a client as `Federation.from_arrays` takes them; a raw table by the agreed scheme."""
    path = folder / client.data
    try:
        if scheme:
            return encoded_table(client, folder, scheme, scale)
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                found = {key: file[key] for key in file.files}
            if "x" not in found or "y" not in found:
                raise FedkinError(f"client {client.name!r}: {path} has no arrays x and y")
            return _splits(client, found)
        if path.suffix == ".csv":
            x, _, y = inputs(client, folder)
            return x, y
    except (OSError, ValueError) as problem:
        if isinstance(problem, FedkinError):
            raise
        raise FedkinError(f"client {client.name!r}: {path} cannot be read: {problem}") from problem
    raise FedkinError(f"client {client.name!r}: {path} must end in .csv or .npz")


def _splits(client: ClientFile, found: Mapping[str, np.ndarray]) -> Any:
    """x and y alone, or the client's own split where the file has x_test and y_test (and x_validation, y_validation)."""
    named = {"train": "", "validation": "_validation", "test": "_test"}
    for end in named.values():
        if (f"x{end}" in found) != (f"y{end}" in found):
            raise FedkinError(f"client {client.name!r}: {client.data} has only one of x{end} and y{end}")
    if "x_validation" in found and "x_test" not in found:
        raise FedkinError(
            f"client {client.name!r}: {client.data} has x_validation but no x_test; add it, or leave out both"
        )
    if "x_test" not in found:
        return found["x"], found["y"]
    return {part: (found[f"x{end}"], found[f"y{end}"]) for part, end in named.items() if f"x{end}" in found}


def told_of(client: ClientFile, folder: Path, samples: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
    """What a site says of a client at the start: name, shapes, columns, labels, model."""
    x, y = samples
    told = {
        "name": client.name,
        "input_shape": list(x.shape[1:]) or [1],
        "output_shape": list(y.shape[1:]),
        "columns": inputs(client, folder)[1] if client.data.endswith(".csv") else None,
        "model": client.model,
    }
    return told | ({"labels": np.unique(y).tolist()} if y.dtype.kind in "biuUSO" else {})


def table_faults(client: ClientFile, folder: Path) -> list[str]:
    """All that keeps a client's table from being trained on, one line each."""
    import pandas as pd

    try:
        frame = pd.read_csv(folder / client.data)
    except (OSError, ValueError) as problem:
        told = getattr(problem, "strerror", None) or " ".join(str(problem).split())
        return [f"{client.data} cannot be read: {told}"]
    found = []
    for role, column in (("target", client.target), *(("drop", column) for column in client.drop)):
        if column not in frame.columns:
            fault = str(unknown("column", column, frame.columns)).removeprefix(f"unknown column {column!r}; ")
            found.append(f"{client.data} has no column {column!r} ({role}); {fault}")
    left = frame.drop(columns=[client.target, *client.drop], errors="ignore")
    for column in left.columns if client.target in frame.columns else ():
        if left[column].dtype.kind not in "biuf":
            found.append(f"column {str(column)!r} is not numeric; encode it or put it in drop")
        elif absent := int(left[column].isna().sum()):
            found.append(f"column {str(column)!r} has {absent} empty cells; fill them in or put it in drop")
    if client.target in frame.columns and (absent := int(frame[client.target].isna().sum())):
        found.append(f"the target {client.target!r} has {absent} empty cells; drop these rows or fill them in")
    if not len(frame):
        found.append(f"{client.data} has no rows")
    return found


def inputs(client: ClientFile, folder: Path) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Inputs (n, M), their columns, and targets (n,) of a table."""
    import pandas as pd

    frame = pd.read_csv(folder / client.data)
    for column in (client.target, *client.drop):
        if column not in frame.columns:
            raise FedkinError(f"client {client.name!r}: {client.data} has no column {column!r}")
    inputs = frame.drop(columns=[client.target, *client.drop])
    for column in inputs.columns:
        if inputs[column].dtype.kind not in "biuf":
            raise FedkinError(f"client {client.name!r}: column {column!r} is not numeric; encode it or put it in drop")
    return inputs.to_numpy(dtype=np.float32), [str(c) for c in inputs.columns], frame[client.target].to_numpy()
