"""Edge lists come back as they were written, in every format; what is wrong in a file is named."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedkin.cli import app
from fedkin.errors import FedkinError
from fedkin.graphs import ClientGraph

GRAPH = ClientGraph(
    [[0, 0.1, 0, 0], [0.1, 0, 2, 0], [0, 2, 0, 0], [0, 0, 0, 0]], names=["Zürich, CH", "b", "7", "alone"]
)


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_edge_lists_round_trip(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"edges.{ending}"
    GRAPH.to_edges(path)
    assert ClientGraph.load(path) == GRAPH
    assert ClientGraph.from_edges(path) == GRAPH
    other = ClientGraph.from_edges(path, ["b", "7", "alone", "Zürich, CH"])
    assert other == GRAPH.take([1, 2, 3, 0])


def test_edge_list_npz_of_other_programs(tmp_path: Path) -> None:
    path = tmp_path / "edges.npz"
    np.savez(path, source=[10, 30], target=[20, 10])
    assert ClientGraph.load(path) == ClientGraph([[0, 1, 1], [1, 0, 0], [1, 0, 0]], names=["10", "20", "30"])
    np.savez(path, source=[0, 1], target=[1, 9], names=["a", "b"])
    with pytest.raises(FedkinError, match=r"edges.npz: target 9 of edge 1 is no position in 2 names"):
        ClientGraph.load(path)
    np.savez(path, source=["a"], target=["b"], names=["a", "b"])
    with pytest.raises(FedkinError, match="'source' must hold whole numbers"):
        ClientGraph.load(path)
    np.savez(path, source=["a"], weight=[1.0])
    with pytest.raises(FedkinError, match="no column 'target'"):
        ClientGraph.load(path)


def test_bad_tables_are_named(tmp_path: Path) -> None:
    path = tmp_path / "edges.parquet"
    path.write_bytes(b"not parquet")
    with pytest.raises(FedkinError, match=r"edges\.parquet: cannot be read as an edge list"):
        ClientGraph.load(path)
    pd.DataFrame({"source": ["a"], "target": ["b"]}).to_parquet(path)
    with pytest.raises(FedkinError, match=r"unknown client in .*edges\.parquet 'b'"):
        ClientGraph.from_edges(path, ["a", "c"])
    pd.DataFrame({"source": ["a"], "target": ["b"], "weight": ["heavy"]}).to_parquet(path)
    with pytest.raises(FedkinError, match="column 'weight' must hold numbers"):
        ClientGraph.load(path)
    pd.DataFrame({"source": ["a", "b"], "target": ["b", "a"], "weight": [1.0, 2.0]}).to_parquet(path)
    with pytest.raises(FedkinError, match="has two weights"):
        ClientGraph.load(path)
    with pytest.raises(FedkinError, match=r"\.csv, \.parquet, \.npz"):
        GRAPH.to_edges(tmp_path / "edges.txt")


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    GRAPH.to_edges(tmp_path / "edges.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for action in (GRAPH.to_edges, ClientGraph.load):
        with pytest.raises(FedkinError, match=r"pip install 'fedkin\[parquet\]'"):
            action(tmp_path / "edges.parquet")


def test_graphs_are_converted_on_the_command_line(tmp_path: Path) -> None:
    source, table, edges, matrix = (tmp_path / f for f in ("g.csv", "g.parquet", "e.npz", "m.npz"))
    GRAPH.to_edges(source)
    for call in ([source, table], [table, edges, "--edges"], [edges, matrix]):
        answer = CliRunner().invoke(app, ["graph", "convert", *map(str, call)])
        assert answer.exit_code == 0, answer.output
    assert "source" in np.load(edges)
    assert "indptr" in np.load(matrix)
    assert ClientGraph.load(matrix) == GRAPH
    wrong = CliRunner().invoke(app, ["graph", "convert", str(source), str(tmp_path / "g.txt")])
    assert wrong.exit_code == 2
    assert "must end in .csv, .parquet, .npz" in wrong.output
