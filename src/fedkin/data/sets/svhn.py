"""SVHN: house numbers photographed from the street, one digit per 32×32 crop."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedkin.data.images import images
from fedkin.data.matlab import read_matlab
from fedkin.data.registry import dataset
from fedkin.data.source import File, Source, check, check_counts

TRAIN = (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659)
TEST = (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595)


def parse_mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """A MATLAB file with X (32, 32, 3, n) bytes and y (n, 1) labels 1…10, where 10 stands for the digit 0."""
    x, y = read_matlab(path, "X", "y")
    y = y.ravel().astype(np.int64) % 10
    check(x.ndim == 4 and x.shape[:3] == (32, 32, 3) and x.shape[3] == len(y), f"{path}: X has shape {x.shape}")
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y.astype(np.uint8)


def read_upstream(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """Parse and check the two files."""
    (train_x, train_y), (test_x, test_y) = (parse_mat(path) for path in files.values())
    check_counts("SVHN train", train_y, TRAIN)
    check_counts("SVHN test", test_y, TEST)
    return {"train_x": train_x, "train_y": train_y, "test_x": test_x, "test_y": test_y}


svhn = dataset(
    name="svhn",
    description="digits of house numbers, colour crops 32×32",
    size="73,257 + 26,032 colour images, 10 classes, 246 MB",
    licence="for non-commercial use only",
    citation="Y. Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, NIPS workshop",
    sources=(
        Source(
            "upstream",
            (
                File(
                    "train_32x32.mat",
                    "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
                    "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
                ),
                File(
                    "test_32x32.mat",
                    "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
                    "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
                ),
            ),
            read_upstream,
            ("svhn", "SVHN"),
        ),
    ),
)(images(range(10), "Inputs (3, 32, 32) in [0, 1] unless told otherwise; see `fedkin.data.images`."))
