"""Tensors on disk: plain safetensors, and beside them a JSON file with facts and the checksum that ties the two together."""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, TypeAdapter
from torch import Tensor

from fedkin.errors import FedkinError
from fedkin.files.atomic import Bytes, abandoned, pour, put_in_place, whole, write_atomic
from fedkin.files.manifest import digest
from fedkin.files.text import as_json, read_json

Write = Callable[[Path, Bytes | Iterable[Bytes]], str]
"""How a file is written that changes together with others, and what its SHA-256 is: `FileBatch.write`."""

PIECE = 2**26
"""Bytes of a tensor that are written at a time."""

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_CODES = {dtype: name for name, dtype in _DTYPES.items()}


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    facts: Mapping[str, Any],
    after_piece: Callable[[], None] | None = None,
    write: Write | None = None,
) -> None:
    """Tensors as safetensors, and beside them a JSON file with `facts` and the checksum that ties the two together.

    A tensor whose rows are all one row (FedAvg's global model seen K times) is stored once. Tensors are written piece by
    piece, never gathered in memory; `after_piece` is called after each. The JSON file takes its place first (see `finish_commit`).
    """
    repeated = {name: len(t) for name, t in tensors.items() if t.ndim > 1 and len(t) > 1 and t.stride(0) == 0}
    compact = {name: (t[:1] if name in repeated else t).detach().contiguous() for name, t in tensors.items()}
    pieces, beside = _safetensors(compact, after_piece), path.with_suffix(".json")
    if write is not None:
        write(beside, as_json({"sha256": write(path, pieces), "repeated": repeated, **facts}))
        return
    with whole(path) as file:
        checksum, _ = pour(pieces, file)
        file.flush()
        os.fsync(file.fileno())
        write_atomic(beside, as_json({"sha256": checksum, "repeated": repeated, **facts}))


def _safetensors(tensors: Mapping[str, Tensor], after_piece: Callable[[], None] | None) -> Iterator[Bytes]:
    """A safetensors file in pieces: 8 bytes that say how long the header is, the header (JSON), the tensors' memory."""
    order = [name for _, name in sorted([(-t.element_size(), name) for name, t in tensors.items()])]  # all aligned
    header: dict[str, Any] = {}
    end = 0
    for name in order:
        start, end = end, end + tensors[name].numel() * tensors[name].element_size()
        header[name] = {
            "dtype": _CODES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        memory = _memory(tensors[name]) if tensors[name].numel() else memoryview(b"")
        for at in range(0, len(memory), PIECE):
            yield memory[at : at + PIECE]
            if after_piece is not None:
                after_piece()


def _memory(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor. Of one entry any stride counts as contiguous, but only stride 1 as bytes."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data


class TensorFacts(BaseModel):
    """What the header of a safetensors file says of one tensor."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dtype: str
    shape: list[NonNegativeInt] = Field(max_length=16)
    data_offsets: list[NonNegativeInt] = Field(min_length=2, max_length=2)


_HEADER = TypeAdapter(dict[str, TensorFacts])
_REPEATED = TypeAdapter(dict[str, NonNegativeInt])


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote; FedkinError if the pair is incomplete or damaged.

    The tensors see the file through a private mapping: they are loaded when they are used, and writing to them leaves the
    file as it is.
    """
    finish_commit(path)
    facts = read_json(path.with_suffix(".json"))
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would block
            raise FedkinError(f"{path} is no regular file; put the original back")
        with open(path, "rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as problem:
        raise (
            problem if isinstance(problem, FedkinError) else FedkinError(f"{path} cannot be read: {problem}")
        ) from None
    if checksum != facts.pop("sha256", None):
        raise FedkinError(f"{path} is damaged (its checksum does not match); use an earlier checkpoint")
    try:
        tensors = _tensors(memory)
        for name, count in _REPEATED.validate_python(facts.pop("repeated", {})).items():
            tensors[name] = tensors[name].expand(count, *tensors[name].shape[1:])
    except (
        ValueError,
        KeyError,
        RuntimeError,
        OverflowError,
        RecursionError,
    ) as problem:  # crafted, with a checksum that fits
        first = str(problem).strip().split("\n")[0]
        raise FedkinError(f"{path} is no file of tensors that fedkin wrote: {first}") from problem
    return tensors, facts


def finish_commit(path: Path, owned: bool = False) -> None:
    """Finish what a killed writer had all but done: the JSON file is in place, its tensors wait under their temporary name.

    The JSON file goes first (`FileBatch.commit`), and holds the checksum by which the tensors that belong to it are known.
    Without this, a kill between the two renames would leave a new JSON file with the tensors of an earlier result.
    """
    for part in abandoned(path.parent, f".{escape(path.name)}.*.part", owned):
        with suppress(FedkinError):  # a damaged JSON file is its reader's matter
            if read_json(path.with_suffix(".json")).get("sha256") == digest(part):
                put_in_place(part, path)


def _tensors(memory: mmap.mmap) -> dict[str, Tensor]:
    """The tensors in a mapped safetensors file; every number of its header is checked against the file's length."""
    first = 8 + int.from_bytes(memory[:8], "little")
    if first > len(memory):
        raise ValueError("its header is longer than the file")
    tensors: dict[str, Tensor] = {}
    for name, told in _HEADER.validate_python(json.loads(memory[8:first])).items():
        if told.dtype not in _DTYPES:
            raise ValueError(f"{name!r} has the unknown type {told.dtype!r}")
        dtype, count, (start, end) = _DTYPES[told.dtype], math.prod(told.shape), told.data_offsets
        if end - start != count * dtype.itemsize or first + end > len(memory):
            raise ValueError(f"{name!r} of shape {told.shape} does not fit into its {end - start} bytes")
        flat = torch.empty(0, dtype=dtype)
        if count:
            flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=first + start)
        tensors[name] = flat.view(told.shape)
    return tensors
