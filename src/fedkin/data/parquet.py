"""Parquet files of numbers as a federation: columns stay in their own type, and in a mapped file where memory is short."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from fedkin.errors import FedkinError, unknown
from fedkin.federation import Federation, Rescaling, Split
from fedkin.federation.datasets import ROOM, memory_left
from fedkin.federation.table import groups
from fedkin.federation.unread import Unread, mapped


def from_parquet(
    path: str | os.PathLike[str],
    client: str,
    target: str,
    inputs: list[str] | None = None,
    standardise: bool = True,
    lazy: bool | Literal["auto"] = "auto",
    folder: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Federation:
    """A federation from a Parquet file whose input columns are numbers without gaps (`from_csv` takes raw tables).

    `inputs` names the input columns (default: all others). They are read one row group after the other into one array of
    their common type (uint8 stays uint8), never as floats; with `lazy`, or where memory could not hold it four times, into a
    temporary file in `folder` that is mapped into memory. `standardise`: inputs of mean 0 and deviation 1 over all training rows, batch by batch.
    `options` are those of `Federation.from_arrays`.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as problem:
        raise FedkinError("Parquet files need pyarrow; install it with: pip install 'fedkin[parquet]'") from problem
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as problem:
        raise FedkinError(f"{path} cannot be read as Parquet: {str(problem).splitlines()[0]}") from problem
    schema = file.schema_arrow
    for role, name in (("client column", client), ("target column", target), *(("column", n) for n in inputs or ())):
        if name not in schema.names:
            raise unknown(role, name, schema.names)
    chosen = [name for name in schema.names if name not in (client, target)] if inputs is None else list(inputs)
    types = {}
    for name in chosen:
        kind = schema.field(name).type
        if not (pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)):
            raise FedkinError(
                f"{path}: column {name!r} holds {kind}, not numbers; leave it out of inputs, or use from_csv"
            )
        types[name] = np.dtype(kind.to_pandas_dtype())
    if not chosen:
        raise FedkinError(f"{path} has no input columns beside client and target; it needs at least one")
    ends = file.read([client, target]).to_pandas()
    gaps = [str(name) for name in ends.columns if ends[name].isna().any()]
    if gaps:
        raise FedkinError(f"{path}: column {gaps[0]!r} has empty cells; drop these rows or fill them in")
    x = _columns(file, chosen, np.result_type(*types.values()), lazy, folder)
    y = ends[target].to_numpy()
    y = np.array([str(value) for value in y]) if y.dtype.kind == "O" else y
    view: Any = Unread.over(x) if mapped(x) else None
    own = groups(ends[client])
    clients = {name: (x[rows] if view is None else view.take(rows), y[rows]) for name, rows in own.items()}
    federation = Federation.from_arrays(clients, **options)
    return _standardised(federation) if standardise else federation


def _columns(file: Any, names: list[str], dtype: np.dtype[Any], lazy: bool | str, folder: Any) -> np.ndarray:
    """The columns side by side, (rows, columns), in memory or in a mapped file that goes with the last use of it."""
    shape = file.metadata.num_rows, len(names)
    if lazy is False or (lazy == "auto" and ROOM * shape[0] * shape[1] * dtype.itemsize <= memory_left()):
        x = np.empty(shape, dtype=dtype)
    else:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="fedkin-") as scratch:
            x = np.memmap(scratch.name, dtype=dtype, mode="w+", shape=shape)
    start = 0
    for number in range(file.num_row_groups):
        part = file.read_row_group(number, columns=names)
        for column, name in enumerate(names):
            if part[name].null_count:
                raise FedkinError(f"column {name!r} has empty cells; fill them in, or use from_csv")
            x[start : start + part.num_rows, column] = part[name].to_numpy()
        start += part.num_rows
    return x


def _standardised(federation: Federation) -> Federation:
    """Inputs of mean 0 and deviation 1 over the training rows of all clients; a constant one becomes 0."""
    total = square = np.zeros(federation.task.input_shape)
    for block in federation.train.blocks():
        total, square = (
            total + block.sum(axis=0, dtype=np.float64),
            square + (block.astype(np.float64) ** 2).sum(axis=0),
        )
    n = len(federation.train.y)
    mean = total / n
    deviation = np.sqrt(np.maximum(square / n - mean**2, 0))
    scaling = Rescaling(1.0, mean, np.where(deviation > 1e-12, deviation, 1.0))

    def scaled(split: Split) -> Split:
        return replace(split, scaling=scaling)

    train, validation, test = (scaled(s) for s in (federation.train, federation.validation, federation.test))
    return replace(federation, train=train, validation=validation, test=test)
