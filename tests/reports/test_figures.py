from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedkin
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.graphs import ClientGraph
from fedkin.reports.figures import federation_map


@pytest.fixture(autouse=True)
def _no_window():
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.use("Agg")
    yield
    plt.close("all")


def test_curves_show_the_means(runs):
    ax = runs[2].plot.curves()
    rounds, values = runs[2].history.curve("test_accuracy", "pre")
    assert np.allclose(ax.lines[0].get_xdata(), rounds)
    assert np.allclose(ax.lines[0].get_ydata(), values.mean(axis=1))
    with pytest.raises(FedkinError, match="no 'test_f1'"):
        runs[2].plot.curves("test_f1")


def test_gains_are_sorted_and_counted(runs):
    ax = runs[2].plot.gains(runs[0])
    gain = np.array(runs[2].metrics["deployed"]["test_accuracy"]) - np.array(
        runs[0].metrics["deployed"]["test_accuracy"]
    )
    assert ax.get_title() == f"{(gain > 1e-12).sum()} clients gain, {(gain < -1e-12).sum()} lose"
    start, end = (np.asarray(points.get_offsets())[:, 0] for points in ax.collections[1:])
    assert (np.diff(end - start) >= -1e-12).all()
    ax.figure.canvas.draw()  # a dollar sign in a client's name is no formula
    with pytest.raises(FedkinError, match="different clients"):
        runs[2].plot.gains(replace(runs[0], names=tuple("abcdefgh")))


def test_graph_and_influence(runs):
    for colour in ("metric", "cluster"):
        runs[4].plot.graph(colour).figure.canvas.draw()
    runs[4].plot.graph("gain", alone=runs[0]).figure.canvas.draw()
    image = runs[4].plot.influence("given").images[0]
    assert np.allclose(image.get_array(), runs[4].influence)
    with pytest.raises(FedkinError, match="used no client graph"):
        runs[0].plot.graph()
    with pytest.raises(FedkinError, match="needs the run of Local"):
        runs[4].plot.graph("gain")


def test_federation_stacks_to_the_client_sizes():
    federation = fedkin.data.load("digits", clients=5)
    ax = federation.plot()
    heights = np.array([bar.get_height() for bar in ax.patches]).reshape(10, 5)
    assert np.array_equal(heights.sum(axis=0), federation.train.sizes)


def test_axes_can_be_given(runs):
    import matplotlib.pyplot as plt

    _, ax = plt.subplots()
    assert runs[2].plot.curves(ax=ax) is ax


def test_the_map_has_a_dot_per_client_and_a_line_per_edge() -> None:
    samples = {name: (np.zeros((4, 2)), np.zeros(4)) for name in ("north", "south", "east")}
    places = np.array([[70.0, 25.0], [60.0, 25.0], [65.0, 30.0]])
    federation = Federation.from_arrays(samples, task="regression")
    adjacency = np.array([[0, 0, 1], [0, 0, 2], [1, 2, 0]], dtype=float)
    graph = ClientGraph(adjacency, federation.names)
    ax = federation_map(replace(federation, truth={"coordinates": places}, graph=graph))
    lines, dots = ax.collections
    assert sorted(map(tuple, dots.get_offsets().tolist())) == [(25.0, 60.0), (25.0, 70.0), (30.0, 65.0)]
    assert [segment.tolist() for segment in lines.get_segments()] == [[[25, 70], [30, 65]], [[25, 60], [30, 65]]]
    with pytest.raises(FedkinError, match="places of these clients are not known"):
        federation_map(federation)
