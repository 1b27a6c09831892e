"""FedCedar's structured clients: groups of clients that share a label set, joined where label sets intersect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedkin.errors import FedkinError

if TYPE_CHECKING:
    from fedkin.graphs import ClientGraph

TOPOLOGIES: dict[str, tuple[tuple[int, ...], ...]] = {
    "1": ((0, 1, 2), (2, 3, 4), (4, 5, 6)),
    "2": ((0, 1, 2), (2, 3, 4), (4, 5, 6), (6, 7, 0)),
    "3": ((0, 1, 2), (2, 3, 4), (4, 5, 6), (6, 7, 8), (8, 9, 0, 4)),
}


def groups_of(topology: str | Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Label sets of a FedCedar topology: "1" (path), "2" (cycle), "3" (cycle with chord), or the user's own lists.

    >>> groups_of("0,1|1,2")
    ((0, 1), (1, 2))
    """
    if not isinstance(topology, str):
        return tuple(tuple(int(label) for label in group) for group in topology)
    if topology in TOPOLOGIES:
        return TOPOLOGIES[topology]
    try:
        return tuple(tuple(int(label) for label in group.split(",")) for group in topology.split("|"))
    except ValueError:
        raise FedkinError(f"topology {topology!r} must be 1, 2, 3 or label lists such as 0,1,2|2,3,4") from None


def group_of_client(clients: int, groups: int) -> np.ndarray:
    """The group of each client: equal contiguous blocks, shape (K,)."""
    if clients < groups:
        raise FedkinError(f"topology: {clients} clients for {groups} groups; use at least {groups} clients")
    return np.arange(clients) * groups // clients


def true_groups(topology: str, names: Sequence[str]) -> tuple[dict[str, np.ndarray], ClientGraph]:
    """The true group of each client, and the graph that joins clients whose groups share a label."""
    from fedkin.graphs import ClientGraph

    sets = [set(group) for group in groups_of(topology)]
    group = group_of_client(len(names), len(sets))
    joined = np.array([[float(bool(a & b)) for b in sets] for a in sets])
    adjacency = joined[np.ix_(group, group)]
    np.fill_diagonal(adjacency, 0.0)
    return {"cluster": group}, ClientGraph(adjacency, names=names)
