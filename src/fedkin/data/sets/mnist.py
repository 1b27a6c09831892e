"""MNIST and Fashion-MNIST: 28×28 grey images in IDX files."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fedkin.data.images import images
from fedkin.data.registry import dataset
from fedkin.data.source import File, Source, check, check_counts
from fedkin.errors import FedkinError

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
MNIST_TRAIN = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
MNIST_TEST = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)


def read_idx(path: Path) -> np.ndarray:
    """An IDX file of unsigned bytes, plain or gzipped: magic 00 00 08 d, then d big-endian sizes, then the bytes."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
            content = stream.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
        raise FedkinError(f"{path}: truncated or damaged archive ({problem}); get it again") from problem
    check(len(content) >= 4 and content[:3] == b"\x00\x00\x08", f"{path} is not an IDX file of unsigned bytes")
    dimensions = content[3]
    check(len(content) >= 4 + 4 * dimensions, f"{path} is truncated")
    shape = np.frombuffer(content, dtype=">u4", count=dimensions, offset=4).tolist()
    check(len(content) == 4 + 4 * dimensions + math.prod(shape), f"{path} is truncated: its header says {shape}")
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _reader(train: tuple[int, ...], test: tuple[int, ...]) -> Callable[[Mapping[str, Path]], dict[str, np.ndarray]]:
    """A reader of the four IDX files that checks sizes and counts per class."""

    def read(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
        train_x, train_y, test_x, test_y = (read_idx(path) for path in files.values())
        for x, y, counts in ((train_x, train_y, train), (test_x, test_y, test)):
            check(x.shape == (sum(counts), 28, 28), f"images have shape {x.shape}, expected {(sum(counts), 28, 28)}")
            check_counts(str(next(iter(files.values())).parent), y, counts)
        return {"train_x": train_x[:, None], "train_y": train_y, "test_x": test_x[:, None], "test_y": test_y}

    return read


def _sources(
    url: str,
    packed: tuple[str, ...],
    content: tuple[str, ...] | None,
    folders: tuple[str, ...],
    counts: tuple[tuple[int, ...], tuple[int, ...]],
) -> tuple[Source, Source]:
    inner: tuple[str | None, ...] = content or (None,) * 4
    archives = tuple(File(f"{n}.gz", f"{url}/{n}.gz", h, c) for n, h, c in zip(NAMES, packed, inner))
    plain = tuple(File(n, None, c) for n, c in zip(NAMES, inner))
    read = _reader(*counts)
    return Source("upstream", archives, read, folders), Source("unpacked", plain, read, folders)


mnist = dataset(
    name="mnist",
    description="handwritten digits 28×28",
    size="60,000 + 10,000 grey images, 10 classes, 11 MB",
    licence="CC BY-SA 3.0 (as commonly given)",
    citation="Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits, 1998",
    sources=_sources(
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        (
            "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
        (
            "md5:6bbc9ace898e44ae57da46a324031adb",
            "md5:a25bea736e30d166cdddb491f175f624",
            "md5:2646ac647ad5339dbf082846283269ea",
            "md5:27ae3e4e09519cfbb04c329615203637",
        ),
        ("mnist", "MNIST/raw"),
        (MNIST_TRAIN, MNIST_TEST),
    ),
)(images(range(10), "Inputs (1, 28, 28) in [0, 1] unless told otherwise; see `fedkin.data.images`."))


CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


fashion_mnist = dataset(
    name="fashion-mnist",
    description="articles of clothing 28×28",
    size="60,000 + 10,000 grey images, 10 classes, 30 MB",
    licence="MIT",
    citation="H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST, arXiv:1708.07747, 2017",
    sources=_sources(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        (
            "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
        None,
        ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw"),
        ((6000,) * 10, (1000,) * 10),
    ),
)(images(CLOTHES, "Inputs (1, 28, 28) in [0, 1] unless told otherwise; see `fedkin.data.images`."))
