"""The report's figures as matplotlib axes, for papers and notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.graphs.drawing import draw
from fedkin.reports.units import clusters_of
from fedkin.result import Result
from fedkin.result.summary import gains as count_gains

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

BETTER, WORSE, ALONE = "#0072b2", "#d55e00", "#6b7280"
TEN = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c6bb1", "#8d99a6", "#7a4a1e")
"""Ten colours that colour-blind readers can tell apart (Okabe and Ito, and three more)."""


def federation_figure(federation: Federation, ax: Axes | None = None) -> Axes:
    """Who holds what: training samples of each client, stacked by class; plain bars for regression."""
    ax = _axes(ax, (max(5.0, min(14.0, 0.22 * len(federation) + 2)), 3.6))
    place = np.arange(len(federation))
    if federation.task.classes:
        counts, base = federation.label_counts(), np.zeros(len(federation))
        colours = categories(len(federation.task.classes))
        for code, label in enumerate(federation.task.classes):
            ax.bar(place, counts[:, code], bottom=base, width=0.85, color=colours[code], label=_literal(label))
            base += counts[:, code]
        if len(federation.task.classes) <= 20:
            ax.legend(
                title="class", fontsize=7, title_fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False
            )
    else:
        ax.bar(place, federation.train.sizes, width=0.85, color=BETTER)
    _name_clients(ax, federation.names)
    ax.set_ylabel("training samples")
    ax.margins(x=0.01)
    return _plain(ax)


def federation_map(federation: Federation, ax: Axes | None = None) -> Axes:
    """Where the clients are and who is joined with whom, from their latitudes and longitudes (`truth["coordinates"]`)."""
    from matplotlib.collections import LineCollection

    if "coordinates" not in federation.truth:
        raise FedkinError("the places of these clients are not known; there is no map to draw")
    ax = _axes(ax, (4.5, 6))
    latitude, longitude = np.asarray(federation.truth["coordinates"], dtype=float).T
    places = np.stack([longitude, latitude], axis=1)
    if federation.graph is not None:
        edges = np.stack(federation.graph.adjacency.nonzero(), axis=1)
        ends = places[edges[edges[:, 0] < edges[:, 1]]]
        ax.add_collection(LineCollection(list(ends), colors=ALONE, linewidths=0.6, alpha=0.6))
    ax.scatter(longitude, latitude, s=14, color=BETTER, zorder=2)
    ax.set_aspect(1 / np.cos(np.radians(latitude.mean())))
    ax.set(xlabel="longitude", ylabel="latitude")
    return _plain(ax)


def write_pictures(federation: Federation, path: Path) -> Path:
    """Who holds what, and beside it the map where the clients' places are known, in one file."""
    from matplotlib.figure import Figure

    mapped = "coordinates" in federation.truth
    width = max(5.0, min(14.0, 0.22 * len(federation) + 2))
    figure = Figure(figsize=(width + 4.5 * mapped, 6 if mapped else 3.6), layout="constrained")
    axes = figure.subplots(1, 1 + mapped, squeeze=False, width_ratios=[width, 4.5][: 1 + mapped])[0]
    federation_figure(federation, axes[0])
    if mapped:
        federation_map(federation, axes[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    return path


class ResultPlots:
    """`result.plot`: each method draws on `ax`, or on new axes, and returns them."""

    def __init__(self, result: Result) -> None:
        self.result = result

    def __repr__(self) -> str:
        return f"ResultPlots({self.result.title}: curves, graph, gains, influence)"

    def curves(self, metric: str | None = None, ax: Axes | None = None) -> Axes:
        """The mean over clients by round, before and after local training; bands span the middle 80 % of clients."""
        result, name = self.result, metric or self.result.metric
        ax = _axes(ax, (5.6, 3.6))
        for when, colour, label in (("pre", BETTER, "before local training"), ("post", WORSE, "after local training")):
            rounds, values = result.history.curve(name, when)
            if not len(rounds):
                continue
            low, high = np.nanpercentile(values, [10, 90], axis=1)
            ax.fill_between(rounds, low, high, color=colour, alpha=0.12, linewidth=0)
            ax.plot(
                rounds, np.nanmean(values, axis=1), color=colour, label=label, marker="o" if len(rounds) < 2 else None
            )
        if not ax.lines:
            known = sorted({key for record in result.history.evaluated() for key in record["pre"]})
            raise FedkinError(f"the history holds no {name!r}; it has {', '.join(known) or 'no evaluated round'}")
        ax.set_xlabel("round")
        ax.set_ylabel(name.replace("_", " "))
        ax.legend(frameon=False)
        return _plain(ax)

    def graph(
        self,
        colour: Literal["metric", "cluster", "gain"] = "metric",
        alone: Result | None = None,
        ax: Axes | None = None,
        seed: int = 0,
    ) -> Axes:
        """The client graph, coloured by the headline metric, by cluster, or by the gain over `alone`."""
        result = self.result
        if result.graph is None:
            raise FedkinError(f"{result.title} used no client graph; there is none to draw")
        if colour == "gain" and alone is None:
            raise FedkinError("colour='gain' needs the run of Local training: graph('gain', alone=…)")
        ax = _axes(ax, (6, 6))
        if colour == "cluster":
            found, _ = clusters_of(result)
            return draw(result.graph, ax, np.array(categories(int(found.max()) + 1))[found], seed)
        values = (
            np.array(result.metrics["deployed"][result.metric], dtype=float) if alone is None else self._gain(alone)
        )
        most = max(float(np.nanmax(np.abs(values))), 1e-12)
        low, high = (-most, most) if colour == "gain" else (float(np.nanmin(values)), float(np.nanmax(values)))
        return self._coloured(ax, values, blue_orange() if colour == "gain" else "viridis", low, high, seed)

    def _coloured(self, ax: Axes, values: np.ndarray, colours: Any, low: float, high: float, seed: int) -> Axes:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        assert self.result.graph is not None
        scale = ScalarMappable(Normalize(low, high), colours)
        draw(self.result.graph, ax, scale.to_rgba(np.nan_to_num(values)), seed)
        ax.figure.colorbar(scale, ax=ax, shrink=0.6, label=self.result.metric.replace("_", " "))
        return ax

    def _gain(self, alone: Result) -> np.ndarray:
        """Gains over training alone, (K,), positive = better."""
        result = self.result
        if set(alone.names) != set(result.names):
            raise FedkinError(f"{alone.title} and {result.title} were trained on different clients")
        rows = [alone.names.index(name) for name in result.names]
        base = np.array(alone.metrics["deployed"][result.metric], dtype=float)[rows]
        gain = np.array(result.metrics["deployed"][result.metric], dtype=float) - base
        return gain if result.task.larger_is_better else -gain

    def gains(self, alone: Result, ax: Axes | None = None) -> Axes:
        """A dumbbell per client, sorted by gain: open circle = alone, filled = this run. Bars above 60 clients."""
        result, gain = self.result, self._gain(alone)
        order = np.argsort(np.nan_to_num(gain), kind="stable")
        colour = np.where(gain > 1e-12, BETTER, np.where(gain < -1e-12, WORSE, ALONE))[order]
        label = result.metric.replace("_", " ")
        if len(order) > 60:
            ax = _axes(ax, (7, 3.2))
            ax.bar(np.arange(len(order)), gain[order][::-1], width=1.0, color=colour[::-1])
            ax.axhline(0, color=ALONE, linewidth=0.8)
            ax.set_xlabel("clients, sorted")
            ax.set_ylabel(f"gain in {label}")
        else:
            ax = _axes(ax, (5.6, max(2.0, 0.2 * len(order) + 1)))
            end = np.array(result.metrics["deployed"][result.metric], dtype=float)[order]
            start = end - (gain if result.task.larger_is_better else -gain)[order]
            place = np.arange(len(order))
            ax.hlines(place, start, end, color=colour, alpha=0.5, linewidth=2.2)
            ax.scatter(start, place, s=22, facecolors="white", edgecolors=ALONE, zorder=3, label=_literal(alone.title))
            ax.scatter(end, place, s=28, color=colour, zorder=4, label=_literal(result.title))
            ax.set_yticks(place, [_literal(result.names[k]) for k in order], fontsize=7)
            ax.set_xlabel(label)
            ax.legend(frameon=False, fontsize=8)
        counts = count_gains(gain, np.zeros_like(gain))
        ax.set_title(f"{counts['gained']} clients gain, {counts['lost']} lose", fontsize=10)
        return _plain(ax)

    def influence(self, order: Literal["cluster", "given"] = "cluster", ax: Axes | None = None) -> Axes:
        """Who shaped whom, as a heat map: row i shows whose updates are in client i's model."""
        result = self.result
        if result.influence is None:
            raise FedkinError("influence was not tracked in this run; pass influence=True to train()")
        ax = _axes(ax, (5.2, 4.6))
        rows = np.argsort(clusters_of(result)[0], kind="stable") if order == "cluster" else np.arange(len(result.names))
        image = ax.imshow(result.influence[np.ix_(rows, rows)], cmap="viridis", interpolation="nearest")
        ax.figure.colorbar(image, ax=ax, label="share of the model")
        if len(rows) <= 40:
            named = [_literal(result.names[k]) for k in rows]
            ax.set_xticks(np.arange(len(rows)), named, rotation=90, fontsize=6)
            ax.set_yticks(np.arange(len(rows)), named, fontsize=6)
        ax.set_xlabel("whose updates")
        ax.set_ylabel("in whose model")
        return ax


def categories(count: int) -> list[Any]:
    """Colours for `count` categories: ten that can be told apart, or steps of viridis when there are more."""
    import matplotlib

    if count <= len(TEN):
        return list(TEN[:count])
    from matplotlib.colors import to_hex

    return [to_hex(matplotlib.colormaps["viridis"](k / (count - 1))) for k in range(count)]


def blue_orange() -> Colormap:
    """From loss (orange) over grey to gain (blue)."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("loss_gain", ["#c75300", "#efae78", "#e4e2dc", "#86bbe0", "#0068a8"])


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


def _plain(ax: Axes) -> Axes:
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _name_clients(ax: Axes, names: tuple[str, ...]) -> None:
    if len(names) <= 50:
        ax.set_xticks(np.arange(len(names)), [_literal(name) for name in names], rotation=90, fontsize=7)
    else:
        ax.set_xlabel(f"{len(names):,} clients")


def _literal(name: object) -> str:
    """A name as text: a dollar sign would start a formula, a leading underscore hide a legend entry."""
    text = str(name).replace("$", r"\$")
    return f"\u200b{text}" if text.startswith("_") else text
