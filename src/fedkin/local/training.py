"""Local training and evaluation of a shard's clients.

Training is stacked: all clients of a chunk take each step together, by a list of gradient terms and one step rule. Client k's
gradient is g = ∇f_k(w), changed in turn by clipping, weight decay λw and the terms of a method — a proximal pull μ(w − a_k), a
constant shift s_k (see `fedkin.local.terms`) — and its weights move by the rule (see `fedkin.compute.steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from threading import Lock
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedkin.compute.memory import uninitialised
from fedkin.compute.steps import Rule
from fedkin.local.batches import Batch, Plan, count_steps, plan_batches
from fedkin.local.forecasts import forecast_errors, forecast_names
from fedkin.local.kernels import Fusing, FusingRules, Kernel
from fedkin.local.noise import Noise
from fedkin.local.private import PrivateTraining
from fedkin.local.samples import Samples
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.terms import Term, affine
from fedkin.task.judging import distinct, may_lack, per_sample, valued
from fedkin.task.losses import loss_of

Part = Literal["train", "validation", "test"]
PART = 2**24
"""Numbers in the inputs that are evaluated at once."""


@dataclass(frozen=True)
class Chunk:
    """Some of the asked clients, who take their steps together; those with more steps come first."""

    shard: Shard
    kernel: Kernel
    settings: Sgd
    rate: float
    """γ of this round."""
    place: np.ndarray
    """Their places 0…k−1 among the clients asked, to pick from (and write to) tensors of the method's own."""
    rows: Tensor
    """Their rows (k, B), trained in place."""
    counters: Tensor | None
    words: np.ndarray
    """One random word per client, for random numbers of the method's own."""
    plan: Callable[[str], Plan]
    """The plan of batches drawn for a purpose."""
    kept: Callable[[str], dict[str, Tensor]] | None = None
    """What a step rule of this name remembers of earlier rounds; None where it starts anew."""
    rules: dict[str, Rule] = field(default_factory=dict)
    """The step rules in use, by name: what they remember may be kept."""

    @property
    def weights(self) -> Tensor:
        """The parameters among `rows`, (k, P)."""
        return self.rows[:, : self.kernel.layout.n_parameters]

    def batches(self, purpose: str = "batches") -> Iterator[Batch]:
        """The batches of every step. Another purpose gives independent batches, as many."""
        return self.shard.train.batches(self.plan(purpose))

    def gradient(self, rows: Tensor, batch: Batch, out: Tensor, counters: Tensor | None = None) -> Tensor:
        """Write ∇f at `rows` (a, B) into `out` (a, P), clipped and with weight decay; return the losses (a,).

        Running statistics in the buffer columns of `rows`, and `counters`, move on as in any training step.
        """
        loss = self.kernel.gradient(rows, batch, out, counters)
        for term in self.settings.terms():
            term.add(out, rows[:, : out.shape[1]])
        return loss

    def rule(self, name: str = "", like: Tensor | None = None) -> Rule:
        """The step rule of the settings for weights like these, (k, P); each name has moments of its own."""
        rule = self.settings.rule(self.rate, self.weights if like is None else like)
        if self.kept is not None:
            for key, value in self.kept(name).items():
                rule.state[key].copy_(value[self.place])
        self.rules[name] = rule
        return rule

    def descend(self, terms: Sequence[Term] = ()) -> Tensor:
        """Take all steps, the rows in place; return each client's mean training loss over its steps, (k,).

        `terms` are what a method adds to the gradient, with one row for each of the clients asked.
        """
        kernel, rows, samples = self.kernel, self.rows, self.shard.train
        plan, rule = self.plan("batches"), self.rule()
        terms = [*self.settings.terms(), *[term.of(self.place) for term in terms]]
        steps = torch.as_tensor(plan.steps).clamp(min=1).to(rows.dtype)
        if isinstance(kernel, Fusing) and kernel.fuses and plan.changes is None:
            together = affine(terms, self.rate if rule.plain else 1.0)
            if together is not None and rule.plain:  # all terms in one pass over the weights
                return kernel.descend(rows, samples, plan, self.rate, *together) / steps
            if together is not None and isinstance(kernel, FusingRules):
                return kernel.descend_by_rule(rows, samples, plan, rule, *together) / steps
        weights, total = self.weights, rows.new_zeros(len(rows))
        slopes = torch.empty_like(weights, memory_format=torch.contiguous_format)
        for batch in samples.batches(plan):
            active = batch.active
            w, g, counted = weights[:active], slopes[:active], None if self.counters is None else self.counters[:active]
            total[:active] += kernel.gradient(rows[:active], batch, g, counted)
            for term in terms:
                term.add(g, w)
            rule.step(w, g)
        return total / steps

    def replay(self) -> Callable[[], None]:
        """A function that takes random draws back to where they are now: the next gradient sees the same dropout."""
        noise = self.kernel.noise
        masks = None if noise is None else noise.state
        torchs = torch.get_rng_state() if self.shard.choice.stochastic else None

        def back() -> None:
            if noise is not None and masks is not None:
                noise.state = masks
            if torchs is not None:
                torch.set_rng_state(torchs)

        return back

    def per_step(self, total: Tensor) -> Tensor:
        """Sums over steps as means over each client's own number of steps, (k,)."""
        steps = self.plan("batches").steps
        return total / torch.as_tensor(steps).clamp(min=1).to(total.dtype)


def train_chunks(
    shard: Shard,
    ids: np.ndarray,
    rows: Tensor,
    settings: Sgd,
    round: int,
    work: Callable[[Chunk], Tensor],
    counters: Tensor | None = None,
    purpose: str = "batches",
    label: str = "",
) -> tuple[Tensor, Tensor]:
    """Train clients `ids` from `rows` (k, B), chunk by chunk, by `work`, which moves a chunk's rows in place.

    Returns the trained rows (k, B) and what `work` returns for each client, its mean training loss (k,).
    Batches depend on (seed, purpose, round, client name) only. `counters` (k, C) are updated in place. A method that
    trains two models on the same batches gives each a `label`: what step rules remember is kept under it.
    """
    given, rows = rows, uninitialised(tuple(rows.shape), rows.dtype, rows.device)
    losses = rows.new_zeros(len(rows))
    keys, sizes, offsets = shard.keys[ids], shard.train.sizes[ids], shard.train.offsets[ids]
    words = shard.streams.words(purpose, round, keys)
    steps = count_steps(sizes, settings.batch_size, settings.epochs, settings.steps)
    moments = Moments(shard, ids, f"{purpose} {label}".strip()) if settings.moments == "keep" else None
    private = None
    if settings.privacy is not None and settings.privacy.level == "sample":
        private = PrivateTraining(shard, ids, settings, settings.privacy, round, f"{purpose} {label}")
    drawn_masks = shard.streams.words(f"{purpose} dropout", round, keys) if shard.choice.dropout else None

    def do(place: np.ndarray) -> None:
        @cache
        def plan(why: str) -> Plan:
            if private is not None:
                return private.plan(place, rows.dtype)
            named = purpose if why == "batches" else f"{purpose} {why}"
            how = settings.batch_size, settings.epochs, settings.steps, rows.dtype
            drawn = words[place] if why == "batches" else shard.streams.words(named, round, keys[place])
            return plan_batches(drawn, sizes[place], offsets[place], *how, shard.changes(named, round, keys[place]))

        pick = torch.as_tensor(place)
        # Clients side by side are trained where they are by the linear kernel; others round otherwise there, from run to run.
        beside = shard.choice.name == "linear" and bool((np.diff(place) == 1).all())
        run = slice(place[0], place[-1] + 1) if beside else None
        own = given[pick] if run is None else rows[run].copy_(given[run])  # a chunk is in the cache from here on
        own_counters = None if counters is None else counters[pick]
        with shard.kernel() as plain, seeded(shard, words[place[0]]):
            kernel: Kernel = plain if private is None else private.kernel(place)
            how = shard, kernel, settings, settings.rate(round), place, own, own_counters, words[place], plan
            chunk = Chunk(*how, None if moments is None else moments.read)
            kernel.noise = None if drawn_masks is None else Noise(drawn_masks[place])
            losses[pick] = work(chunk)
            kernel.noise = None
        if run is None:
            rows[pick] = own
        if moments is not None:
            moments.write(chunk)
        if counters is not None and own_counters is not None:
            counters[pick] = own_counters

    together = shard.together
    if settings.optimiser != "sgd" or settings.momentum:
        with shard.kernel() as plain:
            together = plain.at_once(settings.tensors) if isinstance(plain, FusingRules) else together
    shard.each(do, shard.chunks(ids, steps, together))
    return rows, losses


def train_rows(
    shard: Shard,
    ids: np.ndarray,
    rows: Tensor,
    settings: Sgd,
    round: int,
    terms: Sequence[Term] = (),
    counters: Tensor | None = None,
    purpose: str = "batches",
    label: str = "",
) -> tuple[Tensor, Tensor]:
    """Train clients `ids` from `rows` (k, B) with `Chunk.descend`; return the trained rows (k, B) and mean losses (k,).

    `terms` are what a method adds to the gradient, with one row per asked client.
    """
    work = partial(Chunk.descend, terms=terms)
    return train_chunks(shard, ids, rows, settings, round, work, counters, purpose, label)


class Moments:
    """What step rules remember from round to round: private state of the clients, kept when their training is."""

    def __init__(self, shard: Shard, ids: np.ndarray, label: str) -> None:
        self.shard, self.ids, self.label, self.lock = shard, ids, label, Lock()

    def key(self, name: str, moment: str) -> str:
        return f"moments {self.label} {name} {moment}".replace("  ", " ")

    def read(self, name: str) -> dict[str, Tensor]:
        """The moments (k, …) of the rule of this name; empty before the first round."""
        start, found = self.key(name, ""), {}
        for key, value in self.shard.store.items():
            moment = key.removeprefix(start)
            if key.startswith(start) and " " not in moment:
                found[moment] = self.shard.private(key, partial(torch.zeros_like, value[0]))[self.ids]
        return found

    def write(self, chunk: Chunk) -> None:
        """Hand over what the rules of a chunk remember now; `fedkin.local.tasks` puts it into the store."""
        for name, rule in chunk.rules.items():
            for moment, value in rule.state.items():
                with self.lock:
                    key, size = self.key(name, moment), (len(self.ids), *value.shape[1:])
                    whole = self.shard.moments.setdefault(key, value.new_zeros(size))
                whole[chunk.place] = value


def seeded(shard: Shard, word: np.uint64) -> AbstractContextManager[None]:
    """Models that draw random numbers take them from the client's own stream; the global state is put back."""
    return _drawing(int(word) >> 1) if shard.choice.stochastic else nullcontext()


@contextmanager
def _drawing(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def slabs(index: Tensor, samples: Samples) -> Sequence[Tensor]:
    """Rows (k, n) in parts along n, so that the inputs of one client alone never take much memory."""
    return index.split(max(1, PART // max(1, index.shape[0] * samples.numbers)), dim=1)


LookAtOutputs = Callable[[np.ndarray, Tensor, Tensor, Tensor], None]
"""Told of some clients, by their places (k,) among those asked: outputs (k, n, …), targets (k, n, …), which samples are real (k, n)."""


def on_own_samples(
    shard: Shard, ids: np.ndarray, rows: Tensor, part: Part, look: LookAtOutputs, limit: int = 2**22
) -> None:
    """Each client's model, `rows` (k, B), on its own samples, many clients at once; those of a group are padded to the longest."""
    samples: Samples = getattr(shard, part)
    sizes = samples.sizes[ids]

    def work(chosen: np.ndarray) -> None:
        longest = int(sizes[chosen].max())
        if longest == 0:
            return
        place = np.minimum(np.arange(longest)[None, :], np.maximum(sizes[chosen] - 1, 0)[:, None])
        first = np.minimum(samples.offsets[ids[chosen]], samples.count - 1)  # the last clients may have no sample
        index = torch.as_tensor(first[:, None] + place)
        real = torch.as_tensor(np.arange(longest)[None, :] < sizes[chosen][:, None])
        own = rows[torch.as_tensor(chosen)]
        with shard.kernel() as kernel, torch.no_grad():
            outputs = torch.cat([kernel.outputs(own, samples.inputs(some)) for some in slabs(index, samples)], 1)
        look(chosen, outputs, samples.y[index], real)

    per_client = max(1, int(sizes.max(initial=1)) * max(1, samples.numbers))
    size = max(1, min(shard.together, limit // per_client))
    if samples.count:
        shard.each(work, shard.chunks(ids, sizes, size))


def evaluate_rows(
    shard: Shard,
    ids: np.ndarray,
    rows: Tensor,
    part: Part,
    also: LookAtOutputs | None = None,
    limit: int = 2**22,
) -> dict[str, Tensor]:
    """Mean loss and the task's metrics of each client's model on its own samples.

    Returns {"loss": (k,), "count": (k,)}, every metric by its key, (k,), and for forecasts what `forecast_errors` says; a
    client without samples has zeros and count 0, and so has a metric without a value (`valued`). Of classes also `distinct_count`: how many its
    model predicts at all. `also` looks at the same outputs.
    """
    sizes, forecast = getattr(shard, part).sizes[ids], shard.task.forecast
    names = ("loss", *shard.task.metric_keys, *forecast_names(shard.task))
    loss_per_sample = loss_of(shard.task)
    answer = {name: torch.zeros(len(ids), dtype=torch.float64) for name in names}
    answer |= {f"{name}_count": torch.zeros(len(ids), dtype=torch.int64) for name in may_lack(shard.task)}
    if shard.task.classes:
        answer["distinct_count"] = torch.zeros(len(ids), dtype=torch.float64)

    def judge(chosen: np.ndarray, outputs: Tensor, targets: Tensor, real: Tensor) -> None:
        if also is not None:
            also(chosen, outputs, targets, real)
        pick = torch.as_tensor(chosen)
        stacked = outputs.flatten(0, 1), targets.flatten(0, 1)
        means = {"loss": loss_per_sample(*stacked), **per_sample(shard.task, *stacked)}
        for name, value in means.items():
            sums = (value.double().view(real.shape) * real).sum(dim=1)
            answer[name][pick] = sums / torch.as_tensor(np.maximum(sizes[chosen], 1))
        several = distinct(shard.task, outputs, real)
        if several is not None:
            answer["distinct_count"][pick] = several
        if not means.keys() >= set(shard.task.metric_keys):
            for k, place in enumerate(chosen):
                n = int(sizes[place])
                found = valued(shard.task, shard.task.judge(outputs[k, :n], targets[k, :n]), n) if n else {}
                for name, number in found.items():
                    answer[name][place] = number
        for name, value in ({} if forecast is None else forecast_errors(forecast, outputs, targets, real)).items():
            answer[name][pick] = value.double()

    on_own_samples(shard, ids, rows, part, judge, limit)
    return {**answer, "count": torch.as_tensor(sizes.copy())}
