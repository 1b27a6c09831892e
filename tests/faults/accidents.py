"""Accidents that need more than one party: two owners of a directory, another version of fedkin, late and repeated messages.

Each is a function (folder, how many, seed) → (tried, those that failed), as in `campaign`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

import fedkin
from fedkin import algorithms, data
from fedkin.deployment.server import FederationFile, train_sites
from fedkin.engines.flower.site import answer_at
from fedkin.engines.flower.wire import Message
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.result import Result
from fedkin.run.callbacks import Callback
from fedkin.testing import uneven_federation

from ..engines import sites
from .campaign import Outcome

# --- two owners, another version --------------------------------------------------------------------------------------


class Stop(Callback):
    """Ends a run after its second round."""

    def on_round(self, run: Any, record: Any) -> bool:
        return bool(record["round"] == 2)


OPTIONS: dict[str, Any] = {"rounds": 4, "checkpoint_every": 1, "workers": 1, "fraction": 0.7}


def stopped(federation: Federation, out: Path, **more: Any) -> Path:
    """A run that stopped half-way."""
    fedkin.train(federation, "mlr", "fedu", "knn:1", out=out, callbacks=[Stop()], **OPTIONS, **more)
    return out


def beside(log: Path, work: Callable[[], object]) -> int:
    """Do something in a process of its own; its number."""
    child = os.fork()
    if not child:
        code = 1
        try:
            sys.stderr = open(log, "w")  # noqa: SIM115
            work()
            code = 0
        except BaseException as problem:
            print(f"{type(problem).__name__}: {problem}", file=sys.stderr, flush=True)
        os._exit(code)
    return child


def two_owners(folder: Path, many: int, seed: int = 0) -> Outcome:
    """Two processes go on with one directory, or with two that share a rows file: one at a time, and the same bits."""
    federation = data.load("digits", clients=4, seed=0)
    expected = fedkin.train(federation, "mlr", "fedu", "knn:1", **OPTIONS).rows
    failed = []
    for number in range(many):
        draw, place = random.Random(seed * 1_000_003 + number), folder / str(number)
        place.mkdir()
        rows = place / "rows.bin"
        outs = [stopped(federation, place / "a", rows_file=str(rows))]
        outs.append(outs[0] if number % 2 else stopped(federation, place / "b", rows_file=str(rows)))
        logs, waits = [place / "first.log", place / "second.log"], [0.0, draw.choice([0.0, draw.random() * 0.2])]

        def go_on(out: Path, wait: float, rows: Path = rows) -> None:
            time.sleep(wait)
            fedkin.resume(out, federation, rows_file=rows)

        children = [beside(log, lambda o=out, w=wait: go_on(o, w)) for log, out, wait in zip(logs, outs, waits)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        told = [log.read_text().strip() for log in logs]
        refused = [text for code, text in zip(codes, told) if code]
        sound = 0 in codes and all("is in use by process" in text and "\n" not in text for text in refused)
        for out, code in zip(outs, codes):
            if code and out != outs[1 - outs.index(out)]:
                go_on(out, 0.0)  # the one that was refused goes on later
        if not sound or any(not np.array_equal(fedkin.load(out).rows, expected) for out in outs):
            failed.append(f"two owners {number}: exit {codes}: {told}")
        shutil.rmtree(place)
    return many, failed


def other_versions(folder: Path, many: int, seed: int = 0) -> Outcome:
    """A run that another version began: one line names both; accepted, it goes on to the same bits."""
    federation = data.load("digits", clients=4, seed=0)
    expected = fedkin.train(federation, "mlr", "fedu", "knn:1", **OPTIONS).rows
    original, ours, failed = stopped(federation, folder / "original"), fedkin.__version__, []
    for number in range(many):
        draw = random.Random(seed * 1_000_003 + number)
        theirs = ".".join(str(draw.randrange(30)) for _ in range(3)) + draw.choice(["", ".dev1", "rc2", "\x1b[2J\n"])
        out = Path(shutil.copytree(original, folder / str(number)))
        try:
            fedkin.__version__ = theirs
            fedkin.resume(out, federation)
            failed.append(f"version {number}: {theirs!r} went on in silence")
        except FedkinError as problem:
            if ours not in str(problem) or "--accept-changes" not in str(problem):
                failed.append(f"version {number}: {problem}")
            if not np.array_equal(fedkin.resume(out, federation, accept_changes=True).rows, expected):
                failed.append(f"version {number}: other numbers")
        finally:
            fedkin.__version__ = ours
        shutil.rmtree(out)
    return many, failed


# --- messages that come late, or twice --------------------------------------------------------------------------------

GROUPS = ((0, 1), (2,), (3, 4, 5))
SLOW = 1
METHODS = {"scaffold": "mlp:6", "fedbn": "bn-mlp:6", "dfedu": "mlp:6", "ditto": "mlp:6", "fedrelax": "mlr"}


def trained(line: sites.LoopLine, folder: Path, method: str, out: str) -> Result:
    sections = {
        "federation": {"sites": len(GROUPS), "wait": 2, "timeout": 5, "classes": [0, 1, 2]},
        "model": {"name": METHODS[method]},
        "algorithm": {"name": method},
        **({"graph": {"name": "complete"}} if algorithms.make(method).default_graph() else {}),
        "run": {"rounds": 3, "seed": 1, "dtype": "float64", "eval_every": 3, "checkpoint_every": 1},
    }
    (folder / "federation.toml").write_text(tomli_w.dumps(sections))
    return train_sites(line, FederationFile.read(folder / "federation.toml"), folder / out)


class Late(sites.LoopLine):
    """A site does the work of its n-th message, but its answer comes after the server has gone on."""

    def __init__(self, paths: Any, late: int | None) -> None:
        super().__init__(paths)
        self.late, self.asked = late, 0
        self.kept: list[tuple[int, Message]] = []

    def send(self, messages: Mapping[int, Message], limits: Mapping[int, int], timeout: float) -> dict[int, Any]:
        self.kept += [(node, message) for node, message in messages.items() if message.head["kind"] == "answer"]
        found = super().send(messages, limits, timeout)
        if SLOW in messages and messages[SLOW].head["kind"] not in ("hello", "join", "deploy"):
            self.asked += 1
            if self.asked == self.late:
                found[SLOW] = f"did not answer within {timeout:g} s"
        return found


def slow_sites(folder: Path, method: str) -> Outcome:
    """Each message in turn is answered too late: the round goes on, the site is named and takes part again."""
    paths = sites.write_sites(uneven_federation(), folder, GROUPS)
    honest = Late(paths, None)
    names = trained(honest, folder, method, "honest").names
    slow, failed = {names[k] for k in (2,)}, []
    for late in range(1, honest.asked + 1):
        try:
            line = Late(paths, late)
            result = trained(line, folder, method, f"late-{late}")
            set_aside = {name for record in result.history for name in record["log"].get("failed", {})}
            others = [k for k, name in enumerate(names) if name not in slow]
            if not set_aside <= slow or not np.isfinite(result.rows[others]).all():
                failed.append(f"{method}, message {late} late: {sorted(set_aside)} set aside")
        except Exception as problem:
            failed.append(f"{method}, message {late} late: {type(problem).__name__}: {problem}")
    return honest.asked, failed


def states(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.glob("site-*/state/*/*.safetensors"))}


def replays(folder: Path, method: str) -> Outcome:
    """Every message of a run once more, as it was and as if of a server before: refused, and nothing at the site changes."""
    paths = sites.write_sites(uneven_federation(), folder, GROUPS)
    line, failed, tried = Late(paths, None), [], 0
    trained(line, folder, method, "result")
    before = states(folder)
    for number, (node, message) in enumerate(line.kept):
        for again in _once_more(message):
            tried += 1
            told = answer_at(paths[node], Message.decode(*again.encode())).head
            if "too late" not in str(told.get("refused")) or states(folder) != before:
                failed.append(f"{method}, message {number} ({message.head['task']}) again: {json.dumps(told)[:200]}")
    return tried, failed


def _once_more(message: Message) -> Iterator[Message]:
    yield message
    yield Message({**message.head, "session": message.head["session"] - 1}, message.tensors)
