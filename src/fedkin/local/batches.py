"""Mini-batches of many clients at once: shuffled per client and epoch, last partial batch kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedkin.local.changes import Changes
from fedkin.streams import permutations, uniform_words


class Batch(NamedTuple):
    """One step of the clients that still make steps: the first `active` of their chunk.

    x (active, b, *input), y (active, b, …), weight (active, b) as in `Plan`.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    more: tuple[Tensor, ...] = ()
    """What a loss of a method's own takes beside, each (active, b, …)."""

    @property
    def active(self) -> int:
        return len(self.weight)

    def among(self, which: Tensor | slice) -> Batch:
        """The same of some of the clients."""
        return Batch(self.x[which], self.y[which], self.weight[which], tuple(entry[which] for entry in self.more))


@dataclass(frozen=True)
class Plan:
    """Which sample each client uses at each step.

    `index` (k, S, b) are rows of the shard's sample array; `weight` (k, S, b) is 1/(batch size) for real samples and 0
    for the padding of a partial batch (padding always comes last); client k makes `steps[k]` steps.
    """

    index: Tensor
    weight: Tensor
    steps: np.ndarray
    changes: Changes | None = None
    """How the batches are augmented."""
    widths: np.ndarray | None = None
    """The largest batch of each step, (S,), where batches differ in size (private training); None: b."""

    def each(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Step after step: how many clients make it, their samples (active, b) and weights (active, b).

        Clients must be sorted by steps, most first.
        """
        active = len(self.steps)
        for step in range(self.index.shape[1]):
            while self.steps[active - 1] <= step:
                active -= 1
            width = None if self.widths is None else int(self.widths[step])
            yield active, self.index[:active, step, :width], self.weight[:active, step, :width]


def count_steps(sizes: np.ndarray, batch_size: int, epochs: int, steps: int | None) -> np.ndarray:
    """Local steps per client: epochs × ⌈n_k / b⌉, or a fixed number. Shape (k,)."""
    per_epoch = -(-sizes // batch_size)
    return np.full(len(sizes), steps, dtype=np.int64) if steps is not None else epochs * per_epoch


def plan_batches(
    words: np.ndarray,
    sizes: np.ndarray,
    offsets: np.ndarray,
    batch_size: int,
    epochs: int,
    steps: int | None,
    dtype: torch.dtype,
    changes: Changes | None = None,
) -> Plan:
    """Plan all steps of k clients. `words` (k,) seed the shuffles, `offsets` (k,) are the clients' first sample rows.

    Step s of client k is batch s mod ⌈n_k/b⌉ of epoch s div ⌈n_k/b⌉; every epoch has its own shuffle.
    """
    k, b = len(sizes), int(min(batch_size, sizes.max()))
    per_epoch = -(-sizes // batch_size)
    total = count_steps(sizes, batch_size, epochs, steps)
    n_epochs = int((-(-total // per_epoch)).max(initial=0))
    longest = int(total.max(initial=0))
    shuffles = permutations(uniform_words(words, n_epochs).reshape(-1), np.repeat(sizes, n_epochs))
    most = int(per_epoch.max(initial=0))
    if most * b != shuffles.shape[1]:  # a last batch that is partly padding
        shuffles = np.pad(shuffles, ((0, 0), (0, most * b - shuffles.shape[1])))
    batches = shuffles.reshape(k, n_epochs, most, b)

    step = np.arange(longest)[None, :]
    epoch, batch = np.minimum(step // per_epoch[:, None], n_epochs - 1), step % per_epoch[:, None]
    count = np.where(
        step < total[:, None], np.clip(sizes[:, None] - batch * batch_size, 0, b), 0
    )  # real samples, (k, S)
    real = np.arange(b) < count[:, :, None]
    index = batches[np.arange(k)[:, None], epoch, batch]
    index = np.where(real, index + offsets[:, None, None], offsets[:, None, None])
    weight = real * (1 / np.maximum(count, 1))[:, :, None]
    return Plan(torch.as_tensor(index), torch.as_tensor(weight).to(dtype), total, changes)
