"""CIFAR-10: 32×32 colour images of ten kinds of things."""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedkin.data.archive import open_archive
from fedkin.data.images import images
from fedkin.data.registry import dataset
from fedkin.data.source import File, Source, check, check_counts
from fedkin.errors import FedkinError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))


def parse_batch(content: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A batch of the binary version: records of 1 label byte and 3072 pixel bytes (red, green, blue plane by rows)."""
    check(len(content) > 0 and len(content) % 3073 == 0, f"{name}: {len(content)} bytes are no whole records")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def parse_batches(path: Path) -> dict[str, np.ndarray]:
    """The upstream tar of the *binary* version (the Python version is a pickle and is not read)."""
    with open_archive(path) as archive:
        batches = [parse_batch(archive.read(name), name) for name in (*BATCHES, "test_batch.bin")]
    train_x, train_y = (np.concatenate(part) for part in zip(*batches[:-1]))
    return {"train_x": train_x, "train_y": train_y, "test_x": batches[-1][0], "test_y": batches[-1][1]}


def _whole(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    for part, count in (("train", 5000), ("test", 1000)):
        shape = arrays[f"{part}_x"].shape
        check(shape == (10 * count, 3, 32, 32), f"CIFAR-10: {part} images have shape {shape}")
        check_counts(f"CIFAR-10 {part}", arrays[f"{part}_y"], (count,) * 10)
    return arrays


def read_upstream(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """Parse and check the upstream archive."""
    return _whole(parse_batches(next(iter(files.values()))))


def read_arrays(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """The array layout: (n, 32, 32, 3) bytes in .npy.xz files, one per batch, and labels.npz."""

    def batch(name: str) -> np.ndarray:
        try:
            with lzma.open(files[name]) as stream:
                return np.lib.format.read_array(stream, allow_pickle=False).transpose(0, 3, 1, 2)
        except (lzma.LZMAError, EOFError, ValueError) as problem:
            raise FedkinError(f"{files[name]}: truncated or damaged archive ({problem}); get it again") from problem

    train = np.empty((50000, 3, 32, 32), dtype=np.uint8)
    for i in range(5):
        train[10000 * i : 10000 * (i + 1)] = batch(f"train_images_{i + 1}.npy.xz")
    with np.load(files["labels.npz"], allow_pickle=False) as labels:
        train_y, test_y = labels["train"], labels["test"]
    return _whole({"train_x": train, "train_y": train_y, "test_x": batch("test_images.npy.xz"), "test_y": test_y})


cifar10 = dataset(
    name="cifar10",
    description="colour photographs 32×32 of ten kinds of things",
    size="50,000 + 10,000 colour images, 10 classes, 170 MB",
    licence="none stated by the authors",
    citation="A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, technical report, 2009",
    sources=(
        Source(
            "upstream",
            (
                File(
                    "cifar-10-binary.tar.gz",
                    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                    "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                ),
            ),
            read_upstream,
            ("cifar10", "cifar-10"),
        ),
        Source(
            "arrays",
            (
                *(File(f"train_images_{i}.npy.xz") for i in range(1, 6)),
                File("test_images.npy.xz"),
                File("labels.npz"),
            ),
            read_arrays,
            ("cifar10", "cifar-10"),
        ),
    ),
)(
    images(
        CLASSES, 'Inputs (3, 32, 32) in [0, 1]; standardise="symmetric" gives [−1, 1] (FedU); see `fedkin.data.images`.'
    )
)
