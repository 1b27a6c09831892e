"""The one writer: a crash, a full disk or a second reader never sees half of a file."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import IO

from fedkin.errors import FedkinError

Bytes = bytes | memoryview

REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the limit on file sizes is reached (ulimit -f)",
}


@contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of `path` when the block ends well, and leaves no trace otherwise."""
    temporary = part_of(path)
    try:
        with written(path, temporary) as file:
            yield file
        put_in_place(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill that takes the place of `path` when the block ends well, and leaves no trace otherwise.

    What was there goes first: a reader finds the old folder, for a moment none, or the new one. If that moment is a
    process's last, the next writer, or a reader that calls `bring_back`, finds the old one.
    """
    fresh, before = part_of(path), part_of(path.with_name(f"{path.name}.before"))
    path.parent.mkdir(parents=True, exist_ok=True)
    bring_back(path)
    _drop_dead(path)
    _remove(fresh)
    try:
        fresh.mkdir()
        yield fresh
        while fresh.exists():
            with suppress(FileNotFoundError):
                os.replace(path, before)
            try:
                os.replace(fresh, path)
            except OSError as problem:
                if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                _remove(before)  # another process has just put its own there
        sync_folder(path.parent)
    except OSError as problem:
        refuse_full(problem, path, "was not written")
        raise
    finally:
        _remove(fresh)
        _remove(before)


def bring_back(path: Path) -> None:
    """If a writer was killed between taking the old folder away and putting the new one in place: the old one again."""
    for left in abandoned(path.parent, f".{escape(path.name)}.before.*.part"):
        with suppress(OSError):
            if not path.exists():
                os.replace(left, path)


def pour(content: Bytes | Iterable[Bytes], file: IO[bytes]) -> tuple[str, int]:
    """Write what may come in pieces to an open file; returns its SHA-256 and its size."""
    checksum, size = hashlib.sha256(), 0
    for piece in [content] if isinstance(content, Bytes) else content:
        checksum.update(piece)
        size += len(piece)
        file.write(piece)
    return checksum.hexdigest(), size


def write_atomic(path: Path, content: Bytes | Iterable[Bytes]) -> None:
    """Write a whole file or nothing: to a temporary name, synced, then renamed. The content may come in pieces."""
    with whole(path) as file:
        file.writelines([content] if isinstance(content, Bytes) else content)


def append(path: Path, pieces: Iterable[Bytes]) -> None:
    """Add to the end of a file, synced. After a crash part of it may be there: a reader must know a whole line."""
    try:
        with open(path, "ab") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        refuse_full(problem, path, "is incomplete")
        raise


def part_of(path: Path) -> Path:
    """The temporary name under which this process writes `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


@contextmanager
def written(path: Path, temporary: Path) -> Iterator[IO[bytes]]:
    """The temporary file, open for writing and synced at the end; errors speak of `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _drop_dead(path)
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        refuse_full(problem, path, "was not written")
        raise


def refuse_full(problem: OSError, path: Path, outcome: str) -> None:
    """A full disk, a quota and a limit on sizes are no fault of fedkin: say in one line which it was."""
    if problem.errno in REASONS:
        reason = REASONS[problem.errno]
        raise FedkinError(f"{reason}, {path} {outcome}; free some space and start again") from problem


@contextmanager
def owner_only() -> Iterator[None]:
    """Files made meanwhile can be read by their owner alone (600, folders 700)."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def put_in_place(temporary: Path, path: Path) -> None:
    """Give a finished temporary file its name."""
    try:
        os.replace(temporary, path)
    except OSError as problem:
        refuse_full(problem, path, "was not written")
        raise


def sync_folder(folder: Path) -> None:
    """Have renames in this folder on the disk, where the system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def clean_up(folder: Path, owned: bool = True) -> None:
    """Remove what killed writers left in a folder and those below it.

    Only the folder's owner may call this; others may with `owned=False`: what living processes of this machine write stays.
    """
    for left in abandoned(folder, "**/.*.part", owned):
        _remove(left)


def abandoned(folder: Path, pattern: str, owned: bool = False) -> list[Path]:
    """The temporary files of this pattern whose writers are dead; all of them, for the folder's owner."""
    return [left for left in folder.glob(pattern) if owned or not _alive(writer_of(left))]


def writer_of(temporary: Path) -> int:
    """The process that writes under this temporary name; 0, which counts as alive, if it is not one of ours."""
    found = re.search(r"\.(\d+)\.part$", temporary.name)
    return int(found[1]) if found else 0


def _drop_dead(path: Path) -> None:
    """Remove what killed processes of this machine left of this file."""
    for left in path.parent.glob(f".{escape(path.name)}.*.part"):
        found = re.fullmatch(re.escape(f".{path.name}.") + r"(?:before\.)?(\d+)\.part", left.name)
        if found and not _alive(int(found[1])):
            _remove(left)


def _remove(left: Path) -> None:
    """A file or a folder, if it is there."""
    with suppress(OSError):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
