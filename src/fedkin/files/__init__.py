"""Files: written whole or not at all, read as if a stranger had written them.

`atomic` is the one writer, `archive` and `tensors` read arrays, `manifest` says which files belong to a directory, `lock`
gives a directory or file one owner at a time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedkin.files.atomic import Bytes, append, clean_up, owner_only, whole, whole_folder, write_atomic
    from fedkin.files.lock import Lock
    from fedkin.files.manifest import MANIFEST, FileBatch, Manifest
    from fedkin.files.tensors import read_tensors, write_tensors
    from fedkin.files.text import OWN_FUNCTION, as_json, plain, read_json, read_text, versions, write_json

__all__ = [
    "MANIFEST",
    "OWN_FUNCTION",
    "Bytes",
    "FileBatch",
    "Lock",
    "Manifest",
    "append",
    "as_json",
    "clean_up",
    "owner_only",
    "plain",
    "read_json",
    "read_tensors",
    "read_text",
    "versions",
    "whole",
    "whole_folder",
    "write_atomic",
    "write_json",
    "write_tensors",
]

_ROOMS = ("text", "atomic", "lock", "manifest", "tensors")


def __getattr__(name: str) -> Any:
    """Each part when it is asked for: graphs are written without torch, which `tensors` needs."""
    for room in _ROOMS if name in __all__ else ():
        found = vars(import_module(f"{__name__}.{room}")).get(name)
        if found is not None:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
