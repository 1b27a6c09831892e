"""Files: written whole or not at all, read as if a stranger had written them.

`atomic` is the one writer, `archive` and `tensors` read arrays, `manifest` says which files belong to a directory, `lock`
gives a directory or file one owner at a time.
"""

from fedkin.files.atomic import Bytes, append, clean_up, whole, write_atomic
from fedkin.files.lock import Lock
from fedkin.files.manifest import MANIFEST, Batch, Manifest
from fedkin.files.plain import OWN_FUNCTION, plain, read_json, read_text, versions, write_json
from fedkin.files.tensors import read_tensors, write_tensors

__all__ = [
    "MANIFEST",
    "OWN_FUNCTION",
    "Batch",
    "Bytes",
    "Lock",
    "Manifest",
    "append",
    "clean_up",
    "plain",
    "read_json",
    "read_tensors",
    "read_text",
    "versions",
    "whole",
    "write_atomic",
    "write_json",
    "write_tensors",
]
