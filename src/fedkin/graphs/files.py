"""Graphs on disk: edge lists (CSV) and NumPy archives (.npz, no pickle)."""

from __future__ import annotations

import zipfile
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from fedkin.errors import FedkinError, unknown

if TYPE_CHECKING:
    import pandas as pd

LARGE = 1_000_000
"""Graphs of more entries than this are not compressed: that would take longer than all else."""


def read_edges(
    edges: str | PathLike[str] | pd.DataFrame, names: tuple[str, ...] | None
) -> tuple[sp.csr_array, tuple[str, ...]]:
    """Adjacency and names from columns source, target[, weight]. An edge may be given once or in both directions."""
    import pandas as pd

    if isinstance(edges, pd.DataFrame):
        frame, origin = edges, "edge list"
    else:
        origin = str(edges)
        try:
            frame = pd.read_csv(
                edges, dtype={"source": str, "target": str}, keep_default_na=False, na_values={"weight": [""]}
            )
        except (OSError, ValueError) as error:
            raise FedkinError(f"{origin}: cannot be read as an edge list: {error}") from None
    for column in ("source", "target"):
        if column not in frame.columns:
            raise FedkinError(f"{origin}: no column {column!r}; an edge list has the columns source, target, weight")
    target = frame["target"].astype(object)
    alone = (target.isna() | (target.astype(str) == "")).to_numpy()
    source, target_names = frame["source"].astype(str).to_numpy(), target.astype(str).to_numpy()
    if names is None:
        ends = np.stack([source, np.where(alone, source, target_names)], axis=1).ravel()
        names = tuple(dict.fromkeys(ends.tolist()))
    position = {name: k for k, name in enumerate(names)}
    for name in (*source, *target_names[~alone]):
        if name not in position:
            raise unknown(f"client in {origin}", name, names)
    try:
        weight = frame["weight"].to_numpy(dtype=float) if "weight" in frame.columns else np.ones(len(frame))
    except (TypeError, ValueError) as error:
        raise FedkinError(f"{origin}: column 'weight' must hold numbers: {error}") from None
    i = np.array([position[name] for name in source[~alone]], dtype=np.int64)
    j = np.array([position[name] for name in target_names[~alone]], dtype=np.int64)
    return _joined(i, j, weight[~alone], names, origin), names


def _joined(i: np.ndarray, j: np.ndarray, weight: np.ndarray, names: tuple[str, ...], origin: str) -> sp.csr_array:
    """A symmetric matrix from undirected edges; an edge listed twice must have the same weight both times."""
    low, high = np.minimum(i, j), np.maximum(i, j)
    order = np.lexsort((high, low))
    low, high, weight = low[order], high[order], weight[order]
    again = np.flatnonzero((np.diff(low) == 0) & (np.diff(high) == 0))
    differ = again[weight[again] != weight[again + 1]]
    if len(differ):
        at = int(differ[0])
        raise FedkinError(
            f"{origin}: the edge between {names[low[at]]!r} and {names[high[at]]!r} has two weights, {weight[at]:g} "
            f"and {weight[at + 1]:g}; keep one"
        )
    keep = np.ones(len(low), dtype=bool)
    keep[again + 1] = False
    upper = sp.coo_array((weight[keep], (low[keep], high[keep])), shape=(len(names), len(names))).tocsr()
    return sp.csr_array(upper + upper.T)


def write_edges(path: str | PathLike[str], adjacency: sp.csr_array, names: tuple[str, ...]) -> None:
    """Each edge once; an isolated client as a row without target, so that reading gives the same clients."""
    import pandas as pd

    edges = sp.triu(adjacency, format="coo")
    alone = np.flatnonzero(np.diff(adjacency.indptr) == 0)
    label = np.array(names, dtype=object)
    frame = pd.DataFrame(
        {
            "source": [*label[edges.row], *label[alone]],
            "target": [*label[edges.col], *[""] * len(alone)],
            "weight": [*edges.data, *[np.nan] * len(alone)],
        }
    )
    frame.to_csv(path, index=False, float_format="%.17g")


def write_npz(path: str | PathLike[str], adjacency: sp.csr_array, names: tuple[str, ...]) -> None:
    write = np.savez_compressed if adjacency.nnz < LARGE else np.savez
    with open(path, "wb") as file:
        write(
            file,
            names=np.array(names, dtype=np.str_),
            indptr=adjacency.indptr,
            indices=adjacency.indices,
            weights=adjacency.data,
        )


def read_npz(path: str | PathLike[str]) -> tuple[sp.csr_array, tuple[str, ...]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = tuple(archive["names"].tolist())
            parts = (archive["weights"], archive["indices"], archive["indptr"])
        return sp.csr_array(parts, shape=(len(names), len(names))), names
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise FedkinError(f"{path}: not a client graph written by ClientGraph.save: {error}") from None
