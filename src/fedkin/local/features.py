"""Features on the client side: telling their means, training towards given ones, and the gradient for split learning.

A client's samples are put into m *parts*, each with one feature vector: all samples in one ("client", m = 1), one part per
class ("class", m = C), or one per sample ("aligned", m = n). Features that travel are (k, m, d).
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from fedkin.local.kernels import Kernel
from fedkin.local.kernels.linear import LinearKernel
from fedkin.local.kernels.recurrent import stackable
from fedkin.local.kernels.tapped import Penalty, TappedKernel, layers_up_to
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.training import Chunk, slabs, train_chunks
from fedkin.models.cut import Cut, cut
from fedkin.task.losses import PerSample, loss_of

Granularity = Literal["client", "class", "aligned"]


def misalignment(features: Tensor, guides: Tensor) -> Tensor:
    """1 − cos of each pair, (…, d) → (…,); 0 (and no gradient) where either vector is zero: it has no direction."""
    size = features.norm(dim=-1) * guides.norm(dim=-1)
    there = size > 1e-12
    return torch.where(there, 1 - (features * guides).sum(dim=-1) / torch.where(there, size, 1.0), 0.0)


def guided_loss(loss: PerSample, outputs: int, strength: float, penalty: Penalty = misalignment) -> PerSample:
    """ℓ(output_i, y_i) + strength·penalty(h_i, g_i), from outputs with the features behind them, (n, outputs + d)."""

    def each(tapped: Tensor, targets: Tensor, *guides: Tensor) -> Tensor:
        return loss(tapped[:, :outputs], targets) + strength * penalty(tapped[:, outputs:], *guides)

    return each


class Taps:
    """A shard's model, cut: kernels with tapped features, one per worker thread, and the classifier alone."""

    def __init__(self, shard: Shard, layer: str, strength: float, penalty: Penalty = misalignment) -> None:
        self.cut: Cut = cut(shard.spec, shard.task, layer)
        self.outputs = shard.task.outputs
        self.kernels: SimpleQueue[Kernel] = SimpleQueue()
        tapped, loss = self.cut.tapped(), guided_loss(loss_of(shard.task), self.outputs, strength, penalty)
        self.heads: SimpleQueue[HeadGradient] = SimpleQueue()
        at = layers_up_to(shard.spec.template(), layer)
        for _ in range(shard.workers):
            kernel = shard.choice.make()
            if isinstance(kernel, LinearKernel) and not kernel.drops and at is not None:
                self.kernels.put(TappedKernel(kernel, at, strength, penalty))
            else:
                self.kernels.put(shard.choice.variant(tapped, loss))
            self.heads.put(head_gradient(self.cut, loss_of(shard.task)))


HeadGradient = Callable[..., tuple[Tensor, Tensor]]


def head_gradient(cut: Cut, loss: PerSample) -> HeadGradient:
    """(guides (m, d), the classifier's tensors, an `Exam`) → ∂l/∂guides (m, d) and l = Σ_r share_r·ℓ_r."""
    head = stackable(cut.head())

    def total(guides: Tensor, tensors: dict[str, Tensor], part: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
        outputs = functional_call(head, tensors, (guides,))
        return (loss(outputs[part], targets) * shares).sum()

    return grad_and_value(total)


def split_gradient(
    shard: Shard, ids: np.ndarray, tap: Taps, classifiers: Tensor, guides: Tensor, granularity: Granularity
) -> tuple[Tensor, Tensor]:
    """∂l_k/∂guides (k, m, d) and l_k (k,): the loss of each client's classifier (k, H) on its guides and own targets.

    All clients in one vmapped program, or one after the other where the model is trained so.
    """
    tensors, exam = tap.cut.head_tensors(classifiers), examination(shard, ids, granularity)
    slopes, losses = torch.empty_like(guides), guides.new_empty(len(guides))

    def work(chosen: np.ndarray) -> None:
        gradient = tap.heads.get()
        try:
            if shard.choice.stacks:
                slopes[:], losses[:] = vmap(gradient)(guides, tensors, *exam)
                return
            for k in chosen:
                own = {name: value[k] for name, value in tensors.items()}
                slopes[k], losses[k] = gradient(guides[k], own, *(each[k] for each in exam))
        finally:
            tap.heads.put(gradient)

    everyone = np.arange(len(guides))
    parts = 1 if shard.choice.stacks else min(shard.workers, len(ids))
    shard.each(work, np.array_split(everyone, parts))
    return slopes, losses


def taps(shard: Shard, layer: str, strength: float, penalty: Penalty = misalignment) -> Taps:
    """The shard's `Taps` at a layer, made once."""
    key = f"taps {layer} {strength} {penalty.__module__}.{penalty.__qualname__}"
    if key not in shard.made:
        shard.made[key] = Taps(shard, layer, strength, penalty)
    found: Taps = shard.made[key]
    return found


def part_features(
    shard: Shard, ids: np.ndarray, rows: Tensor, tap: Taps, granularity: Granularity
) -> dict[str, Tensor]:
    """What clients tell of their training samples' features under the models `rows` (k, B), in evaluation mode.

    Returns "features" (k, d), the mean over samples; for "class" and "aligned" also "parts" (k, m, d), and for "class"
    "held" (k, C): which classes the client has (the features of others are 0).
    """
    samples, sizes = shard.train, shard.train.sizes[ids]
    m = {"client": 0, "class": shard.task.outputs, "aligned": int(sizes.max())}[granularity]
    answer = {"features": rows.new_zeros((len(ids), tap.cut.size))}
    if m:
        answer["parts"] = rows.new_zeros((len(ids), m, tap.cut.size))
    if granularity == "class":
        answer["held"] = torch.zeros((len(ids), m), dtype=torch.bool)

    def work(chosen: np.ndarray) -> None:
        pick = torch.as_tensor(chosen)
        place = np.arange(int(sizes[chosen].max()))[None, :]
        real = torch.as_tensor(place < sizes[chosen][:, None])
        index = torch.as_tensor(samples.offsets[ids[chosen]][:, None] + np.minimum(place, sizes[chosen][:, None] - 1))
        kernel = tap.kernels.get()
        try:
            seen = [kernel.outputs(rows[pick], samples.inputs(some)) for some in slabs(index, samples)]
            features = torch.cat(seen, dim=1)[..., tap.outputs :]
        finally:
            tap.kernels.put(kernel)
        share = real.to(rows.dtype)
        answer["features"][pick] = torch.einsum("kn,knd->kd", share / share.sum(dim=1, keepdim=True), features)
        if granularity == "aligned":
            answer["parts"][pick] = features
        elif granularity == "class":
            member = functional.one_hot(samples.y[index], m).to(rows.dtype) * share[..., None]
            counts = member.sum(dim=1)
            answer["parts"][pick] = torch.einsum("knc,knd->kcd", member / counts.clamp(min=1)[:, None], features)
            answer["held"][pick] = counts > 0

    shard.each(work, shard.chunks(ids, sizes, chunk_size(tap, sizes, samples.numbers)))
    return answer


def chunk_size(tap: Taps, sizes: np.ndarray, numbers: int, limit: int = 2**22) -> int:
    """How many clients to evaluate at once: few enough that their inputs stay small."""
    kernel = tap.kernels.get()
    tap.kernels.put(kernel)
    return max(1, min(kernel.chunk, limit // max(1, int(sizes.max()) * numbers)))


def train_guided(
    shard: Shard,
    ids: np.ndarray,
    rows: Tensor,
    settings: Sgd,
    round: int,
    tap: Taps,
    guides: Tensor,
    granularity: Granularity,
    counters: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """SGD on ℓ + strength·penalty(h_i, g_i), where g_i is the guide (k, m, d) of sample i's part; as `train` otherwise."""
    samples = shard.train
    positions = torch.arange(samples.count)

    def work(chunk: Chunk) -> Tensor:
        mine, first = guides[chunk.place].to(rows.dtype), torch.as_tensor(samples.offsets[ids[chunk.place]])[:, None]
        client = torch.arange(len(mine))[:, None]
        weights, rule, terms = chunk.weights, chunk.rule(), settings.terms()
        slopes = torch.empty_like(weights, memory_format=torch.contiguous_format)
        total = rows.new_zeros(len(mine))
        kernel = tap.kernels.get()
        kernel.noise = chunk.kernel.noise
        try:
            for batch in samples.batches(chunk.plan("batches"), positions):
                a, where, y = batch.active, batch.y, samples.y[batch.y]
                part = y if granularity == "class" else where - first[:a] if granularity == "aligned" else 0
                goal = mine[client[:a], part].expand(*where.shape, -1)
                count = None if chunk.counters is None else chunk.counters[:a]
                total[:a] += kernel.gradient(chunk.rows[:a], batch._replace(y=y, more=(goal,)), slopes[:a], count)
                for term in terms:
                    term.add(slopes[:a], weights[:a])
                rule.step(weights[:a], slopes[:a])
        finally:
            kernel.noise = None
            tap.kernels.put(kernel)
        return chunk.per_step(total)

    return train_chunks(shard, ids, rows, settings, round, work, counters)


class Exam(NamedTuple):
    """What clients' classifiers are asked about the parts' features: r questions each, with the part that each is about
    (k, r), the target (k, r, …) and its share of the client's samples (k, r), 0 for padding."""

    part: Tensor
    targets: Tensor
    shares: Tensor


def examination(shard: Shard, ids: np.ndarray, granularity: Granularity) -> Exam:
    """Every sample of a client, put to the classifier by the feature of its part: the loss is then that of the task.

    Samples of one part with one label are one question.
    """
    samples, dtype, asked = shard.train, shard.spec.dtype, []
    for k in ids:
        y = samples.targets(int(k))
        part = {"client": torch.zeros(len(y), dtype=torch.int64), "class": y, "aligned": torch.arange(len(y))}[
            granularity
        ]
        share = torch.full((len(y),), 1 / len(y), dtype=dtype)
        if shard.task.classes:
            pairs, place = torch.unique(torch.stack([part, y], dim=1), dim=0, return_inverse=True)
            part, y = pairs.unbind(dim=1)
            share = torch.zeros(len(pairs), dtype=dtype).index_add_(0, place, share)
        asked.append(Exam(part, y, share))
    return Exam(*(pad_sequence(list(column), batch_first=True) for column in zip(*asked)))
