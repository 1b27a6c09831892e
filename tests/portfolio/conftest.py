"""Small federations in which it is known who should help whom."""

from __future__ import annotations

import numpy as np
import pytest

from fedkin.federation import Federation


def sites(groups: int = 2, clients: int = 8, samples: int = 60, seed: int = 0, regression: bool = False) -> Federation:
    """Clients of `groups` kinds whose labels (or slopes) contradict each other; within a kind they are the same."""
    rng = np.random.default_rng(seed)
    slopes = rng.normal(size=(groups, 6))
    made = {}
    for k in range(clients):
        x = rng.normal(size=(samples, 6))
        value = x @ (slopes[k % groups] * 2) + 0.3 * rng.normal(size=samples)
        made[f"site-{k}"] = (x, value if regression else (value > 0).astype(int))
    return Federation.from_arrays(made, test_fraction=0.5, classes=None if regression else [0, 1])


@pytest.fixture
def contrary() -> Federation:
    return sites()
