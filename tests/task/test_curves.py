from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score, roc_curve

from fedkin.task.curves import BINS, FALSE_POSITIVES, NO_VALUE, calibration_points, roc_points


def answers(samples: int, classes: int, coarse: bool, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    true = rng.integers(0, classes, samples)
    chances = rng.dirichlet(np.ones(classes), samples) + 0.5 * np.eye(classes)[true]
    chances = np.round(chances, 1) + 0.01 if coarse else chances
    return chances / chances.sum(axis=1, keepdims=True), true


@pytest.mark.parametrize("coarse", [False, True], ids=["fine", "ties"])
def test_the_roc_is_that_of_scikit_learn(coarse: bool) -> None:
    chances, true = answers(200, 2, coarse)
    wrong, right, _ = roc_curve(true, chances[:, 1], drop_intermediate=False)
    told = roc_points(chances, true)
    assert told[-1] == pytest.approx(roc_auc_score(true, chances[:, 1]))
    last = np.append(np.diff(wrong) > 0, True)  # where it rises straight up, its upper end
    assert np.allclose(told[:-1], np.interp(FALSE_POSITIVES, wrong[last], right[last]))


def test_the_area_of_several_classes_is_auroc() -> None:
    chances, true = answers(150, 4, False)
    assert roc_points(chances, true)[-1] == pytest.approx(roc_auc_score(true, chances, multi_class="ovr"))


def test_one_class_has_no_roc() -> None:
    chances, true = answers(20, 2, False)
    assert (roc_points(chances, np.zeros_like(true)) == NO_VALUE).all()


def test_the_calibration_is_that_of_scikit_learn() -> None:
    chances, true = answers(500, 2, False)
    share, mean, seen = calibration_points(chances, true)
    observed, forecast = calibration_curve(true, chances[:, 1], n_bins=BINS)
    assert share.sum() == pytest.approx(1)
    assert np.allclose(mean[share > 0], forecast)
    assert np.allclose(seen[share > 0], observed)


def test_of_several_classes_the_predicted_one_is_the_forecast() -> None:
    chances, true = answers(300, 5, False)
    share, mean, seen = calibration_points(chances, true)
    assert (share * mean).sum() == pytest.approx(chances.max(axis=1).mean())
    assert (share * seen).sum() == pytest.approx((chances.argmax(axis=1) == true).mean())
