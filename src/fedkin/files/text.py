"""Text and JSON: values as JSON can hold them, and files that are read only if they are files."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.errors import FedkinError
from fedkin.files.atomic import write_atomic

OWN_FUNCTION = "own function "
PLAIN = {str, int, bool, type(None)}
"""What JSON holds as it is."""
TEXT_LIMIT = 2**31
"""Bytes above which a text or JSON file is refused."""


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, as_json(value, indent=1))


def as_json(value: Any, indent: int | None = None) -> bytes:
    """A value as JSON (see `plain`), with a line's end."""
    try:
        text = json.dumps(value, default=plain, allow_nan=False, ensure_ascii=False, indent=indent)
    except (TypeError, ValueError):  # it holds NaN or infinity, or keys that are no text
        text = json.dumps(plain(value), ensure_ascii=False, indent=indent)
    return (text + "\n").encode()


def read_text(path: Path, limit: int = TEXT_LIMIT) -> str:
    """The text of a regular file; a pipe, a device or a folder is refused, since reading it may never end."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise FedkinError(f"{path} is no regular file; put the original back")
        if found.st_size > limit:
            raise FedkinError(f"{path} has {found.st_size:,} bytes, more than {limit:,}; it is not one of ours")
        return path.read_bytes().decode()
    except FileNotFoundError as problem:
        raise FedkinError(f"{path} does not exist") from problem
    except OSError as problem:
        raise FedkinError(f"{path} cannot be read: {problem.strerror or problem}") from problem
    except UnicodeDecodeError as problem:
        raise FedkinError(f"{path} is damaged: {problem.reason} at byte {problem.start}") from problem


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object."""
    try:
        found = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as problem:
        raise FedkinError(f"{path} is damaged: {problem}") from problem
    if not isinstance(found, dict):
        raise FedkinError(f"{path} is damaged: it holds a {type(found).__name__}, not an object")
    return found


def plain(value: Any) -> Any:
    """A value as JSON can hold it: arrays as lists, NaN and infinity as null, a function by its name."""
    if hasattr(value, "detach"):  # a tensor, told without torch, which takes seconds to import
        value = value.detach().numpy()
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {
            str(key): entry if type(entry) in PLAIN or (type(entry) is float and math.isfinite(entry)) else plain(entry)
            for key, entry in value.items()
        }
    if isinstance(value, list | tuple | set):
        kinds = set(map(type, value))  # one value per client is the common case, and there may be a million
        if kinds == {float}:
            return [entry if math.isfinite(entry) else None for entry in value]
        return list(value) if kinds <= PLAIN else [plain(entry) for entry in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if callable(value):
        return OWN_FUNCTION + getattr(value, "__name__", type(value).__name__)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def versions() -> dict[str, str]:
    """The versions that matter for repeating a run."""
    import platform

    import scipy
    import sklearn
    import torch

    import fedkin

    return {
        "fedkin": fedkin.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
    }
