"""Client graphs: the noun, and ways to build one. `ClientGraph` is all a method needs to know."""

from __future__ import annotations

from fedkin.graphs.build import build, builder
from fedkin.graphs.builders import complete, data_sizes, empty, equal, label_overlap, random, sbm, shared_labels
from fedkin.graphs.client_graph import ClientGraph
from fedkin.graphs.similarity import coordinates, from_statistics, gaussian, knn

__all__ = [
    "ClientGraph",
    "build",
    "builder",
    "complete",
    "coordinates",
    "data_sizes",
    "empty",
    "equal",
    "from_statistics",
    "gaussian",
    "knn",
    "label_overlap",
    "random",
    "sbm",
    "shared_labels",
]
