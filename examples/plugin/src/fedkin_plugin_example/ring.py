"""A graph that needs nothing but names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedkin import ClientGraph
from fedkin.graphs.build import Disclosed


def ring(names: Sequence[str], disclosed: Disclosed, seed: int, option: str) -> ClientGraph:
    """Every client is joined to the next one in the order of names, the last to the first: ring, or ring:WEIGHT."""
    adjacency = np.zeros((len(names), len(names)))
    order = np.argsort(names)  # by name, so that the order of clients does not matter
    for k, following in zip(order, np.roll(order, -1)):
        if k != following:
            adjacency[k, following] = adjacency[following, k] = float(option or 1)
    return ClientGraph(adjacency, names)
