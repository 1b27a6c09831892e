"""A picture of a client graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedkin.graphs.client_graph import ClientGraph


def draw(
    graph: ClientGraph, ax: Axes | None = None, colours: Any = None, seed: int = 0, labels: bool | None = None
) -> Axes:
    """Spring layout; an edge is as strong as its weight.

    `colours` is one colour or number per client. Names are written for up to 40 clients, or as `labels` says.
    """
    import matplotlib.pyplot as plt
    import networkx as nx

    if ax is None:
        _, ax = plt.subplots(figsize=(6, 6))
    picture = graph.to_networkx()
    place = nx.spring_layout(picture, seed=seed, weight="weight")
    weights = np.array([data["weight"] for _, _, data in picture.edges(data=True)])
    strength = weights / weights.max() if len(weights) else weights
    nx.draw_networkx_edges(picture, place, ax=ax, width=0.2 + 1.8 * strength, alpha=0.15 + 0.6 * strength)
    nx.draw_networkx_nodes(
        picture,
        place,
        ax=ax,
        node_color="#4c78a8" if colours is None else colours,
        node_size=max(15, 3000 // (len(graph) + 10)),
    )
    if labels if labels is not None else len(graph) <= 40:
        nx.draw_networkx_labels(picture, place, ax=ax, font_size=7)
    ax.set_axis_off()
    return ax
