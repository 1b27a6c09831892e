"""Data stay where and as they are: bytes, mapped files and data sets read item by item give the numbers of a float copy."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedkin import Federation, FedkinError, data, train
from fedkin.algorithms import make
from fedkin.federation import Rescaling
from fedkin.federation.unread import Unread

SIZES = (19, 30, 12)


class Generated:
    """A data set whose items are computed when they are asked for."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.x[i].copy()), int(self.y[i])


def images(shape: tuple[int, ...] = (1, 8, 8)) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    clients = {}
    for k, n in enumerate(SIZES):
        y = rng.integers(0, 3, n)
        x = rng.integers(0, 256, (n, *shape), dtype=np.uint8)
        x[:, :, :4] = (x[:, :, :4] // 2 + 60 * y[:, None, None, None]).astype(np.uint8)
        clients[f"c{k}"] = (x, y)
    return clients


def trained(federation: Federation, model: Any = "mlp:8", dtype: str = "float32", **options: Any) -> Any:
    method = make("fedavg", {"epochs": 2, "batch_size": 8, "lr": 0.1})
    return train(federation, model, method, rounds=2, dtype=dtype, **options)


def same(one: Any, other: Any) -> None:
    assert torch.equal(one.server_rows, other.server_rows)
    assert one.metrics == other.metrics


def convolutional() -> torch.nn.Module:
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", ["mlr", "mlp:8", convolutional])
def test_bytes_give_the_numbers_of_floats(model: Any, dtype: str) -> None:
    stored = Federation.from_arrays(images(), scaling=1 / 255)
    floats = {name: (x.astype(np.float32) * np.float32(1 / 255), y) for name, (x, y) in images().items()}
    copied = Federation.from_arrays(floats)
    assert stored.train.stored.dtype == np.uint8
    np.testing.assert_array_equal(stored.train.x, copied.train.x)
    assert stored.fingerprint() == copied.fingerprint()
    same(trained(stored, model, dtype), trained(copied, model, dtype))


def test_shift_and_spread_per_pixel_give_the_numbers_of_floats() -> None:
    rng = np.random.default_rng(1)
    shift, spread = (rng.random((1, 8, 8)).astype(np.float32) for _ in range(2))
    stored = Federation.from_arrays(images(), scaling=Rescaling(1 / 255, shift, spread + 1))
    floats = {}
    for name, (x, y) in images().items():
        floats[name] = ((x.astype(np.float32) * np.float32(1 / 255) - shift) / (spread + 1), y)
    for method in ("fedavg", "fedproto", "knnper"):
        own = {"batch_size": 8, "lr": 0.1}
        results = [
            train(federation, "mlp:8", make(method, own), rounds=2)
            for federation in (stored, Federation.from_arrays(floats))
        ]
        same(*results)


def test_mapped_arrays_stay_in_their_files(tmp_path: Path) -> None:
    mapped = {}
    for name, (x, y) in images().items():
        np.save(tmp_path / f"{name}.npy", x)
        mapped[name] = (np.load(tmp_path / f"{name}.npy", mmap_mode="r"), y)
    federation = Federation.from_arrays(mapped, scaling=1 / 255, validation_fraction=0.2)
    direct = Federation.from_arrays(images(), scaling=1 / 255, validation_fraction=0.2)
    assert isinstance(federation.train.stored, Unread)
    assert federation.fingerprint() == direct.fingerprint()
    for model in ("mlp:8", convolutional):
        same(trained(federation, model), trained(direct, model))
    one = federation.take([2])
    sent: Federation = pickle.loads(pickle.dumps(one))  # noqa: S301 (what Ray does)
    assert isinstance(sent.train.stored, Unread)
    assert [len(source) for source in sent.train.stored.sources] == [len(one.train.y)]
    np.testing.assert_array_equal(sent.train.x, direct.take([2]).train.x)


def test_a_mapped_array_with_nan_is_refused_with_the_clients_name(tmp_path: Path) -> None:
    x = np.ones((6, 2), dtype=np.float32)
    x[3, 1] = np.nan
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(FedkinError, match="client 'b': x of its train samples holds NaN"):
        Federation.from_arrays(
            {"a": (np.ones((6, 2)), [0, 1] * 3), "b": (np.load(tmp_path / "x.npy", mmap_mode="r"), [0, 1] * 3)},
            test_fraction=0,
        )


@pytest.mark.parametrize("readers", [0, 2])
def test_items_read_when_they_are_needed_give_the_numbers_of_arrays(readers: int) -> None:
    sets = {name: Generated(x, y) for name, (x, y) in images().items()}
    lazy = Federation.from_datasets(sets, lazy=True, readers=readers, scaling=1 / 255)
    direct = Federation.from_datasets(sets, scaling=1 / 255)
    assert isinstance(lazy.train.stored, Unread)
    assert isinstance(direct.train.stored, np.ndarray)
    for model in ("mlp:8", convolutional):
        same(trained(lazy, model), trained(direct, model))


@pytest.mark.slow
def test_ray_actors_read_items_themselves() -> None:
    sets = {name: Generated(x, y) for name, (x, y) in images().items()}
    lazy = Federation.from_datasets(sets, lazy=True, readers=2, scaling=1 / 255)
    torch.testing.assert_close(trained(lazy, engine="ray", workers=2).server_rows, trained(lazy).server_rows)


def test_items_that_do_not_fit_are_named() -> None:
    class Odd(Generated):
        def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
            x, y = super().__getitem__(i)
            return (x[:, :5] if i == 7 else x), y

    x, y = images()["c0"]
    for lazy in (True, False):
        with pytest.raises(FedkinError, match=r"client 'odd'.*7"):
            Federation.from_datasets({"odd": Odd(x, y)}, lazy=lazy)
    nan = Generated(np.where(np.arange(64).reshape(1, 8, 8) == 3, np.nan, x).astype(np.float32), y)
    with pytest.raises(FedkinError, match="client 'bad': input 0 holds NaN"):
        Federation.from_datasets({"bad": nan}, lazy=True, readers=0)
    with pytest.raises(FedkinError, match="lazy is 'maybe'"):
        Federation.from_datasets({"bad": nan}, lazy="maybe")  # type: ignore[arg-type]
    with pytest.raises(FedkinError, match="scaling is 'half'"):
        Federation.from_arrays(images(), scaling="half")  # type: ignore[arg-type]


def test_parquet_columns_stay_in_their_type(tmp_path: Path) -> None:
    frame = pd.DataFrame({f"p{i}": np.random.default_rng(i).integers(0, 200, 90, dtype=np.uint8) for i in range(5)})
    frame["site"], frame["ill"] = ["a", "b", "c"] * 30, ["yes", "no"] * 45
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=20)
    federation = data.from_parquet(tmp_path / "x.parquet", "site", "ill")
    assert federation.train.stored.dtype == np.uint8
    wanted = Federation.from_frame(frame, "site", "ill")
    np.testing.assert_array_equal(federation.train.offsets, wanted.train.offsets)
    np.testing.assert_allclose(federation.train.x, wanted.train.x, atol=1e-5)
    np.testing.assert_allclose(federation.test.x, wanted.test.x, atol=1e-5)
    rows = [train(each, "mlr", rounds=2).server_rows for each in (federation, wanted)]
    torch.testing.assert_close(rows[0], rows[1], atol=1e-4, rtol=1e-4)
    mapped = data.from_parquet(tmp_path / "x.parquet", "site", "ill", lazy=True, folder=tmp_path)
    assert isinstance(mapped.train.stored, Unread)
    assert mapped.fingerprint() == federation.fingerprint()
    assert torch.equal(train(mapped, "mlr", rounds=2).server_rows, rows[0])
    for columns, why in ((["p0", "site", "ill"], "site"), (["p9"], "unknown column 'p9'")):
        with pytest.raises(FedkinError, match=why):
            data.from_parquet(tmp_path / "x.parquet", "p1", "p2", columns)


LIMITED = """
import resource
import numpy as np
import torch
from fedkin import Federation, train
from fedkin.algorithms import make
from fedkin.federation.unread import Unread

PIXELS, ITEMS, CLIENTS, LEFT = {pixels}, {items}, {clients}, {left}

class Synthetic:
    targets = [i % 2 for i in range(ITEMS)]
    def __len__(self): return ITEMS
    def __getitem__(self, i):
        x = np.zeros(PIXELS, dtype=np.uint8)
        x[: PIXELS // 2 if i % 2 else PIXELS] = 40 + i % 7
        return x, i % 2

torch.set_num_threads(1)
train(Federation.from_arrays({{"warm": (np.random.rand(8, 3), [0, 1] * 4), "up": (np.random.rand(8, 3), [0, 1] * 4)}}), "mlr", rounds=1, workers=1)
size = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmSize:"))
limit = {limit} or size + LEFT
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
federation = Federation.from_datasets({{f"c{{k}}": Synthetic() for k in range(CLIENTS)}}, scaling=1 / 255, test_fraction={test}, readers={readers})
assert isinstance(federation.train.stored, Unread), "it was read whole"
stored = PIXELS * ITEMS * CLIENTS
assert stored > {times} * LEFT, (stored, LEFT)
done = train(federation, "mlr", make("fedavg", {{"steps": {steps}, "batch_size": 16, "lr": 0.01}}), rounds=1, workers=1)
print(done.metrics["post"]["test_accuracy"])
assert np.mean(done.metrics["post"]["test_accuracy"]) == 1.0
"""


def limited(**numbers: Any) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED.format(**numbers)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_data_set_five_times_the_memory_that_is_left() -> None:
    """1.3 GiB of samples in a process that may use 256 MiB more than it does."""
    limited(
        pixels=2**16,
        items=5120,
        clients=4,
        left=2**28,
        limit=0,
        test=0.02,
        times=4.9,
        steps=5,
        readers=1,
    )


@pytest.mark.slow
def test_a_data_set_of_20_gib_in_a_process_allowed_4_gib() -> None:
    limited(
        pixels=3 * 2**16, items=5462, clients=20, left=2**32, limit=2**32, test=0.01, times=4.9, steps=20, readers=2
    )
