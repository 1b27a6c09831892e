"""Writing files so that a crash, a full disk or a second reader never sees half of one."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.errors import FedkinError


def write_atomic(path: Path, content: bytes) -> None:
    """Write a whole file or nothing: to a temporary name, synced, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as problem:
        with suppress(OSError):
            temporary.unlink()
        if problem.errno == errno.ENOSPC:
            raise FedkinError(f"the disk is full, {path} was not written; free some space and resume") from problem
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
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if callable(value):
        return OWN_FUNCTION + getattr(value, "__name__", type(value).__name__)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Tensors as safetensors, and beside them a JSON file with `facts` and the checksum that ties the two together.

    A tensor whose rows are all one row (FedAvg's global model seen K times) is stored once.
    """
    from safetensors.torch import save

    repeated = {name: len(t) for name, t in tensors.items() if t.ndim > 1 and len(t) > 1 and t.stride(0) == 0}
    compact = {name: (t[:1] if name in repeated else t).detach().contiguous() for name, t in tensors.items()}
    content = save(compact)
    checksum = hashlib.sha256(content).hexdigest()
    write_atomic(path, content)
    write_json(path.with_suffix(".json"), {"sha256": checksum, "repeated": repeated, **facts})


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote; FedkinError if the pair is incomplete or damaged."""
    from safetensors.torch import load

    try:
        facts = json.loads(path.with_suffix(".json").read_text())
        content = path.read_bytes()
    except (OSError, ValueError) as problem:
        raise FedkinError(f"{path} cannot be read: {problem}") from problem
    if hashlib.sha256(content).hexdigest() != facts.pop("sha256", None):
        raise FedkinError(f"{path} is damaged (its checksum does not match); use an earlier checkpoint")
    tensors = load(content)
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
