"""MATLAB files, with one clear line for damaged ones."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from fedkin.errors import FedkinError


def read_matlab(path: Path, *names: str) -> list[Any]:
    """The named variables of a .mat file (version 4 to 7.2)."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(path, variable_names=names)
        return [content[name] for name in names]
    except (MatReadError, KeyError, ValueError, TypeError, OSError, NotImplementedError, zlib.error) as problem:
        raise FedkinError(f"{path}: truncated or damaged MATLAB file ({problem}); get it again") from problem
