from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.data.sets import cifar10
from fedkin.errors import FedkinError


def write_archive(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """The binary version: per image a label byte, then the red, green and blue planes; six batches in a tar."""
    per_batch = len(labels) // 6
    with tarfile.open(path, "w:gz") as archive:
        for i, name in enumerate((*cifar10.BATCHES, "test_batch.bin")):
            rows = slice(i * per_batch, (i + 1) * per_batch)
            records = np.concatenate([labels[rows, None], images[rows].reshape(per_batch, -1)], axis=1)
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            content = records.astype(np.uint8).tobytes()
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def test_the_binary_version_is_parsed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (24, 3, 32, 32)), rng.integers(0, 10, 24)
    write_archive(tmp_path / "cifar-10-binary.tar.gz", images, labels)
    arrays = cifar10.parse_batches(tmp_path / "cifar-10-binary.tar.gz")
    assert np.array_equal(arrays["train_x"], images[:20])
    assert np.array_equal(arrays["train_y"], labels[:20])
    assert np.array_equal(arrays["test_x"], images[20:])
    with pytest.raises(FedkinError, match="train images have shape"):
        cifar10.read_upstream({"a": tmp_path / "cifar-10-binary.tar.gz"})


def test_another_archive_of_the_same_name_is_refused(tmp_path: Path, cache: Path) -> None:
    write_archive(tmp_path / "cifar-10-binary.tar.gz", np.zeros((6, 3, 32, 32)), np.zeros(6, dtype=int))
    with pytest.raises(FedkinError, match="checksum mismatch"):
        fedkin.data.load("cifar10", directory=tmp_path)


def test_half_a_record_is_refused() -> None:
    with pytest.raises(FedkinError, match="no whole records"):
        cifar10.parse_batch(b"x" * 4000, "data_batch_1.bin")


def test_a_truncated_xz_is_one_line(tmp_path: Path, cache: Path) -> None:
    for name in (*(f"train_images_{i}.npy.xz" for i in range(1, 6)), "test_images.npy.xz", "labels.npz"):
        (tmp_path / name).write_bytes(b"\xfd7zXZ\x00\x00\x04")
    with pytest.raises(FedkinError, match="truncated or damaged") as problem:
        fedkin.data.load("cifar10", directory=tmp_path)
    assert "\n" not in str(problem.value)
