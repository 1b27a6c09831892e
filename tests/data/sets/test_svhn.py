from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

import fedkin
from fedkin.data.sets import svhn
from fedkin.errors import FedkinError


def test_matlab_files_are_parsed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (32, 32, 3, 7), dtype=np.uint8)
    y = np.array([[1], [2], [10], [9], [10], [5], [4]], dtype=np.uint8)
    savemat(tmp_path / "train_32x32.mat", {"X": x, "y": y})
    images, labels = svhn.parse_mat(tmp_path / "train_32x32.mat")
    assert images.shape == (7, 3, 32, 32)
    assert np.array_equal(images[4, 2], x[:, :, 2, 4])
    assert labels.tolist() == [1, 2, 0, 9, 0, 5, 4]
    with pytest.raises(FedkinError, match="SVHN train: samples per class"):
        svhn.read_upstream({"a": tmp_path / "train_32x32.mat", "b": tmp_path / "train_32x32.mat"})


def test_damaged_files_are_one_line(tmp_path: Path, cache: Path) -> None:
    savemat(tmp_path / "train_32x32.mat", {"X": np.zeros((32, 32, 3, 50), dtype=np.uint8), "y": np.ones((50, 1))})
    content = (tmp_path / "train_32x32.mat").read_bytes()
    (tmp_path / "cut.mat").write_bytes(content[: len(content) // 2])
    with pytest.raises(FedkinError, match="truncated or damaged MATLAB file"):
        svhn.parse_mat(tmp_path / "cut.mat")
    savemat(tmp_path / "other.mat", {"Z": np.zeros(3)})
    with pytest.raises(FedkinError, match="truncated or damaged MATLAB file"):
        svhn.parse_mat(tmp_path / "other.mat")
    (tmp_path / "test_32x32.mat").write_bytes(content)
    with pytest.raises(FedkinError, match="checksum mismatch"):
        fedkin.data.load("svhn", directory=tmp_path)


def test_published_totals() -> None:
    assert sum(svhn.TRAIN) == 73257
    assert sum(svhn.TEST) == 26032
