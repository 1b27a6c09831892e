"""Summaries as text: tables for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedkin.reproduction.tables import PublishedTable

CELL_HEAD = ("method", "published", "pre", "post", "difference", "verdict")


def shown_number(entry: Mapping[str, Any] | None, percent: bool = True) -> str:
    """
    >>> shown_number({"value": 97.234, "spread": 1.4}), shown_number(None), shown_number({"value": 0.12345, "spread": None}, False)
    ('97.23 ± 1.40', '–', '0.123')
    """
    if entry is None:
        return "–"
    form = "{:.2f}" if percent else "{:.3g}"
    text = form.format(entry["value"])
    return text if entry["spread"] is None else f"{text} ± {form.format(entry['spread'])}"


def lines_of(table: PublishedTable, summary: Mapping[str, Any], column: str, statistic: str) -> Iterator[Sequence[str]]:
    """The lines of one column and statistic: method, published, pre, post, difference, verdict."""
    for cell in summary["cells"]:
        if (cell["column"], cell["statistic"]) != (column, statistic):
            continue
        shown = [shown_number(cell[key], table.percent) for key in ("published", "pre", "post")]
        off = "" if cell["difference"] is None else f"{cell['difference']:+.2f} ({cell['tested']})"
        if not table.percent and cell["difference"] is not None:
            off = f"{cell['difference']:+.3g} ({cell['tested']})"
        yield (table.rows[cell["row"]].title, *shown, off, cell["verdict"])


def blocks(table: PublishedTable, summary: Mapping[str, Any]) -> Iterator[tuple[str, list[Sequence[str]]]]:
    """One block per column and statistic that has anything measured or published: title and lines."""
    for column, what in table.columns.items():
        for statistic in table.statistics:
            lines = list(lines_of(table, summary, column, statistic))
            title = what.title if len(table.statistics) == 1 else f"{what.title}: {WORDS.get(statistic, statistic)}"
            if lines:
                yield title, lines


WORDS = {
    "mean": "mean over clients",
    "weighted": "over all test samples",
    "best5": "best 5 % of clients",
    "worst5": "worst 5 % of clients",
    "global": "on all clients' test samples",
    "mae_60": "mean absolute error, 60 minutes ahead",
    "mape_60": "mean absolute percentage error, 60 minutes ahead",
    "rmse_60": "root mean squared error, 60 minutes ahead",
    "rand_index_last": "Rand index of the last round",
    "rand_index_min": "smallest Rand index",
    "bound": "the bound",
}


def shown_claims(table: PublishedTable, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(claim, marks): columns with the same mark together, with the margin at *pre* and *post*."""
    found: dict[str, dict[str, list[str]]] = {}
    for claim in summary["claims"]:
        where = table.columns[claim["column"]].title if claim["column"] else ""
        form = "{:+.2f}" if table.percent else "{:+.3g}"
        margin = ", ".join(
            f"{when} {form.format(value)}" for when, value in claim["margin"].items() if when != "tested"
        )
        place = f"{where} ({margin})".strip() if margin else where
        found.setdefault(claim["says"], {}).setdefault(claim["mark"], []).append(place)
    return [
        (says, "; ".join(f"{mark}: {', '.join(where)}" if any(where) else mark for mark, where in marks.items()))
        for says, marks in found.items()
    ]
