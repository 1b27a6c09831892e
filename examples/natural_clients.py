"""Who holds what in the sets with clients of their own: the pictures of docs/data.md.

Run: python examples/natural_clients.py [--only fmi] [--out docs/images]
(A few seconds. The sets are downloaded, or taken from the folder FEDKIN_DATA.)

Each picture is `federation.plot()`. For weather stations it is a map instead: the graph of nearest stations, drawn at their
coordinates, coloured by the mean temperature of their training windows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

import fedkin

SETS = ("school", "heart", "wisdm", "parkinsons", "vehicle", "fmi", "fmi-hourly")


def draw_map(federation: fedkin.Federation, ax: Axes) -> None:
    """The client graph at its coordinates; a degree of longitude is as wide as it is at the middle latitude."""
    latitude, longitude = federation.truth["coordinates"].T
    edges = federation.graph.adjacency.tocoo()
    once = edges.row < edges.col
    ends = np.stack([longitude, latitude], axis=1)
    lines = np.stack([ends[edges.row[once]], ends[edges.col[once]]], axis=1)
    mean, std = federation.truth["mean"], federation.truth["std"]
    warmth = np.array([x.mean() for x, _ in federation.train]) * std + mean
    ax.add_collection(LineCollection(lines, colors="#3a4656", linewidths=0.3 + 1.2 * edges.data[once], alpha=0.6))
    dots = ax.scatter(longitude, latitude, c=warmth, cmap="coolwarm", s=14, zorder=2)
    ax.figure.colorbar(dots, ax=ax, label="mean of training windows, °C", shrink=0.6)
    ax.set(xlabel="longitude", ylabel="latitude", aspect=1 / np.cos(np.radians(latitude.mean())))


def picture(name: str, path: Path) -> None:
    federation = fedkin.data.load(name)
    on_map = "coordinates" in federation.truth
    figure, ax = plt.subplots(figsize=(4.6, 6.0) if on_map else (7.5, 2.8), layout="constrained")
    if on_map:
        draw_map(federation, ax)
    else:
        federation.plot(ax)
    ax.set_title(f"{name}: {len(federation)} {fedkin.data.info(name)['clients']}", fontsize=10)
    figure.savefig(path, dpi=72, metadata={"Software": None})
    plt.close(figure)
    print(f"{path}: {federation}")


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description="pictures of the sets with clients of their own")
    options.add_argument("--only", action="append", choices=SETS, help="this set; may be given again")
    options.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs/images")
    chosen = options.parse_args(arguments)
    for name in chosen.only or SETS:
        picture(name, chosen.out / f"data-{name}.png")


if __name__ == "__main__":
    main()
