"""Cells side by side: one process per core, each with one thread. Ctrl-C, or a crash of the parent, loses no round.

A worker asks for nothing: it gets a cell, tells of every round, and hands back the cell's record, which the parent alone
keeps. When the parent is told to stop (or is gone), workers finish their round, save a checkpoint, and end.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from fedkin.reproduction.cells import Cell, compute
from fedkin.reproduction.kept import CellRecord, Kept

Tell = Callable[[Cell, str, Any], None]
"""Told (cell, "round" | "done" | "stopped" | "crashed", detail)."""


def compute_all(cells: Sequence[Cell], kept: Kept, jobs: int, tell: Tell) -> bool:
    """Compute and keep all cells; False if interrupted before the end."""
    if jobs <= 1 or len(cells) <= 1:
        return _alone(cells, kept, tell)
    return _side_by_side(cells, kept, min(jobs, len(cells)), tell)


def _keep(cell: Cell, kept: Kept, record: CellRecord) -> None:
    """Keep a finished cell, and remove what was saved on the way."""
    kept.put(cell.table, [record])
    for folder in kept.checkpoints(cell.key, None).parent.glob(f"{cell.key}.*"):
        shutil.rmtree(folder, ignore_errors=True)


def _alone(cells: Sequence[Cell], kept: Kept, tell: Tell) -> bool:
    from fedkin.run.callbacks import Interrupt

    with Interrupt() as interrupt:
        for cell in cells:

            def watch(round: int, rounds: int, cell: Cell = cell) -> bool:
                tell(cell, "round", round)
                return interrupt.requested

            record = compute(cell, kept, watch)
            if record is not None:
                _keep(cell, kept, record)
            tell(cell, "stopped" if record is None else "done", None)
            if interrupt.requested or record is None:
                return False
    return True


def _side_by_side(cells: Sequence[Cell], kept: Kept, jobs: int, tell: Tell) -> bool:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    waiting = list(cells)
    busy: dict[Connection, Cell] = {}
    workers: dict[Connection, Any] = {}
    previous = signal.signal(signal.SIGINT, lambda number, frame: stop.set())
    try:
        for _ in range(jobs):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, kept.folder, stop, os.getpid()), daemon=True)
            process.start()
            theirs.close()
            workers[ours] = process
            busy[ours] = waiting.pop(0)
            ours.send(busy[ours])
        while busy:
            for pipe in wait(list(busy), timeout=0.5):
                assert isinstance(pipe, Connection)
                cell = busy[pipe]
                try:
                    kind, detail = pipe.recv()
                except (EOFError, ConnectionError):
                    kind, detail = "crashed", f"exit code {_exit_code(workers[pipe])}"
                if kind == "done":
                    _keep(cell, kept, detail)
                tell(cell, kind, detail)
                if kind == "round":
                    continue
                del busy[pipe]
                if waiting and not stop.is_set() and kind != "crashed":
                    busy[pipe] = waiting.pop(0)
                    pipe.send(busy[pipe])
        return not stop.is_set() and not waiting
    finally:
        for pipe, process in workers.items():
            pipe.close()
            process.join(timeout=10)
        signal.signal(signal.SIGINT, previous)


def _exit_code(process: Any) -> int | None:
    process.join(timeout=5)
    return None if process.exitcode is None else int(process.exitcode)


def _work(pipe: Connection, folder: Path, stop: Event, parent: int) -> None:
    """A worker's life: cell after cell until the pipe closes."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C reaches the parent alone, which sets `stop`
    import torch

    from fedkin.files import plain

    torch.set_num_threads(1)
    kept, told = Kept(folder), 0.0

    def watch(round: int, rounds: int) -> bool:
        nonlocal told
        if time.monotonic() - told > 0.2:
            told = time.monotonic()
            pipe.send(("round", round))
        return stop.is_set() or os.getppid() != parent

    while True:
        try:
            record = compute(pipe.recv(), kept, watch)
            pipe.send(("stopped" if record is None else "done", plain(record)))
        except (EOFError, ConnectionError):
            return
