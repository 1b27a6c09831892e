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


def test_methods_that_tie_are_said_to_tie(scored):
    noise = np.tile([0.01, -0.01], 4)
    methods = [("local", np.full(8, 0.5)), ("fedavg", 0.6 + noise), ("fedprox", 0.6 - noise), ("ditto", 0.4 + noise)]
    found = " ".join(words(*(scored(name, values) for name, values in methods)).sentences)
    assert "Fedprox ties with Fedavg" in found or "Fedavg ties with Fedprox" in found
    assert "Ditto" not in found
    clear = [("local", np.full(8, 0.5)), ("fedavg", 0.6 + noise), ("fedprox", 0.5 + noise)]
    assert "tie" not in " ".join(words(*(scored(name, values) for name, values in clear)).sentences)


def test_kin_says_who_helps_whom():
    import fedkin
    from fedkin.result.verdict import who_helps

    rng = np.random.default_rng(0)
    clients = {}
    for k, turn in enumerate([1, 1, -1, -1]):
        x = rng.normal(size=(60, 3))
        clients[f"site-{k}"] = x, (turn * x[:, 0] > 0).astype(int)
    federation = fedkin.Federation.from_arrays(clients)
    result = fedkin.train(federation, "mlr", "kin", rounds=10, seed=0)
    told = who_helps(result)
    weights = result.kin - np.diag(np.diag(result.kin))
    first = int(weights.max(axis=1).argmax())
    assert told.startswith(
        f"By Kin's transfer gains site-{first} learns most from site-{int(weights[first].argmax())} ("
    )
    local = fedkin.train(federation, "mlr", "local", rounds=10, seed=0)
    assert who_helps(local) == ""
    assert told in words(local, result).sentences


def test_a_yardstick_does_not_win(scored):
    found = words(*(scored(name, np.full(8, v)) for name, v in [("local", 0.5), ("fedavg", 0.6), ("global", 0.9)]))
    assert "With Fedavg" in found.sentences[0]
