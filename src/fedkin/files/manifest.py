"""The manifest of a directory: the checksum of every file in it, so that a change does not pass in silence.

Tensors are covered by the JSON file beside them, which holds their checksum and is itself in the manifest. The manifest finds accidents and edits. It is no signature: who can write to a directory can write its manifest, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedkin.errors import FedkinError
from fedkin.files.atomic import Bytes, append, part_of, pour, put_in_place, sync_folder, write_atomic, written
from fedkin.files.text import read_json

MANIFEST = "manifest.json"
TENSORS, GROWS = ".safetensors", ".jsonl"
"""Endings of files that have their checksum beside them, and of files that grow by appending."""


class Seen(BaseModel):
    """A file at one moment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: str
    bytes: int = Field(ge=0)

    @classmethod
    def of(cls, path: Path, first: int | None = None) -> Seen:
        """The file as it is, or its first bytes; `GONE` if there is none."""
        if not path.is_file():
            return GONE
        size = path.stat().st_size
        return cls(sha256=digest(path, first), bytes=size if first is None else min(size, first))


ENTRIES = TypeAdapter(dict[str, Annotated[list[Seen], Field(min_length=1, max_length=2)]])
GONE = Seen(sha256="", bytes=0)
"""What a file is that is not there."""


class Manifest:
    """The checksums of a directory's files, by their relative names.

    A file that is being replaced has two, the old and the new: a process killed at any moment leaves a directory that
    agrees with its manifest. Directories without one (older versions made none) agree with everything.
    """

    def __init__(self, folder: Path, accept_changes: bool = False) -> None:
        self.folder = folder
        self.exists = (folder / MANIFEST).exists()
        self.entries: dict[str, list[Seen]] = {}
        try:
            if self.exists:
                self.entries = ENTRIES.validate_python(read_json(folder / MANIFEST).get("files"))
        except (FedkinError, ValidationError) as problem:
            if not accept_changes:
                raise FedkinError(f"{folder / MANIFEST} is damaged; {REMEDY}") from problem
            self.exists = False

    def refuse_changes(self, names: Iterable[str], accept_changes: bool = False) -> None:
        """One line about the first of the files that is not as the manifest says; accepted changes are noted instead."""
        changed = [name for name in names if self.exists and not self.agrees(name)]
        if changed and accept_changes:
            self.entries |= {name: [Seen.of(self.folder / name)] for name in changed}
            self.write()
        elif changed:
            path = self.folder / changed[0]
            fault = "was changed since fedkin wrote it" if path.exists() else "is missing"
            raise FedkinError(f"{path} {fault if changed[0] in self.entries else 'was added'}; {REMEDY}")

    def agrees(self, name: str) -> bool:
        """Whether a file is as the manifest says, or absent from both."""
        if name not in self.entries:
            return not (self.folder / name).exists()
        return self.seen(name) is not None

    def seen(self, name: str) -> Seen | None:
        """As what the manifest knows a file; what was appended to a growing one since is not looked at."""
        path, grows = self.folder / name, name.endswith(GROWS)
        for known in sorted(self.entries.get(name, ()), key=attrgetter("bytes"), reverse=True):
            if Seen.of(path, known.bytes if grows and known != GONE else None) == known:
                return known
        return None

    def write(self) -> None:
        self.entries = {name: states for name, states in self.entries.items() if states != [GONE]}
        told = ENTRIES.dump_python(dict(sorted(self.entries.items())))
        write_atomic(self.folder / MANIFEST, (json.dumps({"files": told}, indent=1) + "\n").encode())


REMEDY = "put the original back, or say that you made the change: --accept-changes (accept_changes=True)"


def digest(path: Path, first: int | None = None) -> str:
    """The SHA-256 of a file, or of its first bytes."""
    checksum, left = hashlib.sha256(), path.stat().st_size if first is None else first
    with open(path, "rb") as file:
        while left > 0 and (piece := file.read(min(left, 2**20))):
            checksum.update(piece)
            left -= len(piece)
    return checksum.hexdigest()


class FileBatch:
    """Files of one directory that change together: all are written and synced, then noted in the manifest, then renamed.

    Used as a context: on leaving it well everything takes its place, on leaving it by an error nothing does.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._staged: dict[Path, Seen] = {}
        self._grown: list[Path] = []
        self._removed: list[Path] = []

    def write(self, path: Path, content: Bytes | Iterable[Bytes]) -> str:
        """Have this content under `path`, at the end; returns its SHA-256."""
        self._staged[path] = GONE
        with written(path, part_of(path)) as file:
            checksum, size = pour(content, file)
        self._staged[path] = Seen(sha256=checksum, bytes=size)
        return checksum

    def append(self, path: Path, pieces: Iterable[Bytes]) -> None:
        """Add to the end of a growing file at once; until the end, the manifest speaks of what was there before."""
        append(path, pieces)
        self._grown.append(path)

    def remove(self, paths: Sequence[Path]) -> None:
        """Remove files, at the end."""
        self._removed += paths

    def commit(self) -> None:
        """Note every change in the manifest, then make it."""
        manifest = Manifest(self.folder)
        if not manifest.exists:
            manifest.entries = {name: [Seen.of(self.folder / name)] for name in listed(self.folder)}
        for name, states in manifest.entries.items():  # what was under way when it was written last is over
            if len(states) > 1 and (known := manifest.seen(name)) is not None:
                manifest.entries[name] = [known]
        after = self._staged | dict.fromkeys(self._removed, GONE)
        for path, seen in after.items():
            if path.suffix != TENSORS:
                manifest.entries[self._name(path)] = list(dict.fromkeys([Seen.of(path), seen]))
        manifest.entries |= {self._name(path): [Seen.of(path)] for path in self._grown}
        manifest.write()
        for path in sorted(self._staged, key=lambda path: path.suffix == TENSORS):  # see `finish_commit`
            put_in_place(part_of(path), path)
        for path in self._removed:
            path.unlink(missing_ok=True)
        for folder in {path.parent for path in after}:
            sync_folder(folder)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def __enter__(self) -> FileBatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.commit()
                self._staged.clear()
        finally:
            for path in self._staged:
                with suppress(OSError):
                    part_of(path).unlink(missing_ok=True)


def listed(folder: Path) -> list[str]:
    """The files of a run that are in a directory, whoever wrote them."""
    kinds = ("config.toml", "graph.npz", "history.jsonl", "result.json", "checkpoints/round-*.json")
    return sorted(path.relative_to(folder).as_posix() for kind in kinds for path in folder.glob(kind) if path.is_file())
