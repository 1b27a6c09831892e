"""Every writer of fedkin's killed at its crash points: what was there before can be read, and it writes again."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from .accidents import beside
from .campaign import Outcome
from .crash import CRASHED, Points, arm
from .full_disk import WRITERS, Writer, expected, other, trained


def stopped_at(folder: Path, writer: Writer, point: int) -> tuple[int, int]:
    """Write in a process that ends at its n-th crash point (0: at none); its exit code and the points it passed."""
    counted = folder / "points"

    def work() -> None:
        points = Points("kill", point)
        arm(points, folder / "disk")
        writer.write(folder / "disk")
        counted.write_text(str(points.passed))

    child = beside(folder / "log", work)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, int(counted.read_text()) if code == 0 else 0


def after_a_kill(folder: Path, writer: Writer, point: int) -> str | None:
    """What is wrong when the writer goes on after a kill, or None."""
    (folder / "disk").mkdir(parents=True)
    try:
        (writer.first or writer.write)(folder / "disk")
        code, _ = stopped_at(folder, writer, point)
        if code != CRASHED:
            return f"exit {code}: {(folder / 'log').read_text().strip()}"
        if writer.first is None:
            writer.read(folder / "disk")
        writer.write(folder / "disk")
        writer.read(folder / "disk")
        left = [path.name for path in (folder / "disk").rglob(".*.part")]
        return f"left over: {left}" if left else None
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"


def killed_writers(folder: Path, most: int, seed: int = 0) -> Outcome:
    """Each writer stopped at so many of its crash points, or at all of them."""
    trained(), other(), expected()
    tried, failed = 0, []
    for name, writer in WRITERS.items():
        place = folder / name.replace(" ", "-")
        (place / "disk").mkdir(parents=True)
        (writer.first or writer.write)(place / "disk")
        code, points = stopped_at(place, writer, 0)
        if code:
            failed.append(f"{name}: {(place / 'log').read_text().strip()}")
        chosen = sorted(random.Random(seed).sample(range(1, points + 1), min(most, points)))
        for point in chosen:
            fault = after_a_kill(place / str(point), writer, point)
            failed += [f"{name}, point {point} of {points}: {fault}"] if fault else []
            shutil.rmtree(place / str(point))
        tried += len(chosen)
    return tried, failed
