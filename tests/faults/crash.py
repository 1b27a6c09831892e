"""Short runs in processes that end at their n-th step of writing; then others go on with them.

`python crash.py FOLDER METHOD HOW n …`: for every n a run in FOLDER/n that is stopped and, in another process, the same run
taken up again. HOW is

    kill    the process ends at its n-th crash point: the middle of a write, before a sync, rename or removal
    full    the disk is full there (no removals)
    limit   files may have n bytes (RLIMIT_FSIZE)

and with n = 0 nothing happens. For every n a line is printed: n, both exit codes (137: killed, 1: ended by an error, which is
in FOLDER/n.log), the points passed.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedkin import algorithms, data, resume, train
from fedkin.federation import Federation
from fedkin.run import checkpoint

CRASHED = 137


class Points:
    """Counts crash points and ends the process, or fills the disk, at the last one."""

    def __init__(self, how: str, last: int) -> None:
        self.how, self.passed, self.last = how, 0, last

    def reached(self) -> bool:
        self.passed += 1
        return self.passed == self.last if self.how == "kill" else 0 < self.last <= self.passed

    def happen(self) -> None:
        if self.how == "kill":
            os._exit(CRASHED)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **options: Any) -> Any:
            if self.reached():
                self.happen()
            return function(*args, **options)

        return instead


class Crashing(io.BufferedWriter):
    """A file whose writer dies after half of a piece."""

    points: Points

    def write(self, piece: Any) -> int:
        if self.points.reached():
            super().write(bytes(piece)[: len(piece) // 2])
            super().flush()
            self.points.happen()
        return super().write(piece)

    def writelines(self, pieces: Any) -> None:
        for piece in pieces:
            self.write(piece)


def arm(points: Points, folder: Path) -> None:
    """Let everything that is written below the folder pass the points."""
    opened = builtins.open

    def opening(path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if mode in ("wb", "ab") and str(path).startswith(str(folder)):
            file = Crashing(io.FileIO(path, mode[0]))
            file.points = points
            return file
        return opened(path, mode, *args, **options)

    builtins.open = opening  # type: ignore[assignment]
    for name in ("replace", "fsync", *(["unlink"] if points.how == "kill" else [])):
        setattr(os, name, points.before(getattr(os, name)))


def once(federation: Federation, method: str, out: Path, how: str, last: int) -> tuple[int, int]:
    """Train, or go on with what is there, in a process of its own: its exit code and the points it passed."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            sys.stderr = open(out.with_suffix(".log"), "a")  # noqa: SIM115
            points = Points(how, 0 if how == "limit" else last)
            arm(points, out)
            if how == "limit" and last:
                resource.setrlimit(resource.RLIMIT_FSIZE, (last, last))
            if checkpoint.latest(out) is None:
                options: dict[str, Any] = {"rounds": 3, "checkpoint_every": 1, "workers": 1, "out": out}
                graph = "knn:1" if algorithms.make(method).default_graph() else None
                train(federation, "mlr", algorithms.make(method), graph, **options)
            else:
                resume(out, federation)
            os.write(writer, points.passed.to_bytes(8, "little"))
            os._exit(0)
        except BaseException as problem:
            print(type(problem).__name__, problem, file=sys.stderr, flush=True)
            os._exit(1)
    os.close(writer)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    passed = int.from_bytes(os.read(reader, 8), "little")
    os.close(reader)
    return code, passed


def main(folder: Path, method: str, how: str, points: list[int]) -> None:
    federation = data.load("digits", clients=3, seed=0)
    for at in points:
        code, passed = once(federation, method, folder / str(at), how, at)
        again = once(federation, method, folder / str(at), how, 0)[0] if at else code
        print(at, code, again, passed, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4], [int(number) for number in sys.argv[4:]])
