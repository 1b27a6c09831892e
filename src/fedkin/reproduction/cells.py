"""A cell: one method in one setting with one seed. Computed once, kept (`fedkin.reproduction.kept`), taken up where it
stopped."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from fedkin.errors import FedkinError
from fedkin.reproduction.kept import CellRecord, Kept
from fedkin.reproduction.tables import PublishedTable

if TYPE_CHECKING:
    from fedkin.federation import Federation
    from fedkin.result import Result
    from fedkin.run.callbacks import Callback

OnRound = Callable[[int, int], bool]
"""Told after every round (round, rounds); returns whether to stop."""


@dataclass(frozen=True)
class Cell:
    """What to compute."""

    table: str
    scale: str
    row: str
    column: str
    seed: int
    settings: Mapping[str, Any]
    logs: tuple[str, ...] = ()
    short: Mapping[str, Any] = field(default_factory=dict)
    """The same place of the table at the smoke scale."""

    @property
    def key(self) -> str:
        """A hash of everything that fixes the numbers, but for the code."""
        text = json.dumps([self.settings, self.seed, self.logs], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    @property
    def label(self) -> str:
        return f"{self.row} · {self.column} · seed {self.seed}"

    @property
    def rounds(self) -> int:
        return int(self.settings.get("run", {}).get("rounds", 1))


def cells_of(table: PublishedTable, scale: str, seeds: int | None = None) -> list[Cell]:
    """All cells of a table at a scale: one seed after the other."""
    places = [(p, table.settings(*p, scale), table.settings(*p, "smoke")) for p in table.places(scale)]
    return [
        Cell(table.name, scale, *place, seed, settings, tuple(table.logs), short)
        for seed in range(seeds or table.reduction(scale).seeds or table.seeds)
        for place, settings, short in places
    ]


def compute(cell: Cell, kept: Kept, watch: OnRound = lambda round, rounds: False) -> CellRecord | None:
    """The record of a cell; None if `watch` stopped it before the end (the next call goes on from there).

    A run that breaks off (a model diverges) has a record too, with the reason in place of numbers.
    """
    from fedkin.files import versions
    from fedkin.reproduction.behaviour import behaviour_of

    does = behaviour_of(cell.settings, cell.short)
    started = time.perf_counter()
    try:
        if "function" in cell.settings:
            found: CellRecord | None = _call(cell)
        else:
            found = _train(cell, kept.checkpoints(cell.key, does), watch)
    except FedkinError as problem:
        found = {"failed": str(problem)}
    if found is None:
        return None
    facts = {"key": cell.key, "scale": cell.scale, "seed": cell.seed, "settings": dict(cell.settings)}
    spent = time.perf_counter() - started
    return {**facts, "seconds": spent, **found, "fingerprint": does, "versions": versions()}


def _call(cell: Cell) -> CellRecord:
    """A function `module:name` of the seed and parameters: a mapping of statistics, {"pre": …, "lines": …}, or a whole
    figure with "rows"."""
    found = resolve_name(cell.settings["function"])(seed=cell.seed, **cell.settings["parameters"])
    if "rows" in found:
        return {"figure": dict(found)}
    return dict(found) if "pre" in found else {"pre": dict(found), "post": dict(found)}


@lru_cache(maxsize=1)
def _federation(source: str, seed: int) -> Federation:
    """The data of a column; kept for the next cell, which mostly uses the same."""
    from fedkin import data

    return data.load(**{"seed": seed, **json.loads(source)})


def _train(cell: Cell, folder: Path, watch: OnRound) -> CellRecord | None:
    from fedkin.diagnostics.elsewhere import GlobalTest
    from fedkin.papers.originals import as_published, published_graph
    from fedkin.run import make_options, make_run

    settings = cell.settings
    federation = _federation(json.dumps(settings["data"], sort_keys=True), cell.seed)
    method = as_published(settings["algorithm"], settings["parameters"])
    options = make_options(**{"validation": "given", **settings["run"]}, seed=cell.seed, workers=1)
    graph = published_graph(settings["graph"], method, federation)
    every = options.eval_every or max(1, options.rounds // 10)
    everywhere = [GlobalTest(every)] if options.global_test else []
    run = make_run(federation, settings["model"], method, options, graph, folder, [_until(watch), *everywhere])
    run.take_up()
    result = run.run()
    if run.state.round < options.rounds:
        return None
    inside = getattr(method, "in_groups", None) if method.model_dump().get("period") else None
    record = record_of(result, cell.logs, inside or (lambda round: True))
    for test in everywhere:
        means = {when: curve.mean(axis=1) for when, curve in test.curves.items() if len(curve)}
        record["curve"] |= {f"global_{when}": {"round": test.tested, "mean": mean} for when, mean in means.items()}
    return record


def _until(watch: OnRound) -> Callback:
    from fedkin.run.callbacks import Callback

    class Until(Callback):
        def on_round(self, run: Any, record: Any) -> bool:
            return watch(record["round"], run.options.rounds)

    return Until()


def record_of(
    result: Result, logs: Sequence[str] = (), counts: Callable[[int], bool] = lambda round: True
) -> CellRecord:
    """What a cell keeps of a run: summaries *pre* and *post*, every client, the curve over rounds, some of the log.

    Entries of the log are kept for the rounds that count (of FedCedar with a `period` those of Q), with their last and
    smallest value.
    """
    import numpy as np

    record: CellRecord = {"training_seconds": result.facts["seconds"], "bytes": result.facts["bytes"]}
    for when in ("pre", "post"):
        values = result.metrics[when]
        more = {key.removeprefix("test_"): np.nanmean(v) for key, v in values.items() if key.startswith("test_")}
        record[when] = {**more, **result.summary(when)}
        if "global" in result.facts:
            everywhere = np.array(result.facts["global"][when], dtype=float)
            record[when] |= {"global": everywhere.mean(), "global_std": everywhere.std()}
        rounds, curve = result.history.curve(result.metric, when)
        record.setdefault("curve", {})[when] = {
            "round": rounds,
            "mean": np.nanmean(curve, axis=1) if len(curve) else [],
        }
    losses = [(entry["round"], entry["log"]["train_loss"]) for entry in result.history if "train_loss" in entry["log"]]
    record["curve"]["loss"] = {"round": [round for round, _ in losses], "mean": [loss for _, loss in losses]}
    record["clients"] = {when: result.metrics[when][result.metric] for when in ("pre", "post")}
    for key in logs:
        kept = [(entry["round"], entry["log"].get(key)) for entry in result.history if counts(entry["round"])]
        known = [(round, value) for round, value in kept if value is not None]
        record.setdefault("lines", {})[key] = dict(zip("xy", zip(*known)))
        if known:
            found = {f"{key}_last": known[-1][1], f"{key}_min": min(value for _, value in known)}
            record["pre"] |= found
            record["post"] |= found
    record["notes"] = result.notes
    return record
