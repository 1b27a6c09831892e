"""The cache: raw arrays of every prepared data set as plain .npy files, written completely or not at all.

Layout: `<cache>/<set>/<kind of source>/<array>.npy` and `meta.json`. `$FEDKIN_CACHE` moves it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from fedkin.errors import FedkinError
from fedkin.files import whole, whole_folder, write_json
from fedkin.files.archive import write_array
from fedkin.files.atomic import bring_back


def cache_folder() -> Path:
    """`$FEDKIN_CACHE`, or the platform's cache folder for fedkin."""
    given = os.environ.get("FEDKIN_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(platformdirs.user_cache_dir("fedkin"))


def version_of(files: Mapping[str, Path]) -> str:
    """A short name for these versions of these files (name, size, time of change)."""
    text = json.dumps([(name, path.stat().st_size, path.stat().st_mtime_ns) for name, path in sorted(files.items())])
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def read_meta(folder: Path) -> dict[str, Any] | None:
    """What was prepared in this cache folder, or None."""
    bring_back(folder)
    try:
        return dict(json.loads((folder / "meta.json").read_text()))
    except (OSError, ValueError):
        return None


def write_cache(folder: Path, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Put arrays and meta.json into `folder` in one step."""
    with guarded(folder), whole_folder(folder) as fresh:
        for name, array in arrays.items():
            with whole(fresh / f"{name}.npy") as file:
                write_array(file, array)
        write_json(fresh / "meta.json", {**meta, "arrays": sorted(arrays)})


def read_cache(folder: Path, names: list[str]) -> dict[str, np.ndarray]:
    """The arrays of a cache folder, mapped into memory (nothing is read before it is used)."""
    bring_back(folder)
    try:
        return {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in names}
    except (OSError, ValueError, EOFError) as problem:
        raise FedkinError(
            f"the cache in {folder} is damaged ({problem}); prepare it again: "
            f"fedkin data prepare {folder.parent.name} --force"
        ) from problem


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Turn the operating system's errors (disk full, no permission) into one clear line."""
    try:
        yield
    except OSError as problem:
        if problem.errno == errno.ENOSPC:
            raise FedkinError(f"disk full while writing to {folder}; free some space or set FEDKIN_CACHE") from problem
        raise FedkinError(f"cannot write to {folder}: {problem}; set FEDKIN_CACHE to another folder") from problem
