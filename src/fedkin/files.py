"""Writing files so that a crash, a full disk or a second reader never sees half of one."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.errors import FedkinError

Bytes = bytes | memoryview


def write_atomic(path: Path, content: Bytes | Iterable[Bytes]) -> None:
    """Write a whole file or nothing: to a temporary name, synced, then renamed. The content may come in pieces."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            file.writelines([content] if isinstance(content, Bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as problem:
        with suppress(OSError):
            temporary.unlink()
        if problem.errno == errno.ENOSPC:
            raise FedkinError(f"the disk is full, {path} was not written; free some space and resume") from problem
        raise


def append(path: Path, pieces: Iterable[Bytes]) -> None:
    """Add to the end of a file, synced. After a crash part of it may be there: a reader must know a whole line."""
    try:
        with open(path, "ab") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        if problem.errno == errno.ENOSPC:
            raise FedkinError(f"the disk is full, {path} is incomplete; free some space and resume") from problem
        raise


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(plain(value), indent=1, ensure_ascii=False) + "\n").encode())


OWN_FUNCTION = "own function "


def plain(value: Any) -> Any:
    """A value as JSON can hold it: arrays as lists, NaN and infinity as null, a function by its name."""
    if isinstance(value, Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set):
        kinds = set(map(type, value))  # one value per client is the common case, and there may be a million
        if kinds == {float}:
            return [entry if math.isfinite(entry) else None for entry in value]
        return list(value) if kinds <= {str, int, bool} else [plain(entry) for entry in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if callable(value):
        return OWN_FUNCTION + getattr(value, "__name__", type(value).__name__)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


PIECE = 2**26
"""Bytes of a tensor that are written at a time."""

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], after_piece: Callable[[], None] | None = None
) -> None:
    """Tensors as safetensors, and beside them a JSON file with `facts` and the checksum that ties the two together.

    A tensor whose rows are all one row (FedAvg's global model seen K times) is stored once. Tensors are written piece by
    piece, never gathered in memory; `after_piece` is called after each.
    """
    repeated = {name: len(t) for name, t in tensors.items() if t.ndim > 1 and len(t) > 1 and t.stride(0) == 0}
    compact = {name: (t[:1] if name in repeated else t).detach().contiguous() for name, t in tensors.items()}
    checksum = hashlib.sha256()

    def content() -> Iterator[Bytes]:
        for piece in _safetensors(compact):
            checksum.update(piece)
            yield piece
            if after_piece is not None:
                after_piece()

    write_atomic(path, content())
    found = {"sha256": checksum.hexdigest(), "repeated": repeated, **facts}
    write_atomic(path.with_suffix(".json"), (json.dumps(plain(found), ensure_ascii=False) + "\n").encode())


def _safetensors(tensors: Mapping[str, Tensor]) -> Iterator[Bytes]:
    """A safetensors file in pieces: 8 bytes that say how long the header is, the header (JSON), the tensors' memory."""
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # so that all are aligned
    code = {dtype: name for name, dtype in _DTYPES.items()}
    header: dict[str, Any] = {}
    end = 0
    for name in order:
        start, end = end, end + tensors[name].numel() * tensors[name].element_size()
        header[name] = {
            "dtype": code[tensors[name].dtype],
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


def _memory(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor. Of one entry any stride counts as contiguous, but only stride 1 as bytes."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote; FedkinError if the pair is incomplete or damaged.

    The tensors see the file through a private mapping: they are loaded when they are used, and writing to them leaves the
    file as it is.
    """
    try:
        facts = json.loads(path.with_suffix(".json").read_text())
        with open(path, "rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as problem:
        raise FedkinError(f"{path} cannot be read: {problem}") from problem
    if checksum != facts.pop("sha256", None):
        raise FedkinError(f"{path} is damaged (its checksum does not match); use an earlier checkpoint")
    first = 8 + int.from_bytes(memory[:8], "little")
    tensors: dict[str, Tensor] = {}
    for name, told in json.loads(memory[8:first]).items():
        dtype, count = _DTYPES[told["dtype"]], math.prod(told["shape"])
        flat = torch.empty(0, dtype=dtype)
        if count:
            flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=first + told["data_offsets"][0])
        tensors[name] = flat.view(told["shape"])
    for name, count in facts.pop("repeated").items():
        tensors[name] = tensors[name].expand(count, *tensors[name].shape[1:])
    return tensors, facts


def versions() -> dict[str, str]:
    """The versions that matter for repeating a run."""
    import platform

    import scipy
    import sklearn

    import fedkin

    return {
        "fedkin": fedkin.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
    }
