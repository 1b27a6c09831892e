"""The server side: all settings in a folder are trained, one thread each, and take turns on one line."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Condition

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkin.deployment.server import FederationFile, train_sites
from fedkin.engines.flower.line import GridLine
from fedkin.engines.flower.wire import Message
from fedkin.errors import FedkinError
from together.bundle import join, split

app = ServerApp()


class Turns:
    """One run works at a time, until it asks something; when all have asked, their messages go out together."""

    def __init__(self, grid: Grid, runs: int) -> None:
        self.line, self.runs, self.turn = GridLine(grid), runs, Condition()
        self.asked: dict[str, tuple[Mapping[int, Message], Mapping[int, int], float]] = {}
        self.answers: dict[str, dict[int, Message | str]] = {}

    def ask(
        self, run: str, messages: Mapping[int, Message], limits: Mapping[int, int], timeout: float
    ) -> dict[int, Message | str]:
        self.asked[run] = (messages, limits, timeout)
        self.carry()
        if not self.turn.wait_for(lambda: run in self.answers, timeout=7200):
            raise FedkinError("the other runs did not come to an end")
        return self.answers.pop(run)

    def leave(self) -> None:
        self.runs -= 1
        self.carry()

    def carry(self) -> None:
        if not self.asked or len(self.asked) < self.runs:
            return
        asked, self.asked = self.asked, {}
        nodes = {node for messages, _, _ in asked.values() for node in messages}
        bundles = {n: join({run: m[n] for run, (m, _, _) in asked.items() if n in m}) for n in nodes}
        got = self.line.send(bundles, dict.fromkeys(nodes, 2**30), max(timeout for _, _, timeout in asked.values()))
        parts = {node: split(told) if isinstance(told, Message) else told for node, told in got.items()}
        for run, (messages, limits, _) in asked.items():
            self.answers[run] = {node: read(parts[node], run, limits[node]) for node in messages}
        self.turn.notify_all()


def read(told: dict[str, Message] | str, run: str, limit: int) -> Message | str:
    """The part of one run, within the bytes it may have."""
    if isinstance(told, str):
        return told
    try:
        return Message.decode(*told[run].encode(), limit)
    except FedkinError as problem:
        return str(problem)


class Seat:
    """The line as one run sees it."""

    def __init__(self, turns: Turns, run: str) -> None:
        self.turns, self.run = turns, run

    def nodes(self) -> list[int]:
        return self.turns.line.nodes()

    def send(
        self, messages: Mapping[int, Message], limits: Mapping[int, int], timeout: float
    ) -> dict[int, Message | str]:
        return self.turns.ask(self.run, messages, limits, timeout)


def one(path: Path, turns: Turns) -> None:
    with turns.turn:
        try:
            train_sites(Seat(turns, path.stem), FederationFile.read(path), path.with_suffix(""))
        except Exception as problem:
            path.with_suffix(".refused").write_text(f"{type(problem).__name__}: {problem}")
        finally:
            turns.leave()


@app.main()
def run(grid: Grid, context: Context) -> None:
    folder = Path(str(context.run_config["settings"]))
    plans = sorted(folder.glob("*.toml"))
    turns = Turns(grid, len(plans))
    with ThreadPoolExecutor(len(plans)) as pool:
        list(pool.map(lambda path: one(path, turns), plans))
    (folder / "done").touch()
