"""Hugging Face data sets as clients: one `datasets.Dataset` per client, or one that a partitioner of Flower's cuts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedkin.errors import FedkinError, unknown
from fedkin.federation.given import as_array

SPLITS = ("train", "validation", "test")


def arrays_of(source: Any, inputs: str, target: str) -> dict[str, Any]:
    """Client → (x, y), or → {split: (x, y)}: what `Federation.from_arrays` takes.

    `source` is a mapping client → Dataset (or DatasetDict with train, validation, test), a partitioner of flwr-datasets
    with its data set, or a `FederatedDataset`. `inputs` and `target` name columns; several input columns of numbers are
    joined by commas and put side by side.
    """
    return {name: _client(name, held, inputs, target) for name, held in _clients(source).items()}


def _clients(source: Any) -> dict[str, Any]:
    if isinstance(source, Mapping) and not _is_dataset(source):
        return {str(name): held for name, held in source.items()}
    if hasattr(source, "load_partition"):
        count = _partitions(source)
        width = len(str(count - 1))
        return {f"client-{k:0{width}d}": source.load_partition(k) for k in range(count)}
    raise FedkinError(
        f"from_hf takes {{client: Dataset}}, a partitioner of flwr-datasets or a FederatedDataset, not {type(source).__name__}"
    )


def _partitions(source: Any) -> int:
    """How many partitions a partitioner, or the first of a FederatedDataset's, makes."""
    known = getattr(source, "partitioners", None)
    cutter = next(iter(known.values())) if known else source
    if known and len(known) > 1:
        raise FedkinError(f"from_hf: the FederatedDataset partitions several splits ({', '.join(known)}); give one")
    if known:
        source.load_partition(0)  # it hands its data over to the partitioner when it is first asked
    return int(cutter.num_partitions)


def _is_dataset(held: Any) -> bool:
    return hasattr(held, "column_names")


def _client(name: str, held: Any, inputs: str, target: str) -> Any:
    splits = {key: held[key] for key in SPLITS if key in held} if isinstance(held, Mapping) else {}
    if splits:
        return {key: _columns(name, split, inputs, target) for key, split in splits.items()}
    if not _is_dataset(held):
        raise FedkinError(f"client {name!r}: a datasets.Dataset is needed, not {type(held).__name__}")
    return _columns(name, held, inputs, target)


def _columns(name: str, split: Any, inputs: str, target: str) -> tuple[np.ndarray, np.ndarray]:
    wanted = [column.strip() for column in inputs.split(",")]
    for column in (*wanted, target):
        if column not in split.column_names:
            raise unknown(f"column of client {name!r}", column, split.column_names)
    x = [_array(name, column, split) for column in wanted]
    if len(x) > 1:
        x = [np.column_stack([values.reshape(len(values), -1) for values in x])]
    return x[0], _array(name, target, split)


def _array(name: str, column: str, split: Any) -> np.ndarray:
    """A column as an array: numbers, pictures (H, W) or (H, W, C) as (C, H, W) in [0, 1], and names of classes."""
    values = split[column][:] if len(split) else []
    if len(values) and hasattr(values[0], "getbands"):  # a PIL picture
        pictures = as_array(name, column, [np.asarray(picture) for picture in values])
        channels = pictures[:, None] if pictures.ndim == 3 else pictures.transpose(0, 3, 1, 2)
        return np.ascontiguousarray(channels, dtype=np.float32) / 255
    feature = split.features.get(column)
    if hasattr(feature, "int2str") and hasattr(feature, "names"):
        return np.array([feature.int2str(int(code)) for code in values])
    return as_array(name, column, values)
