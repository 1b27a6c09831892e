"""Figures drawn from kept cells: one panel per column, *pre* dashed and *post* solid."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.reproduction.summary import Measured
from fedkin.reproduction.tables import When

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOMENTS: tuple[tuple[When, str], ...] = (("pre", "--"), ("post", "-"))


def draw_published(measured: Measured, path: Path) -> Path | None:
    """Write the picture of a figure; None if nothing of it is measured yet."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    table = measured.table
    columns = [c for c in table.columns if any(measured.good(row, c) for row in table.rows)]
    if not columns:
        return None
    across = min(3, len(columns))
    down = -(-len(columns) // across)
    figure = Figure(figsize=(4.6 * across + 1.8, 3.4 * down), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, across, squeeze=False).flat
    for panel, column in zip(panels, columns):
        PAINTERS[table.drawing.kind](panel, measured, column)
        panel.set(title=table.columns[column].title, xlabel=table.drawing.x, ylabel=table.drawing.y)
        if table.drawing.log_x:
            panel.set_xscale("symlog", linthresh=1e-4)
        if table.drawing.log_y:
            panel.set_yscale("log")
    for panel in list(panels)[len(columns) :]:
        panel.axis("off")
    handles: dict[str, Any] = {}
    for panel in figure.axes:
        handles |= {str(label): handle for handle, label in zip(*panel.get_legend_handles_labels())}
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=75, metadata={"Software": None})
    return path


def _measured_rows(measured: Measured, column: str) -> Iterator[tuple[int, str, str]]:
    """(place, row, title) of the rows with results in this column; the place fixes the colour."""
    for place, (row, what) in enumerate(measured.table.rows.items()):
        if measured.good(row, column):
            yield place, row, what.title


def _rounds(panel: Axes, measured: Measured, column: str) -> None:
    """The mean over clients and seeds after every evaluated round."""
    factor = 100 if measured.table.percent else 1
    rows = list(_measured_rows(measured, column))
    methods = {row: measured.table.rows[row].algorithm for _, row, _ in rows}
    for place, row, title in rows:
        drawn = MOMENTS
        if "fedavgft" in methods.values() and methods[row] in ("fedavg", "fedavgft"):
            drawn = MOMENTS[:1] if methods[row] == "fedavg" else MOMENTS[1:]  # one run, drawn once
        for when, style in drawn:
            curves = [record["curve"][when] for record in measured.good(row, column) if record.get("curve")]
            if curves and curves[0]["round"]:
                mean = np.mean([curve["mean"] for curve in curves], axis=0) * factor
                label = title if when == drawn[-1][0] else None
                panel.plot(curves[0]["round"], mean, style, color=f"C{place % 10}", label=label, linewidth=1.2)
    for when, style in MOMENTS:
        panel.plot([], [], style, color="black", label=when, linewidth=1.2)


def _rows(panel: Axes, measured: Measured, column: str) -> None:
    """A line over the parameter of the rows; rows without one are level lines."""
    table = measured.table
    for number, statistic in enumerate(table.statistics):
        for when, style in MOMENTS:
            points = []
            for place, row, title in _measured_rows(measured, column):
                found, x = measured.number(row, column, statistic, when), table.rows[row].x
                if found is not None and x is not None:
                    points.append((x, found.value))
                elif found is not None and number == 0:
                    panel.axhline(
                        found.value, linestyle=style, color=f"C{(place + 1) % 10}", linewidth=0.8, label=title
                    )
            if points:
                label = f"{statistic}, {when}" if len(table.statistics) > 1 else when
                panel.plot(*zip(*sorted(points)), f"o{style}", color=f"C{number}", label=label, markersize=4)


def _bars(panel: Axes, measured: Measured, column: str) -> None:
    """Two bars per row, *pre* pale, and a mark where the paper's number is."""
    from fedkin.reproduction.verdicts import parse_published

    table = measured.table
    rows = list(_measured_rows(measured, column))
    for (when, _), shift, alpha in zip(MOMENTS, (-0.2, 0.2), (0.45, 1.0)):
        found = [measured.number(row, column, table.statistics[0], when) for _, row, _ in rows]
        heights = [np.nan if number is None else number.value for number in found]
        panel.bar(np.arange(len(rows)) + shift, heights, 0.4, alpha=alpha, color="C0", label=when)
    marks = [(k, table.rows[row].published.get(column)) for k, (_, row, _) in enumerate(rows)]
    known = [(k, number.value) for k, text in marks if text and (number := parse_published(text)[0]) is not None]
    if known:
        panel.plot(*zip(*known), "D", color="C3", markersize=5, label="published")
    panel.set_xticks(range(len(rows)), [title for *_, title in rows], rotation=45, ha="right", fontsize=7)


def _lines(panel: Axes, measured: Measured, column: str) -> None:
    """Lines that a function returned, or of the log, averaged over seeds."""
    for place, row, title in _measured_rows(measured, column):
        records = measured.good(row, column)
        for number, name in enumerate(records[0].get("lines", {})):
            found = [record["lines"][name] for record in records]
            y = np.nanmean(np.array([line["y"] for line in found], dtype=float), axis=0)
            label = title if len(records[0]["lines"]) == 1 else f"{title}, {name}"
            panel.plot(found[0]["x"], y, ("-", "--", ":", "-.")[number % 4], color=f"C{place % 10}", label=label)


def _matrix(panel: Axes, measured: Measured, column: str) -> None:
    """A matrix that a function returned (a graph), first row and seed."""
    row = next(row for _, row, _ in _measured_rows(measured, column))
    matrix = np.array(measured.good(row, column)[0]["matrix"], dtype=float)
    panel.imshow(matrix, cmap="viridis", interpolation="nearest")
    panel.locator_params(integer=True)


PAINTERS = {"rounds": _rounds, "rows": _rows, "bars": _bars, "lines": _lines, "matrix": _matrix}
