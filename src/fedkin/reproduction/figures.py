"""Figures drawn from kept cells: one panel per column, *pre* dashed and *post* solid."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.reproduction.summary import Measured
from fedkin.reproduction.tables import Panel, When

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOMENTS: tuple[tuple[When, str], ...] = (("pre", "--"), ("post", "-"))


def draw_published(measured: Measured, path: Path) -> Path | None:
    """Write the picture of a figure; None if nothing of it is measured yet."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    table = measured.table
    columns = [c for c in table.columns if any(measured.good(row, c) for row in table.rows)]
    if not columns:
        return None
    drawn = [(column, what) for what in table.drawing.panels for column in columns if _has(measured, column, what)]
    across = min(3, len(columns))
    down = -(-len(drawn) // across)
    figure = Figure(figsize=(4.6 * across + 1.8, 3.4 * down), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, across, squeeze=False).flat
    for (column, what), panel in zip(drawn, panels):
        if table.drawing.kind == "rounds" or what != "metric":
            _rounds(panel, measured, column, what)
            panel.set(xlabel="round", ylabel="training loss" if what == "loss" else table.drawing.y)
        else:
            PAINTERS[table.drawing.kind](panel, measured, column)
            panel.set(xlabel=table.drawing.x, ylabel=table.drawing.y)
        panel.set(title=table.columns[column].title)
        if table.drawing.log_x:
            panel.set_xscale("symlog", linthresh=1e-4)
        if table.drawing.log_y:
            panel.set_yscale("log")
    for panel in panels:
        panel.axis("off")
    handles: dict[str, Any] = {}
    for panel in figure.axes:
        handles |= {str(label): handle for handle, label in zip(*panel.get_legend_handles_labels())}
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    _save(figure, path)
    return path


def _save(figure: Figure, path: Path) -> None:
    """As a PNG of 64 colours, a third of the size of all colours; the page is read over slow lines, too."""
    from PIL import Image

    drawn = BytesIO()
    figure.savefig(drawn, dpi=75)
    with Image.open(drawn) as picture:
        picture.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)


def _measured_rows(measured: Measured, column: str) -> Iterator[tuple[int, str, str]]:
    """(place, row, title) of the rows with results in this column; the place fixes the colour."""
    for place, (row, what) in enumerate(measured.table.rows.items()):
        if measured.good(row, column):
            yield place, row, what.title


CURVES: dict[Panel, dict[When, str]] = {
    "metric": {"pre": "pre", "post": "post"},
    "global": {"pre": "global_pre", "post": "global_post"},
    "loss": {"post": "loss"},
}
"""A record's curves, by what they are of and when it was tested."""


def _curves(measured: Measured, row: str, column: str, name: str) -> list[Any]:
    """The curves of this name over the same rounds, one per seed; cells that are kept from before may lack some."""
    told = [record["curve"][name] for record in measured.good(row, column) if name in record.get("curve", {})]
    return [curve for curve in told if len(curve["round"]) and list(curve["round"]) == list(told[0]["round"])]


def _has(measured: Measured, column: str, what: Panel) -> bool:
    """Whether there is something to draw; what is not a curve has been asked for already."""
    names = CURVES[what].values()
    return what == "metric" or any(
        _curves(measured, row, column, name) for row in measured.table.rows for name in names
    )


def _rounds(panel: Axes, measured: Measured, column: str, what: Panel) -> None:
    """The mean over clients and seeds after every evaluated round; of the training loss one line, of others two."""
    factor = 100 if measured.table.percent and what != "loss" else 1
    rows = list(_measured_rows(measured, column))
    methods = {row: measured.table.rows[row].algorithm for _, row, _ in rows}
    for place, row, title in rows:
        moments = [moment for moment in MOMENTS if moment[0] in CURVES[what]]
        if what != "loss" and "fedavgft" in methods.values() and methods[row] in ("fedavg", "fedavgft"):
            moments = moments[:1] if methods[row] == "fedavg" else moments[1:]  # one run, drawn once
        for when, style in moments:
            curves = _curves(measured, row, column, CURVES[what][when])
            if curves:
                mean = np.mean([curve["mean"] for curve in curves], axis=0) * factor
                label = title if when == moments[-1][0] else None
                panel.plot(curves[0]["round"], mean, style, color=f"C{place % 10}", label=label, linewidth=1.2)
    for when, style in MOMENTS if what != "loss" else ():
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


PAINTERS = {"rows": _rows, "bars": _bars, "lines": _lines, "matrix": _matrix}
