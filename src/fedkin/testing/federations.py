"""A small uneven federation to check things on."""

from __future__ import annotations

import numpy as np

from fedkin.federation import Federation

CLASS_COUNT = 3


def uneven_federation(sizes: tuple[int, ...] = (24, 9, 17, 1, 30, 12), seed: int = 0, features: int = 5) -> Federation:
    """Clients of two kinds with very different numbers of samples; one client has a single sample."""
    rng = np.random.default_rng(seed)
    clients = {}
    for k, n in enumerate(sizes):
        y = np.concatenate([np.arange(CLASS_COUNT), rng.integers(0, CLASS_COUNT, n)])[:n]
        centres = np.eye(CLASS_COUNT, features) * 2 if k % 2 else np.roll(np.eye(CLASS_COUNT, features), 1, axis=0) * 2
        x = centres[y] + rng.normal(size=(n, features))
        clients[f"site-{chr(97 + k)}"] = (x, y)
    return Federation.from_arrays(
        clients, classes=list(range(CLASS_COUNT)), test_fraction=0.3, truth={"cluster": np.arange(len(sizes)) % 2}
    )
