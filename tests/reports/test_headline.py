from __future__ import annotations

import numpy as np
import pytest

from fedkin.reports.headline import verdict_on
from fedkin.result.contenders import group


def words(*results):
    return verdict_on(group(list(results)))


@pytest.mark.parametrize(
    ("shift", "verdict", "says"),
    [(0.2, "pays", "pays here"), (-0.2, "costs", "does not pay"), (0, "unclear", "no clear difference")],
)
def test_verdict_follows_the_interval(scored, shift, verdict, says):
    noise = np.tile([0.01, -0.01], 4)
    found = words(scored("local", np.full(8, 0.5)), scored("fedavg", 0.5 + shift + noise))
    assert found.verdict == verdict
    assert says in found.title


def test_counts_and_extremes_are_named(scored, runs):
    values = np.array([0.9, 0.5, 0.4, 0.5, 0.5, 0.6, 0.6, 0.6])
    found = words(scored("local", np.full(8, 0.5)), scored("fedavg", values))
    assert "4 of 8 clients gain, 1 lose" in found.title
    assert (
        f"{runs[0].names[0]} gains most (+40.0 points), {runs[0].names[2]} loses most (−10.0 points)."
        in found.sentences
    )


def test_nothing_is_claimed_without_local(scored):
    found = words(scored("fedavg", np.full(8, 0.9)))
    assert found.verdict == "unknown"
    assert "cannot be said" in " ".join(found.sentences)
    assert "Only Local" in words(scored("local", np.full(8, 0.9))).sentences[0]


def test_picking_the_best_of_several_is_owned_up_to(scored):
    found = words(*(scored(name, np.full(8, v)) for name, v in [("local", 0.5), ("fedavg", 0.6), ("fedprox", 0.7)]))
    assert "Fedprox is the best of 2 methods" in found.sentences[-1]


def test_a_yardstick_does_not_win(scored):
    found = words(*(scored(name, np.full(8, v)) for name, v in [("local", 0.5), ("fedavg", 0.6), ("global", 0.9)]))
    assert "With Fedavg" in found.sentences[0]
