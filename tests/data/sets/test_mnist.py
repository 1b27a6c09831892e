from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.data.sets import mnist
from fedkin.errors import FedkinError


def idx(array: np.ndarray) -> bytes:
    """The IDX format: two zero bytes, type 8 (unsigned byte), number of dimensions, big-endian sizes, values."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def test_idx_files_plain_and_gzipped(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28))
    (tmp_path / "a").write_bytes(idx(images))
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx(images)))
    assert np.array_equal(mnist.read_idx(tmp_path / "a"), images)
    assert np.array_equal(mnist.read_idx(tmp_path / "a.gz"), images)


@pytest.mark.parametrize("keep", [2, 10, 100, -1])
def test_truncated_files_are_refused(tmp_path: Path, keep: int) -> None:
    content = idx(np.zeros((5, 28, 28)))
    (tmp_path / "a").write_bytes(content[:keep])
    with pytest.raises(FedkinError, match=r"truncated|not an IDX file"):
        mnist.read_idx(tmp_path / "a")
    (tmp_path / "a.gz").write_bytes(gzip.compress(content)[:-12])
    with pytest.raises(FedkinError, match="truncated or damaged"):
        mnist.read_idx(tmp_path / "a.gz")


def fashion(folder: Path, counts: tuple[int, int]) -> None:
    """Four files in the upstream format, with blank images and so many labels of each class."""
    folder.mkdir()
    for part, count in zip(("train", "t10k"), counts):
        labels = np.tile(np.arange(10), count)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(np.zeros((len(labels), 28, 28), dtype=np.uint8)))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))


def test_fashion_mnist_from_unpacked_upstream_files(tmp_path: Path, cache: Path) -> None:
    fashion(tmp_path / "fashion-mnist", (6000, 1000))
    federation = fedkin.data.load("fashion-mnist", clients=10, partition="iid", directory=tmp_path, files="train")
    assert federation.task.classes[0] == "T-shirt"
    assert federation.task.input_shape == (1, 28, 28)
    assert len(federation.train.x) + len(federation.test.x) == 60000


def test_wrong_counts_are_refused(tmp_path: Path, cache: Path) -> None:
    fashion(tmp_path / "fashion-mnist", (60, 10))
    with pytest.raises(FedkinError, match="images have shape"):
        fedkin.data.load("fashion-mnist", directory=tmp_path)
    assert not (cache / "fashion-mnist").exists()
