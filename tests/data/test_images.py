from __future__ import annotations

import numpy as np
import pytest

from fedkin.data.federate import Recipe
from fedkin.data.images import images
from fedkin.errors import FedkinError

RNG = np.random.default_rng(0)
ARRAYS = {
    "train_x": RNG.integers(0, 256, (5000, 3, 6, 6), dtype=np.uint8),
    "train_y": RNG.integers(0, 4, 5000, dtype=np.uint8),
    "test_x": RNG.integers(0, 256, (300, 3, 6, 6), dtype=np.uint8),
    "test_y": RNG.integers(0, 4, 300, dtype=np.uint8),
}


def load(standardise: str = "unit", files: str = "all", shape: str = "image"):  # type: ignore[no-untyped-def]
    return images(range(4), "")(ARRAYS, Recipe(clients=3, partition="iid"), standardise, files, shape)


def test_ranges_types_and_shapes() -> None:
    unit, symmetric, flat = load(), load("symmetric"), load(shape="flat")
    assert unit.train.x.dtype == np.float32
    assert (unit.train.x.min(), unit.train.x.max()) == (0.0, pytest.approx(1.0))
    assert (symmetric.train.x.min(), symmetric.train.x.max()) == (-1.0, pytest.approx(1.0))
    assert np.allclose(symmetric.test.x, 2 * unit.test.x - 1, atol=1e-6)
    assert flat.task.input_shape == (108,)
    assert len(unit.train.x) + len(unit.test.x) == 5300
    only = load(files="train")
    assert len(only.train.x) + len(only.test.x) == 5000


def test_standardisation_against_numpy() -> None:
    """Per pixel with σ + 0.001 (FedU), and per channel; moments are those of the training rows."""
    raw = load().train.x.astype(np.float64)
    pixel = (raw - raw.mean(axis=0)) / (raw.std(axis=0) + 0.001)
    assert np.allclose(load("pixel").train.x, pixel, atol=1e-4)
    channel = (raw - raw.mean(axis=(0, 2, 3), keepdims=True)) / raw.std(axis=(0, 2, 3), keepdims=True)
    assert np.allclose(load("mean_std").train.x, channel, atol=1e-4)


@pytest.mark.parametrize("options", [{"standardise": "pixels"}, {"files": "tests"}, {"shape": "flatt"}])
def test_unknown_options_list_near_matches(options: dict) -> None:
    with pytest.raises(FedkinError, match=r"did you mean|choose one of"):
        load(**options)
