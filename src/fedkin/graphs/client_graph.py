"""ClientGraph: who is related to whom, and how strongly."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from fedkin.errors import FedkinError, unknown
from fedkin.graphs import files, spectrum, validation
from fedkin.notebook import html_table

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd
    from matplotlib.axes import Axes


class ClientGraph:
    """A named, weighted, undirected graph over clients.

    `adjacency` is a (K, K) array or scipy sparse matrix: symmetric, finite, non-negative, with a zero diagonal; entry
    (i, j) says how much clients i and j have to do with each other (0: nothing). `names` are the K client names;
    without them clients are called client-0, client-1, …

    >>> graph = ClientGraph([[0, 1, 0], [1, 0, 0.5], [0, 0.5, 0]], names=["ann", "bob", "cai"])
    >>> graph
    ClientGraph(3 clients, 2 edges, 1 component, mean degree 1)
    >>> graph.neighbours("bob")
    {'ann': 1.0, 'cai': 0.5}
    >>> graph.laplacian().toarray()
    array([[ 1. , -1. ,  0. ],
           [-1. ,  1.5, -0.5],
           [ 0. , -0.5,  0.5]])
    """

    def __init__(self, adjacency: Any, names: Iterable[object] | None = None) -> None:
        matrix = validation.as_csr(adjacency)
        self.named = names is not None
        self.names: tuple[str, ...] = (
            tuple(f"client-{k}" for k in range(matrix.shape[0])) if names is None else tuple(map(str, names))
        )
        self.adjacency: sp.csr_array = validation.validated(matrix, self.names)

    @classmethod
    def symmetrised(cls, adjacency: Any, names: Iterable[object] | None = None) -> ClientGraph:
        """The graph of (A + Aᵀ)/2 without its diagonal, for weights that were estimated in both directions."""
        matrix = validation.as_csr(adjacency)
        if matrix.shape[0] == matrix.shape[1]:
            matrix = sp.csr_array((matrix + matrix.T) / 2)
            matrix.setdiag(0)
        return cls(matrix, names)

    # ---- what it is -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        parts = int(self.components().max(initial=-1)) + 1
        return (
            f"ClientGraph({_count(len(self), 'client')}, {_count(self.n_edges, 'edge')}, {_count(parts, 'component')}, "
            f"mean degree {self.degrees.mean() if len(self) else 0:.3g})"
        )

    def _repr_html_(self) -> str:
        ends, degrees = np.diff(self.adjacency.indptr), self.degrees
        rows = ([name, int(ends[k]), float(degrees[k])] for k, name in enumerate(self.names))
        return html_table(repr(self), ("client", "neighbours", "weight"), rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClientGraph):
            return NotImplemented
        return (
            self.names == other.names
            and np.array_equal(self.adjacency.indptr, other.adjacency.indptr)
            and np.array_equal(self.adjacency.indices, other.adjacency.indices)
            and np.array_equal(self.adjacency.data, other.adjacency.data)
        )

    def __hash__(self) -> int:
        return hash(self._fingerprint)

    def fingerprint(self) -> str:
        """A short hash of names and weights: a resumed run must see the same graph."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.blake2b("\x1f".join(self.names).encode(), digest_size=8)
        for part in (self.adjacency.indptr, self.adjacency.indices, self.adjacency.data):
            digest.update(part.tobytes())
        return digest.hexdigest()

    @cached_property
    def degrees(self) -> np.ndarray:
        """Row sums of the adjacency, shape (K,)."""
        return np.asarray(self.adjacency.sum(axis=1)).ravel()

    @property
    def n_edges(self) -> int:
        """How many pairs of clients are joined."""
        return self.adjacency.nnz // 2

    def laplacian(self) -> sp.csr_array:
        """The combinatorial Laplacian L = diag(A·1) − A, sparse, shape (K, K)."""
        return sp.csr_array(sp.diags_array(self.degrees, format="csr") - self.adjacency)

    @cached_property
    def _positions(self) -> Mapping[str, int]:
        return {name: k for k, name in enumerate(self.names)}

    def index(self, name: str) -> int:
        """The row of a client."""
        if name not in self._positions:
            raise unknown("client", name, self.names)
        return self._positions[name]

    def neighbours(self, name: str) -> dict[str, float]:
        """The clients joined to `name`, with the weights of the edges."""
        k = self.index(name)
        row = slice(*self.adjacency.indptr[k : k + 2])
        return {self.names[j]: float(w) for j, w in zip(self.adjacency.indices[row], self.adjacency.data[row])}

    def components(self) -> np.ndarray:
        """The connected component (0, 1, …) of every client, shape (K,)."""
        return sp.csgraph.connected_components(self.adjacency, directed=False)[1]

    @property
    def is_connected(self) -> bool:
        """Is there a path between any two clients?"""
        return bool(self.components().max(initial=0) == 0)

    @property
    def isolated(self) -> tuple[str, ...]:
        """The clients without a neighbour."""
        return tuple(self.names[k] for k in np.flatnonzero(np.diff(self.adjacency.indptr) == 0))

    def alone(self, method: str) -> list[str]:
        """What to say of clients without a neighbour, where a method builds on the graph; nothing if there are none."""
        lone = self.isolated
        if not lone:
            return []
        named = ", ".join(map(repr, lone[:3])) + (", …" if len(lone) > 3 else "")
        return [f"{method}: {len(lone)} of {len(self)} clients have no neighbour: {named} train alone"]

    # ---- other orders, other clients ---------------------------------------------------------------------------------

    def take(self, rows: Sequence[int] | np.ndarray) -> ClientGraph:
        """The graph among the clients at `rows`, in that order."""
        chosen = np.asarray(rows, dtype=np.int64)
        graph = ClientGraph(self.adjacency[chosen][:, chosen], [self.names[k] for k in chosen])
        graph.named = self.named
        return graph

    def align(self, names: Sequence[str]) -> ClientGraph:
        """The same graph with its clients in the order of `names`, which must be the same clients."""
        names = tuple(map(str, names))
        if names == self.names:
            return self
        missing, unexpected = sorted(set(names) - set(self.names)), sorted(set(self.names) - set(names))
        if (missing or unexpected) and not self.named:
            raise FedkinError(
                f"the graph has no client names ({_count(len(self), 'row')}, {_count(len(names), 'client')} in the "
                "federation); say which row is which client: ClientGraph(adjacency, names=federation.names)"
            )
        if missing:
            raise FedkinError(f"the graph lacks {_listed(missing, unexpected)}; add the missing rows or leave them out")
        if unexpected:
            raise FedkinError(
                f"the graph has {_listed(unexpected, missing)}, unknown to the federation; leave them out with graph.take"
            )
        return self.take([self._positions[name] for name in names])

    def order(self) -> np.ndarray:
        """An order of the clients in which neighbours are near each other (reverse Cuthill–McKee), shape (K,).

        `federation.take(order)` and `graph.take(order)` give the same results faster where rows of neighbours then meet in
        the processor's cache.

        >>> ClientGraph([[0, 0, 1], [0, 0, 1], [1, 1, 0]]).order().tolist()
        [1, 2, 0]
        """
        return sp.csgraph.reverse_cuthill_mckee(sp.csr_matrix(self.adjacency), symmetric_mode=True).astype(np.int64)

    # ---- spectrum ----------------------------------------------------------------------------------------------------

    def eigen(self) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues of L in ascending order, shape (K,), and orthonormal eigenvectors in columns, shape (K, K)."""
        return self._eigen

    @cached_property
    def _eigen(self) -> tuple[np.ndarray, np.ndarray]:
        return spectrum.eigen(self.laplacian())

    def lambda_max(self) -> float:
        """The largest eigenvalue of L."""
        return self._lambda_max

    @cached_property
    def _lambda_max(self) -> float:
        return spectrum.largest(self.laplacian())

    def lambda_1(self) -> float:
        """The second smallest eigenvalue of L (algebraic connectivity); 0 when the graph is disconnected."""
        return self._lambda_1

    @cached_property
    def _lambda_1(self) -> float:
        return spectrum.second_smallest(self.laplacian()) if len(self) > 1 and self.is_connected else 0.0

    def lambda_bound(self) -> float:
        """An upper bound of λ_max without an eigenvalue problem: the largest d_i + d_j over edges (Anderson–Morley)."""
        return spectrum.bound(self.adjacency)

    # ---- to and from elsewhere ---------------------------------------------------------------------------------------

    @classmethod
    def from_networkx(cls, graph: nx.Graph, weight: str = "weight") -> ClientGraph:
        """A networkx graph; nodes become names, an edge without `weight` weighs 1."""
        import networkx

        if graph.is_directed():
            raise FedkinError("the networkx graph is directed; give graph.to_undirected()")
        return cls(networkx.to_scipy_sparse_array(graph, weight=weight, dtype=np.dtype(float)), graph.nodes)

    def to_networkx(self) -> nx.Graph:
        """A networkx graph with the attribute `weight` on its edges."""
        import networkx

        return networkx.relabel_nodes(networkx.from_scipy_sparse_array(self.adjacency), dict(enumerate(self.names)))

    @classmethod
    def from_edges(
        cls, edges: str | PathLike[str] | pd.DataFrame, names: Iterable[object] | None = None
    ) -> ClientGraph:
        """An edge list with the columns source, target and (optional, else 1) weight: .csv, .parquet, .npz, a data frame.

        Without `names` the clients are those of the list, in order of first appearance; give them to fix the order or
        to have isolated clients.
        """
        return cls(*files.read_edges(edges, None if names is None else tuple(map(str, names))))

    def to_edges(self, path: str | PathLike[str]) -> None:
        """Write the edge list (source, target, weight), each edge once, as .csv, .parquet or .npz.

        In a table an isolated client is a row with an empty target; the .npz has `names`, and positions in them.
        """
        files.write_edges(path, self.adjacency, self.names)

    def to_csv(self, path: str | PathLike[str]) -> None:
        """Write the edge list as a CSV file."""
        files.write_table(path, self.adjacency, self.names)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the graph: .csv and .parquet as edge lists, anything else as names and sparse adjacency in .npz."""
        if str(path).endswith((".csv", ".parquet")):
            self.to_edges(path)
        else:
            files.write_npz(path, self.adjacency, self.names)

    def to_bytes(self) -> memoryview:
        """What `save` writes to an .npz file."""
        return files.npz_bytes(self.adjacency, self.names)

    @classmethod
    def load(cls, path: str | PathLike[str], **limits: float) -> ClientGraph:
        """Read a graph from .npz, .csv or .parquet (`save`, `to_edges`), whoever wrote it.

        An .npz that would unpack to more than `limit` bytes (4 GiB), or to more than `ratio` (20) times its size and
        64 MiB, is refused before it is unpacked.
        """
        if str(path).endswith((".csv", ".parquet")):
            return cls.from_edges(path)
        return cls(*files.read_npz(path, **limits))  # type: ignore[arg-type]

    def plot(self, ax: Axes | None = None, colours: Any = None, seed: int = 0, labels: bool | None = None) -> Axes:
        """Draw the graph with a spring layout; see `fedkin.graphs.drawing.draw`."""
        from fedkin.graphs.drawing import draw

        return draw(self, ax=ax, colours=colours, seed=seed, labels=labels)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _listed(names: Sequence[str], candidates: Sequence[str], most: int = 3) -> str:
    """'a', 'b' (near: 'c') and 4 more: the culprits, with near matches among `candidates`."""
    shown = []
    for name in names[:most]:
        near = get_close_matches(name, candidates, n=1, cutoff=0.6) if len(candidates) <= 10_000 else []
        shown.append(f"{name!r} (near: {near[0]!r})" if near else repr(name))
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return f"client{'' if len(names) == 1 else 's'} {', '.join(shown)}{rest}"
