"""Reproduce a table or figure: find out what is at hand, compute what is missing, report."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from fedkin.errors import FedkinError, unknown
from fedkin.reproduction import pool
from fedkin.reproduction.cells import Cell, cells_of
from fedkin.reproduction.kept import Kept
from fedkin.reproduction.summary import Measured, summary_of
from fedkin.reproduction.tables import SCALES, PublishedTable, find_table


@dataclass(frozen=True)
class Reproduction:
    """A table at a scale: its cells, what of them is kept already, and what cannot be run and why."""

    table: PublishedTable
    scale: str
    kept: Kept
    cells: tuple[Cell, ...]
    missing: Mapping[str, str]
    """Column or row → reason."""
    todo: tuple[Cell, ...]

    @property
    def measured(self) -> Measured:
        return Measured.read(self.table, self.scale, self.cells, self.kept)

    def summary(self) -> dict[str, Any]:
        """What is reported; where no seed is kept, with the reason. Nothing is imported to find it: to show is quick."""
        kept = {(cell.row, cell.column) for cell in self.cells if cell.key in self.kept.records}
        lacking = [cell for cell in self.cells if (cell.row, cell.column) not in kept]
        places = {name for cell in lacking for name in (cell.row, cell.column)}
        planned = {name: reason for name, reason in self.missing.items() if name in places}
        return summary_of(self.measured, planned | missing(lacking, code=False))

    @property
    def picture(self) -> Path:
        return self.kept.picture(self.table.name, self.scale)

    @property
    def found(self) -> set[str]:
        """The keys of the cells that have numbers already, outdated or not, here or in another table."""
        return {cell.key for cell in self.cells if cell.key in self.kept.records}


def plan(
    name: str,
    scale: str,
    kept: Kept,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    seeds: int | None = None,
    any_code: bool = False,
    download: bool = False,
    showing: bool = False,
) -> Reproduction:
    """What there is to do. `rows` and `columns` restrict it; `any_code` keeps outdated cells; `download` tries;
    `showing` what is kept, there is nothing to do."""
    table = find_table(name)
    every = cells_of(table, scale, seeds)
    for kind, wanted, known in (("row", rows, table.rows), ("column", columns, table.columns)):
        for entry in wanted or ():
            if entry not in known:
                raise unknown(f"{kind} of {name}", entry, known)
    asked_rows, asked_columns = (table.rows if rows is None else rows), (table.columns if columns is None else columns)
    asked = [] if showing else [cell for cell in every if cell.column in asked_columns]
    lacking = [cell for cell in asked if _is_lacking(cell, kept, any_code)]
    absent = missing(lacking, download)
    for entry in columns or ():
        if entry in absent:
            raise FedkinError(f"{name}, {entry}: {absent[entry]}")
    todo: dict[str, Cell] = {}
    for cell in lacking:
        if cell.row in asked_rows and cell.column not in absent and cell.row not in absent:
            todo.setdefault(cell.key, cell)
    return Reproduction(table, scale, kept, tuple(every), absent, tuple(todo.values()))


def _is_lacking(cell: Cell, kept: Kept, any_code: bool) -> bool:
    record = kept.records.get(cell.key)
    return record is None or (bool(record.get("outdated")) and not any_code)


def missing(cells: Iterable[Cell], download: bool = False, code: bool = True) -> dict[str, str]:
    """What cannot be run here, and why: columns without data or model, rows whose method is not in this version.

    Without `code` models and functions, which are only known once torch is imported, are taken to be there."""
    from fedkin import algorithms

    rows: dict[str, Cell] = {}
    columns: dict[str, Cell] = {}
    for cell in cells:
        rows.setdefault(cell.row, cell)
        columns.setdefault(cell.column, cell)
    methods = set(algorithms.names())
    found = {name: _row_missing(cell, methods, code) for name, cell in rows.items()}
    found |= {name: _column_missing(cell, download, code) for name, cell in columns.items()}
    return {name: reason for name, reason in found.items() if reason}


def _row_missing(cell: Cell, methods: set[str], code: bool) -> str | None:
    algorithm, function = cell.settings.get("algorithm"), cell.settings.get("function")
    if algorithm and algorithm not in methods:
        return f"the method {algorithm!r} is not available in this version"
    if code and function and not _exists(function):
        return f"the function {function!r} is not available in this version"
    return None


def _exists(function: str) -> bool:
    try:
        resolve_name(function)
    except (ImportError, AttributeError):
        return False
    return True


def _column_missing(cell: Cell, download: bool, code: bool) -> str | None:
    from fedkin import data

    if code:
        from fedkin.models import NETWORKS

        model = cell.settings.get("model", "mlp").partition(":")[0]
        if model not in NETWORKS:
            return f"the model {model!r} is not available in this version"
    source = find_table(cell.table).columns[cell.column].source.get("name")
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


def carry_out(chosen: Reproduction, jobs: int | None = None, tell: pool.Tell = lambda cell, kind, detail: None) -> bool:
    """Compute what is to do; False if interrupted. Everything finished is on disk, the rest goes on next time."""
    if not chosen.todo and not chosen.found:
        reasons = "; ".join(dict.fromkeys(chosen.missing.values()))
        raise FedkinError(f"{chosen.table.name}: nothing can be run here: {reasons}")
    done = pool.compute_all(chosen.todo, chosen.kept, cores() if jobs is None else jobs, tell)
    if chosen.table.kind == "figure":
        from fedkin.reproduction.figures import draw_published

        draw_published(chosen.measured, chosen.picture)
    return done


def verify(name: str, kept: Kept) -> Counter[str]:
    """Make the fingerprints of a table's kept cells anew, and mark those whose code does something else by now.

    Returns how many the code at hand would give again ("same"), or not ("outdated"), or cannot be told of here ("unknown").
    """
    from fedkin.reproduction.behaviour import behaviour_of

    table, counts = find_table(name), Counter[str]()
    seeds = 1 + max((record["seed"] for record in kept.records.values()), default=0)
    scales = [scale for scale in SCALES if scale == "paper" or scale in table.scales]
    cells = {cell.key: cell for scale in scales for cell in cells_of(table, scale, seeds) if cell.key in kept.records}
    changed = []
    for key, cell in cells.items():
        record = kept.records[key]
        known, does = record["fingerprint"], behaviour_of(cell.settings, cell.short)
        outcome = "unknown" if None in (known, does) else "same" if known == does else "outdated"
        counts[outcome] += 1
        if outcome != "unknown" and bool(record.get("outdated")) != (outcome == "outdated"):
            unmarked = {entry: value for entry, value in record.items() if entry != "outdated"}
            changed.append(unmarked | ({"outdated": True} if outcome == "outdated" else {}))
    kept.put(name, changed)
    return counts
