"""Private local training: DP-SGD for the stacked clients of a shard, charged to their ledger before it begins.

    every step:  a sample takes part with probability q = min(1, b/n_k);   g ← (Σ_i clip_C(∇ℓ_i) + N(0, (σC)² I)) / (q n_k)

Which samples take part and the noise come from the client's own entropy, never from the run's seed, which the server knows.

Reference: Abadi et al., Deep Learning with Differential Privacy, 2016.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedkin.errors import FedkinError
from fedkin.local.batches import Batch, Plan, count_steps
from fedkin.local.kernels.clipping import ClippingKernel, clipping_kernel
from fedkin.local.kernels.linear import LinearKernel
from fedkin.local.noise import Noise
from fedkin.local.samples import Samples
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.privacy.accounting import cost_of_steps, steps_within
from fedkin.privacy.ledger import TOLERANCE, Charge, Ledger
from fedkin.privacy.noise import SecretStream
from fedkin.privacy.settings import Planned, Privacy
from fedkin.streams import Streams

DRAWN_AT_ONCE = 2**14
"""Normal numbers that a client draws at once, at least: enough to drown the overhead of a call."""


class PrivateKernel:
    """A kernel whose gradients are private: those of samples clipped, Gaussian noise added to their sum."""

    name = "private"

    def __init__(self, kernel: ClippingKernel, clip: float, scale: np.ndarray, secrets: Sequence[SecretStream]) -> None:
        """`scale` (k,) is the standard deviation of each client's noise, which comes from `secrets`."""
        self.kernel, self.clip, self.scale, self.secrets = kernel, clip, scale, secrets
        self.layout, self.chunk = kernel.layout, kernel.chunk
        self.fuses = isinstance(kernel, LinearKernel) and kernel.fuses
        width = self.layout.n_parameters
        self.ahead = max(1, DRAWN_AT_ONCE // max(1, width))
        many = len(scale) if self.ahead > 1 else 1
        self._drawn = torch.empty((many, self.ahead, width), dtype=torch.float32)
        self._one, self._next = self._drawn[:, 0], self.ahead

    @property
    def noise(self) -> Noise | None:
        """The dropout masks of the clients under way."""
        return self.kernel.noise

    @noise.setter
    def noise(self, noise: Noise | None) -> None:
        self.kernel.noise = noise

    def gradient(self, rows: Tensor, batch: Batch, out: Tensor, counters: Tensor | None = None) -> Tensor:
        """Write the clipped and noisy gradient into `out` (k, P); return the losses (k,), which are not private."""
        if batch.more:
            raise FedkinError("private training has no loss of a method's own; choose another method")
        losses = self.kernel.clipped_gradient(rows, batch.x, batch.y, batch.weight, out, self.clip)
        for first, numbers in self._noise(len(out)):
            out[first : first + len(numbers)].add_(numbers)
        return losses

    def _noise(self, active: int) -> Iterator[tuple[int, Tensor]]:
        """The noise of one step of the first clients, in pieces: the first client of each, and its numbers (m, P).

        Of small models that of all clients, drawn for several steps at once. Of large ones that of one client after the other
        in the same memory, which stays in the processor's cache: noise for all of them would have to leave it and come back.
        """
        if self.ahead == 1:
            flat = self._one[0]
            for k in range(active):
                self.secrets[k].fill(flat, float(self.scale[k]))
                yield k, self._one
            return
        if self._next == self.ahead:
            for numbers, stream, scale in zip(self._drawn, self.secrets, self.scale):
                stream.fill(numbers.view(-1), float(scale))
            self._next = 0
        self._next += 1
        yield 0, self._drawn[:active, self._next - 1]

    def descend(
        self, rows: Tensor, samples: Samples, plan: Plan, rate: float, shrink: float, push: Tensor | None
    ) -> Tensor:
        """All steps of a chunk, as `LinearKernel.descend` takes them."""
        assert isinstance(self.kernel, LinearKernel)
        return self.kernel.descend_privately(rows, samples.batches(plan), rate, shrink, push, self.clip, self._noise)

    def outputs(self, rows: Tensor, x: Tensor, counters: Tensor | None = None) -> Tensor:
        """(k, B) rows and (k, n, *input) inputs → (k, n, outputs), in evaluation mode."""
        return self.kernel.outputs(rows, x, counters)


@dataclass(frozen=True)
class Account:
    """What private training costs the clients `ids` of a shard."""

    shard: Shard
    ids: np.ndarray
    settings: Sgd
    privacy: Privacy

    @cached_property
    def ledger(self) -> Ledger:
        return ledger_of(self.shard, self.privacy)

    @cached_property
    def rates(self) -> np.ndarray:
        """Sampling rates q (k,)."""
        return np.minimum(1.0, self.settings.batch_size / self.shard.train.sizes[self.ids])

    @property
    def plan(self) -> Planned:
        return self.privacy.planned or self.settings.planned(1)

    @cached_property
    def planned(self) -> np.ndarray:
        """Steps that a round has, (k,), as the run plans it."""
        per_epoch = -(-self.shard.train.sizes[self.ids] // self.settings.batch_size)
        return np.array([self.plan.steps_per_round(int(n)) for n in per_epoch])

    @cached_property
    def noises(self) -> np.ndarray:
        """Noise multipliers σ (k,)."""
        return np.array([self.privacy.sample_noise(float(q), int(n)) for q, n in zip(self.rates, self.planned)])

    @property
    def charged(self) -> np.ndarray:
        """The multipliers that the account sees, (k,): m queries of one batch with noise σ tell as much as one with σ/√m."""
        return self.noises / np.sqrt(self.plan.queries)

    @property
    def names(self) -> list[str]:
        return [self.shard.names[k] for k in self.ids]

    def pay(self, steps: np.ndarray) -> None:
        """Write down so many steps of every client, (k,), before they are made."""
        charges = [
            Charge(*entry) for entry in zip(self.names, self.rates.tolist(), self.charged.tolist(), steps.tolist())
        ]
        self.ledger.charge(charges, "sample", self.privacy.epsilon, self.privacy.delta)

    def told(self) -> dict[str, Tensor]:
        """What each client has spent, as ε (k,), and how many more rounds its budget lasts for (k,)."""
        self.ledger.refresh()
        epsilon, delta = self.privacy.epsilon * (1 + TOLERANCE), self.privacy.delta
        spent = [self.ledger.epsilon(name, "sample", delta) for name in self.names]
        left = [
            steps_within(self.ledger.cost(name, "sample"), cost_of_steps(rate, noise, int(steps)), epsilon, delta)
            for name, rate, noise, steps in zip(self.names, self.rates, self.charged, self.planned)
        ]
        return {"epsilon": torch.tensor(spent, dtype=torch.float64), "rounds_left": torch.tensor(left).double()}


def ledger_of(shard: Shard, privacy: Privacy) -> Ledger:
    """The ledger of a shard's clients: the host's own, or else the file that the settings name."""
    if shard.ledger is not None:
        return shard.ledger
    path = None if privacy.ledger is None else Path(privacy.ledger)
    return shard.ledgers.setdefault(privacy.ledger, Ledger(path))


class PrivateTraining:
    """One private training of the clients `ids`, paid for: their batches, their noise, their kernels."""

    def __init__(
        self, shard: Shard, ids: np.ndarray, settings: Sgd, privacy: Privacy, round: int, purpose: str
    ) -> None:
        self.shard, self.settings, self.clip = shard, settings, privacy.clip
        self.make = clipping_kernel(shard.choice, shard.spec, shard.task)
        account = Account(shard, ids, settings, privacy)
        self.sizes, self.offsets, self.rates = shard.train.sizes[ids], shard.train.offsets[ids], account.rates
        self.steps = count_steps(self.sizes, settings.batch_size, settings.epochs, settings.steps)
        self.scale = account.noises * privacy.clip / (self.rates * self.sizes)
        account.pay(self.steps)
        words = None
        if privacy.insecure_noise_seed is not None:
            words = Streams(privacy.insecure_noise_seed).words(f"noise {purpose}", round, shard.keys[ids])
        self.secrets = [SecretStream(None if words is None else int(words[k])) for k in range(len(ids))]

    def plan(self, place: np.ndarray, dtype: torch.dtype) -> Plan:
        """Batches of the clients at these places: every sample takes part in a step with probability q, weight 1/(q n)."""
        found = [
            np.nonzero(self.secrets[p].chosen(int(self.steps[p]), int(self.sizes[p]), float(self.rates[p])))
            for p in place
        ]
        counts = [np.bincount(step, minlength=self.steps[p]) for p, (step, _) in zip(place, found)]
        longest, widest = int(self.steps[place].max()), max(1, max(int(c.max(initial=0)) for c in counts))
        index = np.repeat(self.offsets[place], longest * widest).reshape(len(place), longest, widest)
        weight = np.zeros(index.shape)
        for k, (p, (step, sample)) in enumerate(zip(place, found)):
            first = np.cumsum(counts[k]) - counts[k]
            within = np.arange(len(step)) - first[step]
            index[k, step, within] += sample
            weight[k, step, within] = 1 / (self.rates[p] * self.sizes[p])
        widths = np.maximum((weight > 0).sum(axis=2).max(axis=0), 1)
        return Plan(torch.from_numpy(index), torch.from_numpy(weight).to(dtype), self.steps[place], widths=widths)

    def kernel(self, place: np.ndarray) -> PrivateKernel:
        """The kernel of the clients at these places."""
        return PrivateKernel(self.make(), self.clip, self.scale[place], [self.secrets[p] for p in place])
