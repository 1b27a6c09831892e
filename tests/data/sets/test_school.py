from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

import fedkin
from fedkin.data.federate import Recipe
from fedkin.data.sets import school
from fedkin.errors import FedkinError

SIZES = (22, 40, 31)


def made(path: Path, columns: int = 28) -> list[np.ndarray]:
    """A file of the same form: cells X (1, schools) of (pupils, 28) with ones last, and Y of (pupils, 1)."""
    rng = np.random.default_rng(0)
    x, y = np.empty((1, len(SIZES)), dtype=object), np.empty((1, len(SIZES)), dtype=object)
    for k, n in enumerate(SIZES):
        x[0, k] = np.c_[rng.integers(0, 40, (n, columns - 1)), np.ones(n)].astype(np.uint8)
        y[0, k] = rng.integers(1, 71, (n, 1)).astype(np.uint8)
    savemat(path, {"X": x, "Y": y})
    return [cell.ravel().astype(float) for cell in y[0]]


def test_cells_become_schools_with_z_scored_exam_scores(tmp_path: Path) -> None:
    scores = made(tmp_path / "school.mat")
    federation = school.school(school.read_cells({"school.mat": tmp_path / "school.mat"}), Recipe())
    assert federation.names == ("school-001", "school-002", "school-003")
    assert (federation.train.sizes + federation.test.sizes).tolist() == list(SIZES)
    assert federation.task.input_shape == (27,)
    mean, std = federation.truth["mean"], federation.truth["std"]
    for k, own in enumerate(scores):
        back = np.concatenate([federation.train[k][1], federation.test[k][1]]) * std + mean
        assert np.allclose(np.sort(back), np.sort(own), atol=1e-4)
    assert federation.train.y.mean() == pytest.approx(0, abs=1e-6)
    assert federation.train.x.std(axis=0) == pytest.approx(np.ones(27), abs=1e-4)
    assert "z-scores" in federation.notes[0]


def test_the_seed_draws_the_split(tmp_path: Path) -> None:
    made(tmp_path / "school.mat")
    arrays = school.read_cells({"school.mat": tmp_path / "school.mat"})
    prints = [school.school(arrays, Recipe(seed=seed)).fingerprint() for seed in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]


def test_what_does_not_belong_is_refused(tmp_path: Path, cache: Path) -> None:
    made(tmp_path / "school.mat")
    arrays = school.read_cells({"school.mat": tmp_path / "school.mat"})
    with pytest.raises(FedkinError, match="a client of this set is a school"):
        school.school(arrays, replace(Recipe(), partition="iid"))
    with pytest.raises(FedkinError, match="checksum mismatch"):
        fedkin.data.load("school", directory=tmp_path)
    made(tmp_path / "narrow.mat", columns=9)
    with pytest.raises(FedkinError, match="cell 1 has shape"):
        school.read_cells({"school.mat": tmp_path / "narrow.mat"})


@pytest.mark.real_data
def test_the_real_file(real_data: Path) -> None:
    federation = fedkin.data.load("school")
    sizes = federation.train.sizes + federation.test.sizes
    assert (len(federation), sizes.sum(), sizes.min(), sizes.max()) == (139, 15362, 22, 251)
    scores = (
        np.concatenate([federation.train.y, federation.test.y]) * federation.truth["std"] + federation.truth["mean"]
    )
    assert (round(float(scores.min())), round(float(scores.max()))) == (1, 70)
    assert fedkin.data.load("school").fingerprint() == federation.fingerprint()
    assert fedkin.data.load("school", seed=1).fingerprint() != federation.fingerprint()
    assert fedkin.data.info("school")["sources"][0]["files"][0]["hash"].startswith("sha256:57fb3238")
