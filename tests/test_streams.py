"""Random streams depend on names, not on order; they are uniform enough to shuffle and sample with."""

from __future__ import annotations

import numpy as np

from fedkin.streams import Streams, client_keys, permutations, uniform_words


def test_words_follow_the_client_not_its_place() -> None:
    names = [f"client-{k}" for k in range(50)]
    order = np.random.default_rng(0).permutation(50)
    straight = Streams(3).words("cohort", 7, client_keys(names))
    shuffled = Streams(3).words("cohort", 7, client_keys([names[k] for k in order]))
    assert np.array_equal(shuffled, straight[order])


def test_seed_purpose_and_round_each_change_the_words() -> None:
    keys = client_keys(["a", "b", "c"])
    words = {tuple(Streams(s).words(p, r, keys)) for s in (0, 1) for p in ("x", "y") for r in (1, 2)}
    assert len(words) == 8


def test_permutations_are_permutations_and_uniform() -> None:
    words = uniform_words(np.array([42], dtype=np.uint64), 24_000).reshape(-1)
    found = permutations(words, np.full(len(words), 4))
    assert (np.sort(found, axis=1) == np.arange(4)).all()
    codes = found @ np.array([64, 16, 4, 1])
    _, counts = np.unique(codes, return_counts=True)
    assert len(counts) == 24
    # Pearson's chi-squared with 23 degrees of freedom stays below 60 but for a chance of 4 in 100,000.
    assert ((counts - 1000) ** 2 / 1000).sum() < 60


def test_cohorts_are_uniform() -> None:
    from fedkin.algorithms import get

    names = tuple(f"c{k}" for k in range(20))

    class Setting:
        streams = Streams(0)
        everyone = np.arange(20)

        def __len__(self) -> int:
            return 20

    setting = Setting()
    setting.keys = client_keys(names)  # type: ignore[attr-defined]
    counts = np.zeros(20)
    method = get("fedavg")()
    for t in range(1, 2001):
        cohort = method.cohort(t, 5, setting)  # type: ignore[arg-type]
        assert len(set(cohort.tolist())) == 5
        counts[cohort] += 1
    # 500 expected each, with a standard deviation of about 19.4.
    assert np.abs(counts - 500).max() < 5 * 19.4
