"""Where a data set comes from: its files, how to find or download them, and how to read them."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedkin.errors import FedkinError

Arrays = Mapping[str, np.ndarray]
ReadFiles = Callable[[Mapping[str, Path]], dict[str, np.ndarray]]
"""{file name: path} → raw arrays, checked. In every set's file `read_upstream` reads what the publisher hands out, and
`read_arrays` the same set kept as plain arrays."""


@dataclass(frozen=True)
class File:
    """One file of a source.

    `hash` is "sha256:…" or "md5:…" of the upstream file, None where no trustworthy one is published (the reader then
    checks shapes and counts). `content` is the same for the unpacked content of a .gz file, so that a copy that was
    gzipped again is recognised. `url` is None for files that exist only offline. A `rewritten` file is handed round in
    other forms too (with a line of names, say): its hash is asked of downloads alone, and copies at hand are checked by
    the reader.
    """

    name: str
    url: str | None = None
    hash: str | None = None
    content: str | None = None
    rewritten: bool = False

    def within(self, folder: Path) -> Path:
        """Where the file lies in a folder; one whose `content` is known may lie there gzipped."""
        plain, packed = folder / self.name, folder / f"{self.name}.gz"
        return packed if self.content and packed.exists() and not plain.exists() else plain

    def verify(self, path: Path) -> None:
        """Refuse a file that is not the upstream one."""
        if self.rewritten or (self.hash is None and self.content is None):
            return
        if self.hash is not None and digest_like(path, self.hash) == self.hash:
            return
        if self.content is not None and digest_like(path, self.content, unpack=path.suffix == ".gz") == self.content:
            return
        raise FedkinError(f"{path}: checksum mismatch; the file is damaged or another version, get it again")


@dataclass(frozen=True)
class Source:
    """One way to have a data set.

    `kind` names it in the cache and in `fedkin.data.info`; `read` turns {file name: path} into raw arrays; `folders`
    are where the files may lie below the folder the user names; `notes` say what is partial about it.
    """

    kind: str
    files: tuple[File, ...]
    read: ReadFiles
    folders: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def downloadable(self) -> bool:
        return all(file.url for file in self.files)

    def locate(self, directory: Path) -> dict[str, Path] | None:
        """The files of this source in a folder, or None if one is missing."""
        for folder in (".", *self.folders):
            found = {file.name: file.within(directory / folder) for file in self.files}
            if all(path.exists() for path in found.values()):
                return found
        return None


def digest_like(path: Path, like: str, unpack: bool = False) -> str:
    """The hash of a file by the algorithm that `like` names, as "algorithm:hex"."""
    algorithm = like.split(":")[0]
    value = hashlib.new(algorithm, usedforsecurity=False)
    try:
        with gzip.open(path) if unpack else open(path, "rb") as stream:
            while block := stream.read(1 << 20):
                value.update(block)
    except (EOFError, gzip.BadGzipFile) as problem:
        raise FedkinError(f"{path}: truncated or damaged archive ({problem}); get it again") from problem
    return f"{algorithm}:{value.hexdigest()}"


def offline_folder(directory: str | os.PathLike[str] | None) -> Path | None:
    """The folder to look in before the network: `directory`, or `$FEDKIN_DATA`, or None."""
    given = directory if directory is not None else os.environ.get("FEDKIN_DATA")
    if not given:
        return None
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise FedkinError(f"{folder} is not a folder; {'directory' if directory else '$FEDKIN_DATA'} must name one")
    return folder


def check(condition: bool | np.bool_, what: str, fix: str = "get the file again") -> None:
    """Content checks of the readers: one line if the file does not hold what the data set holds."""
    if not condition:
        raise FedkinError(f"{what}; {fix}")


def check_counts(name: str, labels: np.ndarray, expected: Sequence[int]) -> None:
    """Refuse labels whose counts per class are not those of the published data set."""
    counts = np.bincount(labels.astype(np.int64), minlength=len(expected)).tolist()
    check(counts == list(expected), f"{name}: samples per class are {counts}, expected {list(expected)}")
