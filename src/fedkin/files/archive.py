"""Arrays from .npz files of unknown origin: everything is checked before it is unpacked, and nothing is unpickled."""

from __future__ import annotations

import math
import stat
import zipfile
import zlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import numpy as np

from fedkin.errors import FedkinError

UNPACKED_LIMIT = 2**32
"""Bytes that the arrays of one archive may take together once unpacked."""
FREE = 2**26
"""Up to so many bytes an archive may unpack to however small it is: a complete graph is all ones."""
RATIO = 20.0
"""Above that, how many times larger than the archive its arrays may be."""


def write_archive(file: IO[bytes], arrays: Mapping[str, np.ndarray], compress: bool = True) -> None:
    """Arrays as .npz into an open file (see `fedkin.files.whole`)."""
    (np.savez_compressed if compress else np.savez)(file, **arrays)  # type: ignore[arg-type]


def write_array(file: IO[bytes], array: np.ndarray) -> None:
    """An array as .npy into an open file. numpy itself would write past Python, and not say why it could not."""
    np.save(SimpleNamespace(write=file.write), array, allow_pickle=False)


def read_archive(
    path: str | PathLike[str],
    what: str,
    wanted: Mapping[str, tuple[str, int]],
    limit: int = UNPACKED_LIMIT,
    ratio: float = RATIO,
) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, checked: `wanted` maps a name to the kinds of numbers ("iu", "f", "U", …) and dimensions.

    Members that nobody asked for, arrays of objects, archives that unpack to more than `limit` bytes or to more than
    `ratio` times their size are refused by what their headers say, before anything is unpacked; floats must be finite.
    A member may be absent: who needs it says so. `what` names the file in messages ("a client graph").
    """
    try:
        file = Path(path)
        if not file.exists():
            raise FedkinError(f"{path} does not exist; give the path of an .npz file")
        if not stat.S_ISREG(file.stat().st_mode):
            raise FedkinError(f"{path}: not {what}: no regular file")
        with zipfile.ZipFile(file) as archive:
            members = _members(archive, str(path), what, wanted)
            total = sum(member.file_size for member in members.values())
            if total > limit:
                raise FedkinError(f"{path}: unpacks to {total:,} bytes, more than the limit of {limit:,}")
            if total > max(FREE, ratio * file.stat().st_size):
                raise FedkinError(f"{path}: unpacks to {total:,} bytes, more than {ratio:g} times its size")
            return {name: _array(archive, member, name, *wanted[name]) for name, member in members.items()}
    except FedkinError:
        raise
    except (OSError, KeyError, ValueError, EOFError, NotImplementedError, RuntimeError) as problem:
        raise FedkinError(f"{path}: not {what}: {problem}") from None
    except (zipfile.BadZipFile, zlib.error) as problem:
        raise FedkinError(f"{path}: not {what}, or damaged: {problem}") from None


def _members(archive: zipfile.ZipFile, path: str, what: str, wanted: Mapping[str, Any]) -> dict[str, zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name not in wanted or name in found:
            raise FedkinError(f"{path}: not {what}: it has the member {name!r}, where {', '.join(wanted)} are expected")
        found[name] = member
    return found


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, kinds: str, dimensions: int) -> np.ndarray:
    """One array: its header is read and compared with the member's size first."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if dtype.hasobject or dtype.kind not in kinds:
            raise ValueError(f"{name!r} holds {dtype}")
        if len(shape) != dimensions or min(shape, default=0) < 0:
            raise ValueError(f"{name!r} has shape {shape}, not {dimensions} dimensions")
        size = math.prod(shape) * dtype.itemsize
        if size != member.file_size - file.tell():
            raise ValueError(f"{name!r} of shape {shape} does not fit into its {member.file_size} bytes")
        content = file.read(size)
    array = np.frombuffer(content, dtype=dtype, count=math.prod(shape)).reshape(shape, order="F" if fortran else "C")
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{name!r} holds NaN or infinity")
    return array
