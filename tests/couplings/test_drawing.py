from __future__ import annotations

from collections.abc import Iterator

import matplotlib
import numpy as np
import pytest

from fedkin.couplings.drawing import draw_response
from fedkin.errors import FedkinError
from fedkin.graphs import ClientGraph

GRAPH = ClientGraph(np.array([[0, 1, 0.2, 0], [1, 0, 0.7, 0], [0.2, 0.7, 0, 0.5], [0, 0, 0.5, 0]]))


@pytest.fixture(autouse=True)
def _no_windows() -> Iterator[None]:
    with matplotlib.rc_context({"backend": "agg"}):
        yield
        import matplotlib.pyplot as plt

        plt.close("all")


def test_lines_are_the_response_and_dots_sit_on_the_spectrum() -> None:
    lines = draw_response(GRAPH, "soft", [0.5, 0.1]).get_lines()
    for smooth, dots, beta in zip(lines[::2], lines[1::2], (0.5, 0.1)):
        x, y = smooth.get_data()
        np.testing.assert_allclose(y, 1 / (1 + beta * x + beta * x**2))
        assert x[0] == 0
        assert x[-1] == pytest.approx(GRAPH.lambda_max())
        np.testing.assert_allclose(dots.get_xdata(), np.linalg.eigvalsh(GRAPH.laplacian().toarray()), atol=1e-12)


def test_hard_and_own_functions() -> None:
    (line,) = draw_response(GRAPH, "hard", [2]).get_lines()
    np.testing.assert_array_equal(line.get_ydata(), [1, 1, 0, 0])
    doubled = draw_response(GRAPH, "tikhonov", [0.5], factor2=True).get_lines()[0]
    np.testing.assert_allclose(doubled.get_ydata(), 1 / (1 + doubled.get_xdata()))
    assert draw_response(GRAPH, lambda lam, s: np.cos(s * lam), [0.3]).get_lines()


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(FedkinError, match="not linear"):
        draw_response(GRAPH, "tv", [0.1])
    with pytest.raises(FedkinError, match="rank τ"):
        draw_response(GRAPH, "hard", [9])
    with pytest.raises(FedkinError, match="not negative"):
        draw_response(GRAPH, "soft", [-0.1])
