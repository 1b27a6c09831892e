"""What commands print: tables and messages on standard output, progress on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

from fedkin.data.progress import working as working

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from fedkin.comparison import Comparison
    from fedkin.result import Result

PIPE_WIDTH = 120


def console() -> Console:
    """Standard output; wide enough for our tables where it is no terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False, soft_wrap=False)


def table(*columns: str, caption: str | None = None, title: str | None = None) -> Table:
    """A plain table: first column to the left, the others to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        caption=caption,
        caption_justify="left",
        title=title,
        title_justify="left",
    )
    for k, column in enumerate(columns):
        made.add_column(column, justify="right" if k else "left", no_wrap=True)
    return made


def facts(rows: dict[str, Any]) -> Table:
    """Names and values, one per line."""
    from rich.table import Table

    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows.items():
        made.add_row(name, str(value))
    return made


def comparison_table(comparison: Comparison) -> Table:
    """Per method, averaged over seeds: the headline metric over clients, its tails, gains, pre and post, cost."""
    from fedkin.reports.wording import human_bytes

    lines, metric = comparison.lines, comparison.results[0].task.headline_metric
    seeds = max(len(line.seeds) for line in lines)
    rows = []
    for line in lines:
        own = line.deployed
        cells = {
            "method": line.algorithm + ("" if line.algorithm in comparison.listed else " *"),
            metric.heading: f"{metric.number(own['mean'])} ± {metric.number(own['std'])}",
            "± seeds": metric.number(line.seed_std),
            "best 5 %": metric.number(own["best5"]),
            "worst 5 %": metric.number(own["worst5"]),
            "gained/lost": "–" if line.is_alone else f"{line.gained} / {line.lost}",
            "pre": metric.number(line.pre["mean"]),
            "post": metric.number(line.post["mean"]),
            "exchanged": human_bytes(line.bytes),
            "s": f"{line.seconds:.1f}",
        }
        if seeds == 1:
            del cells["± seeds"]
        rows.append(cells)
    made = table(*rows[0], caption=_caption(comparison, seeds))
    for cells in rows:
        made.add_row(*cells.values())
    return made


def _caption(comparison: Comparison, seeds: int) -> str:
    """What the numbers of a comparison are, below its table."""
    from fedkin.result.summary import coverage

    lines, metric = comparison.lines, comparison.results[0].task.headline_metric
    clients, counted = len(comparison.results[0].names), max(line.counted for line in lines)
    told = f"{metric.heading} of the models {clients} clients would deploy, on their own test samples: mean ± std over clients"
    if seeds > 1:
        told += f"; all numbers are means over {seeds} seeds, '± seeds' is the std of the mean over seeds"
    draws = lines[0].clients // clients
    averaged = ", averaged over seeds" if seeds > draws else ""
    drawn = f" in {draws} draws of the data" if draws > 1 else ""
    told += (
        f".\ngained/lost: clients that do better/worse than when training alone (local){averaged}, of {counted}{drawn}."
    )
    told += f"\n{metric.better}; pre/post: before/after local training."
    fewest = min(lines, key=lambda line: line.valued)
    if missing := coverage(metric.label, fewest.valued, fewest.clients):
        told += f"\n{missing}."
    if any(line.algorithm not in comparison.listed for line in lines):
        told += "\n* local was not asked for; it is run for the gains."
    return told


def result_tables(result: Result, most: int = 20) -> Iterator[Table]:
    """A run: the summary over clients and, for up to `most` clients, one line each."""
    from fedkin.result.summary import coverage

    metric = result.task.headline_metric
    missing = coverage(metric.label, result.valued, len(result.names))
    caption = metric.better + (f"; {missing}" if missing else "")
    summary = table(metric.heading, "mean", "std", "best 5 %", "worst 5 %", "over samples", caption=caption)
    for when in ("pre", "post", "deployed"):
        own = result.summary(when)
        parts = ("mean", "std", "best5", "worst5", "weighted")
        summary.add_row(when, *[metric.number(own[part]) for part in parts])
    yield summary
    if len(result.names) > most:
        return
    share, key = result.influence, result.metric
    each = table("client", "samples", "pre", "post", "deploys", *(["own share"] if share is not None else []))
    for k, name in enumerate(result.names):
        values = [metric.number(result.metrics[when][key][k]) for when in ("pre", "post")]
        shaped = [] if share is None else [f"{100 * share[k, k]:.0f} %"]
        each.add_row(name, str(result.sizes[k]), *values, result.choice[k], *shaped)
    yield each


def say(*lines: str) -> None:
    """Lines on standard output, never wrapped."""
    for line in lines:
        print(line)


@contextmanager
def warnings() -> Iterator[None]:
    """Warnings as one line each on standard error."""
    with catch_warnings(record=True) as caught:
        simplefilter("always", UserWarning)
        yield
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)


def wrote(path: Path | None) -> None:
    if path is not None:
        print(f"wrote {path}")


def some_of(values: Sequence[str], most: int = 8) -> str:
    """
    >>> some_of(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    rest = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(values[:most]) + rest if values else "none"
