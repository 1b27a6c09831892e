"""Cells side by side: one process per core, each with one thread. Ctrl-C, or a crash of the parent, loses no round.

A worker asks for nothing: it gets a cell, tells of every round, and says how the cell ended. When the parent is told to
stop (or is gone), workers finish their round, save a checkpoint, and end.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Event
from typing import Any

from fedkin.reproduction.cells import Cell, compute

Tell = Callable[[Cell, str, Any], None]
"""Told (cell, "round" | "done" | "stopped" | "crashed", detail)."""


def run(cells: Sequence[Cell], jobs: int, tell: Tell) -> bool:
    """Compute all cells; False if interrupted before the end."""
    if jobs <= 1 or len(cells) <= 1:
        return _alone(cells, tell)
    return _side_by_side(cells, min(jobs, len(cells)), tell)


def _alone(cells: Sequence[Cell], tell: Tell) -> bool:
    from fedkin.run.callbacks import Interrupt

    with Interrupt() as interrupt:
        for cell in cells:

            def watch(round: int, rounds: int, cell: Cell = cell) -> bool:
                tell(cell, "round", round)
                return interrupt.requested

            done = compute(cell, watch)
            tell(cell, "done" if done else "stopped", None)
            if interrupt.requested or not done:
                return False
    return True


def _side_by_side(cells: Sequence[Cell], jobs: int, tell: Tell) -> bool:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    waiting = list(cells)
    busy: dict[Connection, Cell] = {}
    workers: dict[Connection, Any] = {}
    previous = signal.signal(signal.SIGINT, lambda number, frame: stop.set())
    try:
        for _ in range(jobs):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, stop, os.getpid()), daemon=True)
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


def _work(pipe: Connection, stop: Event, parent: int) -> None:
    """A worker's life: cell after cell until the pipe closes."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C reaches the parent alone, which sets `stop`
    import torch

    torch.set_num_threads(1)
    told = 0.0

    def watch(round: int, rounds: int) -> bool:
        nonlocal told
        if time.monotonic() - told > 0.2:
            told = time.monotonic()
            pipe.send(("round", round))
        return stop.is_set() or os.getppid() != parent

    while True:
        try:
            cell = pipe.recv()
            pipe.send(("done" if compute(cell, watch) else "stopped", None))
        except (EOFError, ConnectionError):
            return
