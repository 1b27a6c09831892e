"""Reproduce a table or figure: find out what is at hand, compute what is missing, report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from fedkin.errors import FedkinError, unknown
from fedkin.files import write_json
from fedkin.reproduction import pool
from fedkin.reproduction.cells import Cell, cells_of
from fedkin.reproduction.summary import Measured, summarise
from fedkin.reproduction.tables import Table, get

RESULTS = Path("results")


@dataclass(frozen=True)
class Plan:
    """A table at a scale: its cells, what of them is kept already, and what cannot be run and why."""

    table: Table
    scale: str
    folder: Path
    cells: tuple[Cell, ...]
    missing: Mapping[str, str]
    """Column or row → reason."""
    todo: tuple[Cell, ...]

    def summary(self) -> dict[str, Any]:
        return summarise(Measured.read(self.table, self.scale, self.cells), self.missing)

    def write(self) -> dict[str, Any]:
        """summary.json and, for figures, the picture."""
        from fedkin.reproduction.figures import draw

        found = self.summary()
        write_json(self.folder / "summary.json", found)
        if self.table.kind == "figure":
            draw(Measured.read(self.table, self.scale, self.cells), self.folder / "figure.png")
        return found

    @property
    def kept(self) -> set[str]:
        """The keys of the cells that have numbers already, of whatever code, here or in another table."""
        return {cell.key for cell in self.cells if cell.read() is not None}


def plan(
    name: str,
    scale: str = "desk",
    out: Path = RESULTS,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    seeds: int | None = None,
    any_code: bool = False,
    download: bool = False,
) -> Plan:
    """What there is to do. `rows` and `columns` restrict it; `any_code` keeps cells of older code; `download` tries."""
    table = get(name)
    folder = out / name / scale
    every = cells_of(table, scale, folder, seeds)
    for kind, wanted, known in (("row", rows, table.rows), ("column", columns, table.columns)):
        for entry in wanted or ():
            if entry not in known:
                raise unknown(f"{kind} of {name}", entry, known)
    absent = missing(table, scale, columns, download)
    for entry in columns or ():
        if entry in absent:
            raise FedkinError(f"{name}, {entry}: {absent[entry]}")
    todo: dict[str, Cell] = {}
    for cell in every:
        asked = (rows is None or cell.row in rows) and (columns is None or cell.column in columns)
        if asked and cell.column not in absent and cell.row not in absent and not _kept(cell, any_code):
            todo.setdefault(cell.key, cell)
    return Plan(table, scale, folder, tuple(every), absent, tuple(todo.values()))


def _kept(cell: Cell, any_code: bool) -> bool:
    record = cell.read()
    return record is not None and (any_code or cell.is_current(record))


def missing(table: Table, scale: str, only: Sequence[str] | None = None, download: bool = False) -> dict[str, str]:
    """What cannot be run here, and why: columns without data or model, rows whose method is not in this version."""
    from fedkin import algorithms

    places = table.places(scale)
    found: dict[str, str] = {}
    for name in dict.fromkeys(row for row, _ in places):
        row = table.rows[name]
        if row.algorithm and row.algorithm not in algorithms.names():
            found[name] = f"the method {row.algorithm!r} is not available in this version"
        function = table.function or row.function
        if function and not _exists(function):
            found[name] = f"the function {function!r} is not available in this version"
    for name in dict.fromkeys(column for _, column in places):
        if only is None or name in only:
            reason = _column_missing(table, name, scale, download)
            if reason:
                found[name] = reason
    return found


def _exists(function: str) -> bool:
    try:
        resolve_name(function)
    except (ImportError, AttributeError):
        return False
    return True


def _column_missing(table: Table, name: str, scale: str, download: bool) -> str | None:
    from fedkin import data
    from fedkin.models import NETWORKS

    row = next(row for row, column in table.places(scale) if column == name)
    settings = table.settings(row, name, scale)
    model = settings.get("model", "mlp").partition(":")[0]
    if model not in NETWORKS:
        return f"the model {model!r} is not available in this version"
    source = table.columns[name].source.get("name")
    if source is None:
        return None
    try:
        at_hand = data.info(source)["at_hand"]
        if at_hand == "by download" and download:
            data.prepare(source)
    except FedkinError as problem:
        return f"no data: {problem}"
    if at_hand == "not at hand" or (at_hand == "by download" and not download):
        return f"no data: {source} is {at_hand}; put its files in a folder named by FEDKIN_DATA"
    return None


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(chosen: Plan, jobs: int | None = None, tell: pool.Tell = lambda cell, kind, detail: None) -> bool:
    """Compute what is to do; False if interrupted. Everything finished is on disk, the rest goes on next time."""
    if not chosen.todo and not chosen.kept:
        reasons = "; ".join(dict.fromkeys(chosen.missing.values()))
        raise FedkinError(f"{chosen.table.name}: nothing can be run here: {reasons}")
    done = pool.run(chosen.todo, cores() if jobs is None else jobs, tell)
    chosen.write()
    return done
