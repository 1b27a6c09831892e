"""Arrays from a stranger's .npz are checked before compiled code sees them, and bombs before they are unpacked."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkin.errors import FedkinError
from fedkin.files.archive import read_archive
from fedkin.graphs import ClientGraph

GOOD = {
    "names": np.array(["a", "b", "c"]),
    "indptr": np.array([0, 1, 2, 2]),
    "indices": np.array([1, 0]),
    "weights": np.array([0.5, 0.5]),
}


def graph(path: Path, **changes: Any) -> Path:
    np.savez(path, **{**GOOD, **changes})
    return path


def test_a_good_graph_is_read(tmp_path: Path) -> None:
    assert ClientGraph.load(graph(tmp_path / "g.npz")).n_edges == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"indices": np.array([7, 7])}, "indices must lie between 0 and 2"),
        ({"indices": np.array([-1, 0])}, "indices must lie between"),
        ({"indptr": np.array([0, 2, 1, 2])}, "indptr must rise"),
        ({"indptr": np.array([0, 1, 2, 9])}, "indptr must rise"),
        ({"indptr": np.array([1, 1, 2, 2])}, "indptr must rise"),
        ({"indptr": np.array([0, 1, 2])}, "indptr has 3 entries for 3 clients"),
        ({"indptr": np.array([0.0, 1, 2, 2])}, "'indptr' holds float64"),
        ({"indices": np.array([[1, 0]])}, "'indices' has shape"),
        ({"weights": np.array([0.5, np.nan])}, "'weights' holds NaN"),
        ({"weights": np.array([0.5])}, "2 indices for 1 weights"),
        ({"extra": np.zeros(3)}, "it has the member 'extra'"),
        ({"names": np.array(["a", "a", "c"])}, "named twice"),
    ],
)
def test_a_graph_that_compiled_code_would_stumble_over_is_refused(
    tmp_path: Path, changes: dict[str, np.ndarray], said: str
) -> None:
    with pytest.raises(FedkinError, match=said):
        ClientGraph.load(graph(tmp_path / "g.npz", **changes))


def test_the_graph_that_ended_the_process_is_refused_in_one_line(tmp_path: Path) -> None:
    """indices = [7]·4 for five names used to be a segmentation fault."""
    parts = {"indices": np.array([7] * 4), "indptr": np.array([0, 1, 2, 3, 4, 4]), "weights": np.ones(4)}
    with pytest.raises(FedkinError, match="indices must lie between 0 and 4"):
        ClientGraph.load(graph(tmp_path / "g.npz", names=np.array(list("abcde")), **parts))


def test_objects_are_refused_unread(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", **{**GOOD, "names": np.array(["a", "b", None], dtype=object)})
    with pytest.raises(FedkinError, match="'names' holds object"):
        ClientGraph.load(tmp_path / "g.npz")


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**26,)})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("weights.npy", "w") as member:
        member.write(header.getvalue())
        for _ in range(2**9):
            member.write(bytes(2**20))
    assert path.stat().st_size < 2**20
    with pytest.raises(FedkinError, match=r"unpacks to 536,\d+,\d+ bytes, more than 20 times its size"):
        ClientGraph.load(path)
    with pytest.raises(FedkinError, match="more than the limit of 1,000"):
        ClientGraph.load(path, limit=1_000)


def test_a_header_that_promises_more_than_there_is_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**50,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights.npy", header.getvalue())
    with pytest.raises(FedkinError, match="does not fit into its"):
        read_archive(path, "a graph", {"weights": ("f", 1)})


def test_a_complete_graph_of_a_thousand_clients_is_no_bomb(tmp_path: Path) -> None:
    everyone = ClientGraph(np.ones((1000, 1000)) - np.eye(1000))
    everyone.save(tmp_path / "g.npz")
    assert ClientGraph.load(tmp_path / "g.npz") == everyone
