"""A graph for a federation that has changed: clients that came are linked evenly, those that left are taken out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from fedkin.graphs.client_graph import ClientGraph

LARGEST_SHARE = 0.5
"""A graph that knows fewer than this share of the clients is rather one of another federation."""


def graph_for(graph: ClientGraph, names: Sequence[str]) -> tuple[ClientGraph, str | None]:
    """The graph for the clients `names`, and one line on what was changed, None where nothing was.

    A newcomer gets an edge to every other client, of weight d/(K−1), where d is the mean degree of the clients that were there:
    nothing is known of it, so it is as close to all as clients are on average. Names that are both missing and left over
    look like misspellings, and a graph without names cannot say who came: such graphs are left to `align`, which refuses.
    """
    known, asked = set(graph.names), set(names)
    missing = [name for name in names if name not in known]
    gone = [name for name in graph.names if name not in asked]
    kept = [name for name in names if name in known]
    if not (missing or gone) or (missing and gone) or not graph.named or len(kept) < LARGEST_SHARE * len(names):
        return graph.align(names), None
    if gone:
        place = {name: k for k, name in enumerate(graph.names)}
        told = f"the graph has {_listed(gone)}, who left; their edges are taken out"
        return graph.take([place[name] for name in kept]), told
    size, old = len(names), len(graph)
    degree = float(graph.adjacency.sum()) / max(old, 1)
    weight = (degree if degree > 0 else 1.0) / (size - 1)
    later = np.arange(old, size)
    new, other = np.repeat(later, later), np.concatenate([np.arange(k) for k in later])
    ends = np.concatenate([new, other]), np.concatenate([other, new])
    edges = sp.csr_array((np.full(2 * len(new), weight), ends), shape=(size, size))
    whole = sp.block_diag([graph.adjacency, sp.csr_array((size - old, size - old))], format="csr") + edges
    made = ClientGraph(sp.csr_array(whole), names=[*graph.names, *missing])
    return made.align(names), f"the graph lacks {_listed(missing)}; linked to every client evenly (weight {weight:.3g})"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:5])) + (", …" if len(names) > 5 else "")
    return f"{'client' if len(names) == 1 else 'clients'} {shown}"
