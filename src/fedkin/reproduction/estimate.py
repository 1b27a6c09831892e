"""How long a table would take on this machine: a short probe of every model, times the work of the cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedkin.reproduction.cells import Cell, cells_of
from fedkin.reproduction.reproduce import cores, missing
from fedkin.reproduction.speed import probe
from fedkin.reproduction.tables import SCALES, Table, get, names

EFFORT = {
    "ditto": 2.0,
    "fedcedar": 1.4,
    "fedska": 3.2,
    "global": 1.8,
    "ifca": 1.9,
    "mocha": 1.3,
    "perfedavg": 2.3,
    "pfedbayes": 12.0,
    "pfedme": 6.5,
    "sfl": 1.6,
}
"""What a cell costs in units of FedAvg: medians over the kept cells (pFedBayes: a probe)."""


def listing(out: Path) -> list[dict[str, Any]]:
    """Every table and figure: what it needs, what is kept under `out`, and seconds by scale (None: unknown)."""
    found = []
    for name in names():
        table = get(name)
        absent = missing(table, "paper")
        found.append(
            {
                "name": name,
                "title": table.title,
                "kind": table.kind,
                "needs": _needs(table, absent),
                "missing": absent,
                "kept": [scale for scale in SCALES if any((out / name / scale).glob("*.json"))],
                "seconds": {scale: _seconds(table, scale) for scale in ("desk", "paper")},
            }
        )
    return found


def _needs(table: Table, absent: dict[str, str]) -> str:
    """The data sets and, of those and of the methods, what is not at hand."""
    sets = dict.fromkeys(str(column.source["name"]) for column in table.columns.values() if column.source)
    lacking = dict.fromkeys(
        str(table.columns[key].source["name"]) if reason.startswith("no data") else reason.split("'")[1]
        for key, reason in absent.items()
        if key in table.columns or "'" in reason
    )
    have = [name for name in sets if name not in lacking] or ["nothing" if not sets else ""]
    text = ", ".join(filter(None, have))
    return text if not lacking else f"{text}{'; ' if text else ''}missing: {', '.join(lacking)}"


def _seconds(table: Table, scale: str) -> float | None:
    """The time on all cores of this machine; rows and columns that cannot be run here are left out."""
    if scale != "paper" and scale not in table.scales:
        return None
    absent = missing(table, scale)
    cells = {
        cell.key: cell
        for cell in cells_of(table, scale, Path(), seeds=1)
        if cell.row not in absent and cell.column not in absent
    }
    trained = [cell for cell in cells.values() if "function" not in cell.settings]
    if not trained:
        return table.cost.get(scale) if cells else None
    seeds = table.scale(scale).seeds or table.seeds
    total = sum(work(cell, table) for cell in trained) * seeds
    return total / min(cores(), len(trained) * seeds)


def work(cell: Cell, table: Table) -> float:
    """Seconds of one cell on one core: rate × samples × epochs × (rounds of training + evaluations after training)."""
    column, settings = table.columns[cell.column], cell.settings
    run, parameters, source = settings["run"], settings["parameters"], settings["data"]
    samples = float(column.samples)
    if "clients" in source and "clients" in column.data:
        samples *= source["clients"] / column.data["clients"]
    samples *= column.data.get("stride", 1) / source.get("stride", 1)
    if "samples" in source:
        samples = min(samples, 0.75 * source["samples"])
    fraction = run.get("fraction", 1.0)
    every = run.get("eval_every") or max(1, -(-cell.rounds // 10))
    evaluations = -(-cell.rounds // every) if fraction == 1 else 1
    passes = cell.rounds * fraction + evaluations
    rate = probe(settings["model"], source["name"], int(parameters.get("batch_size", 32)))
    return rate * samples * parameters.get("epochs", 1) * passes * EFFORT.get(settings["algorithm"], 1.0)
