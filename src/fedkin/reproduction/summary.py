"""From kept cells to what is reported: measured numbers beside published ones, verdicts, claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedkin.reproduction.cells import Cell
from fedkin.reproduction.kept import CellRecord, Kept
from fedkin.reproduction.tables import PublishedTable, When
from fedkin.reproduction.verdicts import Number, check_claims, parse_published, verdict

SPREAD_OF = {"mean": "std", "global": "global_std"}
"""The spread over clients that belongs to a mean over clients."""
ROUNDS_TO = "rounds_to"
"""The statistic that is read off the curve over rounds."""


class Measured:
    """All seeds of all cells of a table at one scale."""

    def __init__(
        self, table: PublishedTable, scale: str, records: Mapping[tuple[str, str], Sequence[CellRecord]]
    ) -> None:
        self.table, self.scale, self.records = table, scale, records

    @classmethod
    def read(cls, table: PublishedTable, scale: str, cells: Sequence[Cell], kept: Kept) -> Measured:
        records: dict[tuple[str, str], list[CellRecord]] = {}
        for cell in cells:
            record = kept.records.get(cell.key)
            if record is not None:
                records.setdefault((cell.row, cell.column), []).append(record)
        return cls(table, scale, records)

    def good(self, row: str, column: str) -> list[CellRecord]:
        return [record for record in self.records.get((row, column), ()) if "failed" not in record]

    def number(self, row: str, column: str, statistic: str, when: When) -> Number | None:
        """The mean over seeds, and the spread as the paper reports it: over clients (averaged) or over seeds."""
        if self.table.function:
            entry = self.entry(row, column)
            value = entry.get(statistic)
            return None if value is None else Number(float(value), entry.get("std") if statistic == "mean" else None)
        if statistic == ROUNDS_TO:
            return self.rounds_to(row, column, when)
        found = [record[when] for record in self.good(row, column) if record.get(when, {}).get(statistic) is not None]
        if not found:
            return None
        factor = 100 if self.table.percent else 1
        values = np.array([entry[statistic] for entry in found], dtype=float) * factor
        spread: float | None = None
        if self.table.spread == "clients" and SPREAD_OF.get(statistic) in found[0]:
            spread = float(np.mean([entry[SPREAD_OF[statistic]] for entry in found])) * factor
        elif self.table.spread != "none" and len(values) > 1:
            spread = float(values.std())
        return Number(float(values.mean()), spread)

    def rounds_to(self, row: str, column: str, when: When) -> Number | None:
        """The first evaluated round in which the mean over clients is as good as the column's level; None if never, or if it was
        tested more often at the other moment, so that the first round is not known."""
        level, sign = self.table.columns[column].level, 1 if self.table.larger_is_better else -1
        told = [record["curve"] for record in self.good(row, column) if when in record.get("curve", {})]
        often = [max(len(curves[moment]["round"]) for moment in ("pre", "post") if moment in curves) for curves in told]
        curves = [found[when] for found, most in zip(told, often) if len(found[when]["round"]) == most]
        if len(curves) < len(told):
            return None
        first = [
            next(
                (
                    t
                    for t, mean in zip(curve["round"], curve["mean"])
                    if level is not None and sign * (mean - level) >= 0
                ),
                None,
            )
            for curve in curves
        ]
        known = [round for round in first if round is not None]
        if not curves or len(known) < len(curves):
            return None
        return Number(float(np.mean(known)), float(np.std(known)) if len(known) > 1 else None)

    def entry(self, row: str, column: str) -> Mapping[str, Any]:
        """What a whole figure's function says of this cell."""
        labels = {**self.table.columns[column].labels, **self.table.rows[row].labels}
        for record in self.good(row, column):
            for entry in record["figure"]["rows"]:
                if all(entry.get(key) == value for key, value in labels.items()):
                    return dict(entry)
        return {}

    def claims(self) -> list[dict[str, Any]]:
        """The paper's claims: those of the TOML file, and those that a whole figure's function checks itself."""
        found = check_claims(self.table, self.value)
        for record in next(iter(self.records.values()), ()) if self.table.function else ():
            for claim in record.get("figure", {}).get("claims", ()):
                mark = "holds" if claim["holds"] else "does not hold"
                found.append({"says": claim["says"], "check": "", "column": "", "mark": mark, "margin": {}})
        return found

    def tested(self, row: str, column: str, statistic: str, published: Number | None) -> When:
        """Pre or post, as the paper tests; where it does not say, what lies nearer to what it prints."""
        moment = self.table.when(row)
        if moment != "either":
            return moment
        pre, post = (self.number(row, column, statistic, when) for when in ("pre", "post"))
        if published is None or pre is None or post is None:
            return "post"
        return "pre" if abs(pre.value - published.value) < abs(post.value - published.value) else "post"

    def value(self, row: str, column: str, statistic: str, when: When | None) -> float | None:
        """The mean for claims. Fine-tuning means tested after local training, whenever the others are tested."""
        moment: When = when or ("pre" if self.table.when(row) == "pre" else "post")
        if self.table.rows[row].algorithm == "fedavgft":
            moment = "post"
        number = self.number(row, column, statistic, moment)
        return None if number is None else number.value


def summary_of(measured: Measured, missing: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Everything that is reported, ready for JSON. `missing` says why rows or columns could not be run."""
    table, scale = measured.table, measured.scale
    lines = [
        _line(measured, row, column, statistic, place, missing or {})
        for row, column in table.places("paper")
        for place, statistic in enumerate(table.statistics)
    ]
    records = list({record["key"]: record for group in measured.records.values() for record in group}.values())
    reduced = table.reduction(scale)
    return {
        "name": table.name,
        "title": table.title,
        "paper": table.paper,
        "kind": table.kind,
        "scale": scale,
        "reduced": reduced.says,
        "seeds": max((len(group) for group in measured.records.values()), default=0),
        "spread": table.spread,
        "shows": table.shows,
        "cells": lines,
        "claims": measured.claims(),
        "uncertain": table.uncertain,
        "notes": list(dict.fromkeys(note for record in records for note in record.get("notes", ()))),
        "older_code": sum(bool(record.get("outdated")) for record in records),
        "seconds": sum(record["seconds"] for record in records),
        "versions": records[0]["versions"] if records else {},
    }


def _line(
    measured: Measured, row: str, column: str, statistic: str, place: int, missing: Mapping[str, str]
) -> dict[str, Any]:
    """One published number and what was measured in its place."""
    table = measured.table
    text = table.rows[row].published.get(column)
    published = None if text is None else parse_published(text)[place]
    pre, post = (measured.number(row, column, statistic, when) for when in ("pre", "post"))
    line: dict[str, Any] = {"row": row, "column": column, "statistic": statistic}
    for name, number in (("published", published), ("pre", pre), ("post", post)):
        line[name] = None if number is None else {"value": number.value, "spread": number.spread}
    when = measured.tested(row, column, statistic, published)
    line |= {"tested": when, "difference": None, "verdict": ""}
    found = pre if when == "pre" else post
    if found is None:
        line["verdict"] = _absent(measured, row, column, statistic, missing)
    elif published is None:
        known = measured.entry(row, column).get("reference") if table.function and statistic == "mean" else None
        line["verdict"] = "not in the paper" if known is None else f"no number printed; a simulation gives {known:g}"
    elif measured.scale == "smoke":
        line["verdict"] = "not comparable: a smoke test"
    else:
        line["difference"] = found.value - published.value
        line["verdict"] = _verdict(measured, column, published, found.value)
    return line


def _verdict(measured: Measured, column: str, published: Number, found: float) -> str:
    caution = measured.table.columns[column].caution
    if caution:
        return f"not comparable: {caution}"
    return verdict(published, found, measured.table.percent)


def _absent(measured: Measured, row: str, column: str, statistic: str, missing: Mapping[str, str]) -> str:
    if statistic == ROUNDS_TO and measured.good(row, column):
        return f"never at {measured.table.columns[column].level:g}"
    failed = [record["failed"] for record in measured.records.get((row, column), ()) if "failed" in record]
    if failed:
        return f"broke off: {failed[0]}"
    reason = missing.get(column) or missing.get(row)
    if reason:
        return f"not run: {reason}"
    return (
        "not run yet"
        if (row, column) in measured.table.places(measured.scale)
        else f"not run at {measured.scale} scale"
    )
