"""A cell: one method in one setting with one seed. Computed once, kept as one JSON file, taken up where it stopped."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from fedkin.errors import FedkinError
from fedkin.files import plain, versions, write_atomic
from fedkin.reproduction import code
from fedkin.reproduction.behaviour import fingerprint
from fedkin.reproduction.tables import Table

if TYPE_CHECKING:
    from fedkin.federation import Federation
    from fedkin.result import Result
    from fedkin.run.callbacks import Callback

Record = dict[str, Any]
Watch = Callable[[int, int], bool]
"""Told after every round (round, rounds); returns whether to stop."""


@dataclass(frozen=True)
class Cell:
    """What to compute, and where it is kept."""

    row: str
    column: str
    seed: int
    settings: Mapping[str, Any]
    code: str
    folder: Path
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
    def path(self) -> Path:
        """Cells with the same settings, such as FedAvg with and without fine-tuning, share one file."""
        what = (
            f"{self.column}.{self.settings['algorithm']}" if "algorithm" in self.settings else self.settings["function"]
        )
        return self.folder / f"{what.rpartition(':')[2]}.{self.seed}.{self.key}.json"

    @property
    def run_folder(self) -> Path:
        """Checkpoints of a run under way; removed when the cell is finished."""
        return self.folder / ".running" / f"{self.key}.{self.code}"

    @property
    def rounds(self) -> int:
        return int(self.settings.get("run", {}).get("rounds", 1))

    def read(self) -> Record | None:
        """The finished cell, or None; `record["code"]` says by which version of the code.

        Other scales and other tables of the same results hold the same cell where the settings are the same. One of the
        code at hand is preferred, then the cell's own file.
        """
        elsewhere = self.folder.parent.parent.glob(f"*/*/*.{self.seed}.{self.key}.json")
        older: Record | None = None
        for path in chain([self.path], sorted(elsewhere)):
            try:
                found = json.loads(path.read_text())
                version = found["code"]
            except (OSError, ValueError, KeyError, TypeError):  # cut short or spoilt: computed anew
                continue
            if version == self.code:
                return found
            older = older or found
        return older

    def is_current(self, record: Record) -> bool:
        """Whether the code at hand would give these numbers: it is the same, or it does the same."""
        if record["code"] == self.code:
            return True
        known = record.get("behaviour")
        return known is not None and known == fingerprint(self.settings, self.short)


def cells_of(table: Table, scale: str, folder: Path, seeds: int | None = None) -> list[Cell]:
    """All cells of a table at a scale: one seed after the other."""
    count = seeds or table.scale(scale).seeds or table.seeds
    found = []
    for seed in range(count):
        for row, column in table.places(scale):
            settings = table.settings(row, column, scale)
            version, short = code.version(settings), table.settings(row, column, "smoke")
            found.append(Cell(row, column, seed, settings, version, folder, tuple(table.logs), short))
    return found


def compute(cell: Cell, watch: Watch = lambda round, rounds: False) -> bool:
    """Compute a cell and keep it; False if `watch` stopped it before the end (the next call goes on from there).

    A run that breaks off (a model diverges) is kept too, with the reason in place of numbers.
    """
    record: Record = {"settings": dict(cell.settings), "seed": cell.seed, "code": cell.code}
    started = time.perf_counter()
    try:
        found = _call(cell) if "function" in cell.settings else _train(cell, watch)
    except FedkinError as problem:
        found = {"failed": str(problem)}
    if found is None:
        return False
    record |= {"seconds": time.perf_counter() - started, **found, "versions": versions()}
    record["behaviour"] = fingerprint(cell.settings, cell.short)
    write_atomic(cell.path, (json.dumps(plain(_short(record)), ensure_ascii=False, indent=1) + "\n").encode())
    for stale in cell.run_folder.parent.glob(f"{cell.key}.*"):
        shutil.rmtree(stale, ignore_errors=True)
    return True


def _call(cell: Cell) -> Record:
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


def _train(cell: Cell, watch: Watch) -> Record | None:
    from fedkin import algorithms
    from fedkin.run import make_options, prepare

    settings = cell.settings
    federation = _federation(json.dumps(settings["data"], sort_keys=True), cell.seed)
    method = algorithms.make(settings["algorithm"], dict(settings["parameters"]))
    options = make_options(**settings["run"], seed=cell.seed, workers=1)
    graph = settings["graph"] if method.default_graph() is not None else None
    run = prepare(federation, settings["model"], method, options, graph, cell.run_folder, [_until(watch)])
    run.take_up()
    result = run.run()
    if run.state.round < options.rounds:
        return None
    return describe(result, cell.logs, method.model_dump().get("period") or 1)


def _until(watch: Watch) -> Callback:
    from fedkin.run.callbacks import Callback

    class Until(Callback):
        def on_round(self, run: Any, record: Any) -> bool:
            return watch(record["round"], run.options.rounds)

    return Until()


def describe(result: Result, logs: Sequence[str] = (), period: int = 1) -> Record:
    """What a cell keeps of a run: summaries *pre* and *post*, every client, the curve over rounds, some of the log.

    Entries of the log are kept for every `period`-th round, with their last and smallest value.
    """
    import numpy as np

    record: Record = {"training_seconds": result.facts["seconds"], "bytes": result.facts["bytes"]}
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
    record["clients"] = {when: result.metrics[when][result.metric] for when in ("pre", "post")}
    for key in logs:
        kept = [(entry["round"], entry["log"].get(key)) for entry in result.history if entry["round"] % period == 0]
        known = [(round, value) for round, value in kept if value is not None]
        record.setdefault("lines", {})[key] = dict(zip("xy", zip(*known)))
        if known:
            found = {f"{key}_last": known[-1][1], f"{key}_min": min(value for _, value in known)}
            record["pre"] |= found
            record["post"] |= found
    record["notes"] = result.notes
    return record


def _short(value: Any) -> Any:
    """Numbers with six digits: enough for every verdict, and a repository stays small."""
    value = plain(value)
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _short(entry) for key, entry in value.items()}
    return [_short(entry) for entry in value] if isinstance(value, list) else value
