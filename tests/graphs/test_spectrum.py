from __future__ import annotations

import numpy as np
import pytest

from fedkin.graphs import ClientGraph


@pytest.mark.parametrize("clients", [2, 3, 20, 49, 50, 51, 100, 200, 201])
def test_the_complete_graph(clients: int) -> None:
    """Its eigenvalues are 0 and a·K, K − 1 times: a hard case for solvers that look for one of them."""
    adjacency = 0.5 * (1 - np.eye(clients))
    assert ClientGraph(adjacency).lambda_max() == pytest.approx(clients / 2)
