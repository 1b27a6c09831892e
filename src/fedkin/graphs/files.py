"""Graphs on disk: edge lists (CSV, Parquet, .npz) and sparse adjacencies (.npz). No pickle."""

from __future__ import annotations

import io
import warnings
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from fedkin.errors import FedkinError, unknown
from fedkin.files import whole, write_atomic
from fedkin.files.archive import RATIO, UNPACKED_LIMIT, read_archive, write_archive

if TYPE_CHECKING:
    import pandas as pd

LARGE = 1_000_000
"""Graphs of more entries than this are not compressed: that would take longer than all else."""

ENDINGS = (".csv", ".parquet", ".npz")

NAMES, NUMBERS, POSITIONS = ("iufUS", 1), ("fiu", 1), ("iu", 1)
_EDGES = {"names": NAMES, "source": NAMES, "target": NAMES, "weight": NUMBERS}
_ADJACENCY = {"names": NAMES, "indptr": POSITIONS, "indices": POSITIONS, "weights": NUMBERS}


def read_edges(
    edges: str | PathLike[str] | pd.DataFrame, names: tuple[str, ...] | None
) -> tuple[sp.csr_array, tuple[str, ...]]:
    """Adjacency and names from columns source, target[, weight]. An edge may be given once or in both directions."""
    import pandas as pd

    frame, origin = (edges, "edge list") if isinstance(edges, pd.DataFrame) else (_table(str(edges)), str(edges))
    for column in ("source", "target"):
        if column not in frame.columns:
            raise FedkinError(f"{origin}: no column {column!r}; an edge list has the columns source, target, weight")
    target = frame["target"].astype(object)
    alone = (target.isna() | (target.astype(str) == "")).to_numpy()
    source = frame["source"].astype(str).to_numpy(dtype=object)
    others = target.astype(str).to_numpy(dtype=object)[~alone]
    if names is None:
        ends = frame["source"].astype(str).to_numpy(dtype=object).repeat(2)
        ends[1::2][~alone] = others
        names = tuple(pd.unique(ends).tolist())
    place = pd.Index(names, dtype=object)
    i, j = place.get_indexer(pd.Index(source, dtype=object)), place.get_indexer(pd.Index(others, dtype=object))
    for ends, found in ((source, i), (others, j)):
        if (found < 0).any():
            raise unknown(f"client in {origin}", str(ends[found < 0][0]), names)
    try:
        weight = frame["weight"].to_numpy(dtype=float) if "weight" in frame.columns else np.ones(len(frame))
    except (TypeError, ValueError) as error:
        raise FedkinError(f"{origin}: column 'weight' must hold numbers: {error}") from None
    return _joined(i[~alone], j, weight[~alone], names, origin), names


def _table(path: str) -> pd.DataFrame:
    """The columns of an edge list in a file, by its ending."""
    import pandas as pd

    if path.endswith(".npz"):
        return _edges_of(path, read_archive(path, "an edge list", _EDGES))
    try:
        if path.endswith(".parquet"):
            return pd.read_parquet(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pd.errors.ParserWarning)
            return pd.read_csv(
                path, dtype={"source": str, "target": str}, keep_default_na=False, na_values={"weight": [""]}
            )
    except ImportError:
        raise FedkinError(f"{path}: Parquet files need pyarrow: pip install 'fedkin[parquet]'") from None
    except Exception as error:  # a damaged file makes the libraries that read it raise anything at all
        first = str(error).strip().split("\n")[0]
        raise FedkinError(f"{path}: cannot be read as an edge list: {first}") from None


def _edges_of(path: str, arrays: dict[str, np.ndarray]) -> pd.DataFrame:
    """The edge list in an archive: names and positions in them, or the names themselves."""
    import pandas as pd

    sides = ("source", "target")
    absent = [side for side in sides if side not in arrays]
    if absent:
        raise FedkinError(f"{path}: no column {absent[0]!r}; an edge list has the columns source, target, weight")
    if len({len(arrays[key]) for key in (*sides, "weight") if key in arrays}) > 1:
        raise FedkinError(f"{path}: not an edge list: source, target and weight differ in length")
    if "names" not in arrays:
        return pd.DataFrame({name: arrays[name] for name in arrays})
    names = arrays["names"].astype(str).astype(object)
    ends = {side: names[_positions(path, side, arrays[side], len(names))] for side in sides}
    alone = np.setdiff1d(np.arange(len(names)), np.concatenate([arrays["source"], arrays["target"]]))
    edges = pd.DataFrame({**ends, "weight": arrays.get("weight", np.ones(len(ends["source"])))})
    lonely = pd.DataFrame({"source": names[alone], "target": "", "weight": np.nan})
    return pd.concat([edges, lonely]) if len(alone) else edges


def _positions(path: str, side: str, given: np.ndarray, clients: int) -> np.ndarray:
    """Positions in the list of names, checked."""
    if given.dtype.kind not in "iu":
        raise FedkinError(f"{path}: {side!r} must hold whole numbers, positions in 'names', not {given.dtype}")
    wrong = np.flatnonzero((given < 0) | (given >= clients))
    if len(wrong):
        raise FedkinError(f"{path}: {side} {given[wrong[0]]} of edge {wrong[0]} is no position in {clients} names")
    return given


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
    """Each edge once, in the format of the path's ending."""
    if not str(path).endswith(ENDINGS):
        raise FedkinError(f"{path}: an edge list is written as {', '.join(ENDINGS)}")
    if not str(path).endswith(".npz"):
        write_table(path, adjacency, names)
        return
    edges = sp.triu(adjacency, format="coo")
    ends = {"source": edges.row.astype(np.int32), "target": edges.col.astype(np.int32)}
    _write_archive(path, adjacency.nnz, names=np.array(names, dtype=np.str_), **ends, weight=edges.data)


def write_table(path: str | PathLike[str], adjacency: sp.csr_array, names: tuple[str, ...]) -> None:
    """A table of edges; an isolated client is a row without target, so that reading gives the same clients."""
    import pandas as pd

    edges = sp.triu(adjacency, format="coo")
    alone = np.flatnonzero(np.diff(adjacency.indptr) == 0)
    none = np.full(len(alone), -1)
    frame = pd.DataFrame(
        {
            "source": pd.Categorical.from_codes(np.concatenate([edges.row, alone]), pd.Index(names)),
            "target": pd.Categorical.from_codes(np.concatenate([edges.col, none]), pd.Index(names)),
            "weight": np.concatenate([edges.data, np.full(len(alone), np.nan)]),
        }
    )
    if not str(path).endswith(".parquet"):
        write_atomic(Path(path), frame.to_csv(index=False, float_format="%.17g").encode())
        return
    content = io.BytesIO()
    try:
        frame.to_parquet(content, index=False)
    except ImportError:
        raise FedkinError(f"{path}: Parquet files need pyarrow: pip install 'fedkin[parquet]'") from None
    write_atomic(Path(path), content.getvalue())


def write_npz(path: str | PathLike[str], adjacency: sp.csr_array, names: tuple[str, ...]) -> None:
    _write_archive(path, adjacency.nnz, **_parts(adjacency, names))


def npz_bytes(adjacency: sp.csr_array, names: tuple[str, ...]) -> memoryview:
    """What `write_npz` writes, for a batch of files."""
    content = io.BytesIO()
    write_archive(content, _parts(adjacency, names), adjacency.nnz < LARGE)
    return content.getbuffer()


def _parts(adjacency: sp.csr_array, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    parts = {"indptr": adjacency.indptr, "indices": adjacency.indices, "weights": adjacency.data}
    return {"names": np.array(names, dtype=np.str_), **parts}


def _write_archive(path: str | PathLike[str], entries: int, **arrays: np.ndarray) -> None:
    with whole(Path(path)) as file:
        write_archive(file, arrays, entries < LARGE)


def read_npz(
    path: str | PathLike[str], limit: int = UNPACKED_LIMIT, ratio: float = RATIO
) -> tuple[sp.csr_array, tuple[str, ...]]:
    """Adjacency and names of an archive: what `write_npz` wrote, or an edge list.

    Archives that unpack to more than `limit` bytes, or to much more than `ratio` times their size, are refused.
    """
    arrays = read_archive(path, "a client graph written by ClientGraph.save", _EDGES | _ADJACENCY, limit, ratio)
    if "source" in arrays or "target" in arrays:
        return read_edges(str(path), tuple(arrays["names"].astype(str).tolist()) if "names" in arrays else None)
    for key in _ADJACENCY:
        if key not in arrays:
            raise FedkinError(f"{path}: not a client graph written by ClientGraph.save: it has no {key!r}")
    names = tuple(arrays["names"].astype(str).tolist())
    return _checked_csr(str(path), arrays["weights"], arrays["indices"], arrays["indptr"], len(names)), names


def _checked_csr(path: str, weights: np.ndarray, indices: np.ndarray, indptr: np.ndarray, clients: int) -> sp.csr_array:
    """A (K, K) matrix from arrays of unknown origin: compiled code follows these numbers without looking."""
    fault = None
    if len(indptr) != clients + 1:
        fault = f"indptr has {len(indptr)} entries for {clients} clients; it needs {clients + 1}"
    elif len(indices) != len(weights):
        fault = f"{len(indices)} indices for {len(weights)} weights"
    elif indptr[0] != 0 or indptr[-1] != len(indices) or (indptr[1:] < indptr[:-1]).any():
        fault = "indptr must rise from 0 to the number of weights"
    elif len(indices) and (indices.min() < 0 or indices.max() >= clients):
        fault = f"indices must lie between 0 and {clients - 1}"
    if fault:
        raise FedkinError(f"{path}: not a client graph: {fault}")
    parts = (weights.astype(np.float64), indices.astype(np.int64), indptr.astype(np.int64))
    return sp.csr_array(parts, shape=(clients, clients))
