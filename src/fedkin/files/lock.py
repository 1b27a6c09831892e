"""One owner at a time: a lock that dies with its process."""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from fedkin.errors import FedkinError
from fedkin.files.atomic import refuse_full


class Lock:
    """The right to write somewhere, held from creation to `release`; whoever comes second is told who holds it.

    The kernel keeps it (flock), so it ends with the process however that ends; the file says host and process for people.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self._file: IO[str] | None = None
        path.parent.mkdir(parents=True, exist_ok=True)
        while self._file is None:
            try:
                file = open(path, "a+")  # noqa: SIM115 (it stays open as long as the lock is held)
            except OSError as problem:
                refuse_full(problem, path, "was not written")
                raise
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                owner = file.read(200).strip() or "another process"
                file.close()
                raise FedkinError(
                    f"{what} is in use by {owner}; wait for it, end it, or choose another place"
                ) from None
            if self._still_named(file):
                self._file = file
            else:
                file.close()  # its last owner has just removed it
        with suppress(OSError):  # the lock holds without the note, on a full disk
            self._file.truncate(0)
            os.write(self._file.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())

    def _still_named(self, file: IO[str]) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), os.stat(self.path))
        except OSError:
            return False

    def release(self) -> None:
        """Let others have it. The second call does nothing."""
        if self._file is not None:
            with suppress(OSError):
                self.path.unlink()
            self._file.close()
            self._file = None

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
