"""fedkin graph show draws the response of a filter over the spectrum of a graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from fedkin.cli import app
from fedkin.graphs import ClientGraph


def test_the_response_of_a_filter_is_drawn(tmp_path: Path) -> None:
    graph, pictures = tmp_path / "graph.npz", [tmp_path / f"{name}.png" for name in ("plain", "soft", "hard")]
    ClientGraph(np.ones((5, 5)) - np.eye(5)).save(graph)
    for picture, options in zip(pictures, ([], ["--strength", "0.05"], ["--filter", "hard", "--strength", "2"])):
        done = CliRunner().invoke(app, ["graph", "show", str(graph), *options, "--plot", str(picture)])
        assert done.exit_code == 0, done.output
    assert len({picture.read_bytes() for picture in pictures}) == 3


def test_what_cannot_be_drawn_is_refused_in_one_line(tmp_path: Path) -> None:
    graph = tmp_path / "graph.npz"
    ClientGraph(np.ones((5, 5)) - np.eye(5)).save(graph)
    for options, message in (
        (["--filter", "hard", "--strength", "9"], "whole number from 1 to 5"),
        (["--filter", "sofft"], "did you mean 'soft'"),
        (["--strength", "-1"], "not negative"),
        (["--filter", "tv"], "not linear"),
    ):
        done = CliRunner().invoke(app, ["graph", "show", str(graph), *options, "--plot", str(tmp_path / "x.png")])
        assert done.exit_code == 2
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
