"""The batch plan: each epoch shuffles all samples once, whatever the client's neighbours in the chunk."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.local.batches import plan_batches


@given(
    sizes=st.lists(st.integers(1, 25), min_size=1, max_size=6),
    batch_size=st.integers(1, 30),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_every_epoch_uses_every_sample_once(sizes: list[int], batch_size: int, epochs: int, seed: int) -> None:
    n = np.array(sizes)
    words = np.random.default_rng(seed).integers(0, 2**63, len(n)).astype(np.uint64)
    offsets = np.concatenate([[0], np.cumsum(n)[:-1]])
    plan = plan_batches(words, n, offsets, batch_size, epochs, None, torch.float64)
    for k in range(len(n)):
        per_epoch = -(-sizes[k] // batch_size)
        assert plan.steps[k] == epochs * per_epoch
        for epoch in range(epochs):
            steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
            used = torch.cat([plan.index[k, s][plan.weight[k, s] > 0] for s in steps])
            assert sorted(used.tolist()) == list(range(offsets[k], offsets[k] + sizes[k]))
            assert all(abs(float(plan.weight[k, s].sum()) - 1) < 1e-12 for s in steps)
        assert float(plan.weight[k, int(plan.steps[k]) :].sum()) == 0


@given(steps=st.integers(1, 40), size=st.integers(1, 12), batch_size=st.integers(1, 5))
def test_a_fixed_number_of_steps_runs_over_as_many_epochs_as_needed(steps: int, size: int, batch_size: int) -> None:
    words = np.array([3], dtype=np.uint64)
    plan = plan_batches(words, np.array([size]), np.array([0]), batch_size, 1, steps, torch.float64)
    assert plan.steps.tolist() == [steps]
    counts = torch.bincount(plan.index[plan.weight > 0], minlength=size)
    assert int(counts.max() - counts.min()) <= 1  # no sample is used twice before all are used once


def test_a_plan_does_not_depend_on_the_other_clients() -> None:
    words = np.array([11, 12, 13], dtype=np.uint64)
    sizes, offsets = np.array([9, 30, 4]), np.array([0, 9, 39])
    together = plan_batches(words, sizes, offsets, 4, 2, None, torch.float64)
    for k in range(3):
        alone = plan_batches(words[k : k + 1], sizes[k : k + 1], offsets[k : k + 1], 4, 2, None, torch.float64)
        steps = int(alone.steps[0])
        assert torch.equal(together.index[k, :steps][together.weight[k, :steps] > 0], alone.index[alone.weight > 0])
