"""A picture of a client graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.graphs.layout import positions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedkin.graphs.client_graph import ClientGraph


def draw(
    graph: ClientGraph, ax: Axes | None = None, colours: Any = None, seed: int = 0, labels: bool | None = None
) -> Axes:
    """Related clients lie near each other (`layout.positions`); an edge is as strong as its weight.

    `colours` is one colour or number per client. Names are written for up to 40 clients, or as `labels` says.
    """
    import matplotlib.pyplot as plt
    import networkx as nx

    if ax is None:
        _, ax = plt.subplots(figsize=(6, 6))
    picture = graph.to_networkx()
    place = dict(zip(graph.names, positions(graph, seed)))
    weights = np.array([data["weight"] for _, _, data in picture.edges(data=True)])
    strength = weights / weights.max() if len(weights) else weights
    crowd = min(1.0, 900 / max(len(weights), 1))
    faint = (0.06 + 0.5 * strength**2) * (0.3 + 0.7 * crowd)
    nx.draw_networkx_edges(picture, place, ax=ax, width=0.2 + 1.8 * strength, alpha=faint, edge_color="#3a4656")
    nx.draw_networkx_nodes(
        picture,
        place,
        ax=ax,
        node_color="#4c78a8" if colours is None else colours,
        node_size=max(4, 3000 // (len(graph) + 10)),
    )
    if labels if labels is not None else len(graph) <= 40:
        for name, (x, y) in place.items():
            below = -4 - 3 * np.sqrt(60 / (len(graph) + 10))
            text = name.replace("$", r"\$")  # a dollar sign would start a formula
            ax.annotate(text, (x, y), (0, below), textcoords="offset points", ha="center", va="top", fontsize=7)
    ax.set_axis_off()
    return ax
