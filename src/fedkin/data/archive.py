"""Reading members of .zip and .tar.gz archives in place: nothing is ever unpacked to disk."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedkin.errors import FedkinError


class Archive:
    """The members of an archive: `names` and `read(name) -> bytes`. Unsafe member names are refused on opening."""

    def __init__(self, path: Path, opened: tarfile.TarFile | zipfile.ZipFile) -> None:
        self.path, self.opened = path, opened
        self.names = opened.getnames() if isinstance(opened, tarfile.TarFile) else opened.namelist()
        for name in self.names:
            parts = name.replace("\\", "/").split("/")
            if parts[0] == "" or ".." in parts or ":" in parts[0]:  # absolute, upwards, or a drive letter
                raise FedkinError(f"{path}: unsafe archive, member {name!r} points outside of it; do not use this file")

    def read(self, ending: str) -> bytes:
        """The content of the one member whose path ends so."""
        found = [name for name in self.names if name == ending or name.endswith(f"/{ending}")]
        if not found:
            raise FedkinError(f"{self.path}: the archive has no {ending}; it is another version, get the right one")
        if isinstance(self.opened, zipfile.ZipFile):
            return self.opened.read(found[0])
        member = self.opened.extractfile(found[0]) if self.opened.getmember(found[0]).isfile() else None
        if member is None:
            raise FedkinError(f"{self.path}: member {found[0]!r} is not a plain file; do not use this archive")
        return member.read()


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open a zip or tar archive; damage found now or while reading becomes one clear line."""
    try:
        with zipfile.ZipFile(path) if path.suffix == ".zip" else tarfile.open(path) as opened:
            yield Archive(path, opened)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError) as problem:
        raise FedkinError(f"{path}: truncated or damaged archive ({problem}); get it again") from problem


@contextmanager
def open_inner(archive: Archive, name: str) -> Iterator[Archive]:
    """A zip archive inside an archive."""
    with zipfile.ZipFile(io.BytesIO(archive.read(name))) as inner:
        yield Archive(archive.path, inner)
