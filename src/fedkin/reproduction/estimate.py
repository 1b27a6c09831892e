"""How long a table would take: what kept cells of its kind took, by the round."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from fedkin.reproduction.cells import cells_of
from fedkin.reproduction.kept import Kept
from fedkin.reproduction.reproduce import cores, missing
from fedkin.reproduction.tables import SCALES, PublishedTable, find_table, table_names

Rates = Mapping[tuple[str, ...], list[float]]
"""Kind of cell → seconds per round of the kept ones."""


def listing(kept: Kept) -> list[dict[str, Any]]:
    """Every table and figure: what it needs, what is kept, and by scale the seconds (None: unknown) and how many of its
    cells they leave out, because nothing like them is kept."""
    rates: dict[tuple[str, ...], list[float]] = {}
    for record in kept.records.values():
        for kind in _kinds(record["settings"]):
            rates.setdefault(kind, []).append(record["seconds"] / _rounds(record["settings"]))
    found = []
    for name in table_names():
        table = find_table(name)
        absent = missing(cells_of(table, "paper", seeds=1), code=False)  # without torch: a list is to be there at once
        times = {scale: _seconds(table, scale, absent, rates) for scale in ("desk", "paper")}
        found.append(
            {
                "name": name,
                "title": table.title,
                "kind": table.kind,
                "needs": _needs(table, absent),
                "missing": absent,
                "kept": [scale for scale in SCALES if kept.of(name, scale) or kept.picture(name, scale).exists()],
                "seconds": {scale: seconds for scale, (seconds, _) in times.items()},
                "unknown": {scale: unknown for scale, (_, unknown) in times.items()},
            }
        )
    return found


def _needs(table: PublishedTable, absent: dict[str, str]) -> str:
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


def _rounds(settings: Mapping[str, Any]) -> int:
    return int(settings.get("run", {}).get("rounds", 1))


def _kinds(settings: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """From the same cell over another number of rounds to any method with this model on this data."""
    if "function" in settings:
        yield ("cell", json.dumps(settings, sort_keys=True))
        return
    yield ("cell", json.dumps({**settings, "run": {**settings["run"], "rounds": None}}, sort_keys=True))
    model, data = settings["model"], settings["data"]["name"]
    yield ("method", settings["algorithm"], model, data)
    yield ("model", model, data)


def seconds_of(settings: Mapping[str, Any], rates: Rates) -> float | None:
    """Seconds of one cell on one core: the median rate of the kept cells most like it, times its rounds."""
    alike = next((rates[kind] for kind in _kinds(settings) if kind in rates), None)
    return None if alike is None else median(alike) * _rounds(settings)


def _seconds(table: PublishedTable, scale: str, absent: Mapping[str, str], rates: Rates) -> tuple[float | None, int]:
    """The time on all cores of this machine, and how many cells it leaves out: those that nothing kept is like. What cannot
    be run here counts nowhere."""
    if scale != "paper" and scale not in table.scales:
        return None, 0
    cells = {c.key: c for c in cells_of(table, scale, seeds=1) if c.row not in absent and c.column not in absent}
    spent = [seconds for c in cells.values() if (seconds := seconds_of(c.settings, rates)) is not None]
    seeds = table.reduction(scale).seeds or table.seeds
    unknown = (len(cells) - len(spent)) * seeds
    return (sum(spent) * seeds / min(cores(), len(spent) * seeds) if spent else None), unknown
