"""Hugging Face data sets and flwr-datasets partitions as input, made in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedkin
from fedkin.errors import FedkinError
from fedkin.federation import Federation

datasets = pytest.importorskip("datasets", reason="pip install 'fedkin[hf]'")
RNG = np.random.default_rng(0)


def table(n: int, kinds: int = 3) -> Any:
    columns = {"a": RNG.normal(size=n), "b": RNG.normal(size=n), "v": RNG.normal(size=(n, 4)).tolist()}
    features = datasets.Features(
        a=datasets.Value("float64"), b=datasets.Value("float64"), v=datasets.Sequence(datasets.Value("float64")),
        y=datasets.ClassLabel(names=["no", "maybe", "yes"]),
    )  # fmt: skip
    return datasets.Dataset.from_dict({**columns, "y": np.arange(n) % kinds}, features=features)


def test_one_data_set_per_client() -> None:
    own = {"north": table(20), "south": table(32)}
    federation = Federation.from_hf(own, "v", "y", test_fraction=0.25)
    assert federation.names == ("north", "south")
    assert federation.task.classes == ("maybe", "no", "yes")
    assert federation.task.input_shape == (4,)
    assert (federation.train.sizes + federation.test.sizes).tolist() == [20, 32]
    flat = Federation.from_hf(own, "a, b", "y")
    assert flat.task.input_shape == (2,)
    same = Federation.from_arrays(
        {
            name: (np.column_stack([d["a"][:], d["b"][:]]), np.array(["no", "maybe", "yes"])[d["y"][:]])
            for name, d in own.items()
        }
    )
    assert same.fingerprint() == flat.fingerprint()


def test_splits_of_the_users_own_are_kept() -> None:
    parts = datasets.DatasetDict(train=table(12), test=table(6))
    federation = Federation.from_hf({"a": parts, "b": parts}, "v", "y")
    assert federation.train.sizes.tolist() == [12, 12]
    assert federation.test.sizes.tolist() == [6, 6]


def test_partitions_of_flower_are_clients() -> None:
    partitioner = pytest.importorskip("flwr_datasets.partitioner").IidPartitioner(num_partitions=4)
    partitioner.dataset = table(80)
    federation = Federation.from_hf(partitioner, "v", "y")
    assert federation.names == ("client-0", "client-1", "client-2", "client-3")
    held = [len(partitioner.load_partition(k)) for k in range(4)]
    assert (federation.train.sizes + federation.test.sizes).tolist() == held
    assert fedkin.train(federation, "mlr", "fedavg", rounds=1).facts["rounds"] == 1


def test_pictures_become_channels_first() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = RNG.integers(0, 256, (10, 5, 4, 3), dtype=np.uint8)
    held = datasets.Dataset.from_dict(
        {"picture": [image.fromarray(p) for p in pixels], "y": [0, 1] * 5},
        features=datasets.Features(picture=datasets.Image(), y=datasets.Value("int64")),
    )
    federation = Federation.from_hf({"a": datasets.DatasetDict(train=held, test=held)}, "picture", "y")
    assert federation.task.input_shape == (3, 5, 4)
    assert np.allclose(federation.train[0][0], pixels.transpose(0, 3, 1, 2) / 255, atol=1e-6)


def test_what_does_not_fit_is_refused_in_one_line() -> None:
    with pytest.raises(FedkinError, match="unknown column of client 'a' 'w'; choose one of: a, b, v, y"):
        Federation.from_hf({"a": table(8)}, "w", "y")
    with pytest.raises(FedkinError, match=r"client 'a': a datasets.Dataset is needed, not list"):
        Federation.from_hf({"a": [1, 2]}, "v", "y")
    with pytest.raises(FedkinError, match="from_hf takes"):
        Federation.from_hf(table(8), "v", "y")
