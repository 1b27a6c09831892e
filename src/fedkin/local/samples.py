"""Samples: one split of a shard, and the one place where stored samples become the inputs of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedkin.errors import FedkinError
from fedkin.federation import Rescaling, Split
from fedkin.federation.unread import Unread
from fedkin.local.batches import Batch, Plan
from fedkin.local.kernels.chain import rescaled, taken

KEPT_TYPES = (np.uint8, np.int8, np.int16, np.bool_, np.float16)
"""Types that are kept as they are and converted per batch; all others are converted once."""


class Affine(NamedTuple):
    """A `Rescaling` in tensors: input = (stored·factor − shift) / spread; empty tensors where nothing is to be done."""

    factor: float
    shift: Tensor
    spread: Tensor

    @classmethod
    def of(cls, scaling: Rescaling, shape: tuple[int, ...], device: torch.device) -> Affine:
        def tensor(values: np.ndarray | None) -> Tensor:
            whole = np.zeros(0) if values is None else np.broadcast_to(values, shape).copy()
            return torch.from_numpy(whole.astype(np.float32)).to(device)

        return cls(scaling.factor, tensor(scaling.shift), tensor(scaling.spread))

    @property
    def flat(self) -> Affine:
        """The same for inputs in one line."""
        return Affine(self.factor, self.shift.flatten(), self.spread.flatten())


class Piece(NamedTuple):
    """Some steps of a plan, for a kernel that takes them all by itself: samples, and which of them each step uses."""

    x: Tensor
    y: Tensor
    rows: Tensor
    share: Tensor
    steps: list[int]
    affine: Affine


class Samples:
    """One split of a shard: client k owns rows offsets[k]:offsets[k+1]. Narrow numbers stay narrow, unread ones unread."""

    def __init__(self, split: Split, dtype: torch.dtype, tokens: bool, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")
        self.dtype = torch.int64 if tokens else dtype
        target = torch.int64 if split.y.dtype.kind in "iu" else dtype
        self.y = torch.as_tensor(split.y, dtype=target, device=self.device)
        self.offsets, self.sizes, self.count = split.offsets, split.sizes, len(split.y)
        self.shape = tuple(split.stored.shape[1:])
        self.numbers = math.prod(self.shape)
        """How many numbers one input has."""
        self.stored = split.stored if isinstance(split.stored, Unread) else None
        scaling = split.scaling
        if isinstance(split.stored, Unread):
            if split.stored.readers is not None:
                split.stored.readers.start()
            self.x = torch.empty((0, *self.shape), dtype=self.dtype, device=self.device)
        elif split.stored.dtype in KEPT_TYPES:
            self.x = torch.as_tensor(np.require(split.stored, requirements=["W"]), device=self.device)
        else:
            self.x = torch.as_tensor(split.x, dtype=self.dtype, device=self.device)
            scaling = Rescaling()
        self.affine = Affine.of(scaling, self.shape, self.device)
        self.flat = self.affine.flat
        """`affine` for inputs in one line."""

    def inputs(self, index: Tensor) -> Tensor:
        """The inputs of rows `index`, (*index.shape, *input shape)."""
        rows = index.reshape(-1)
        out = torch.empty((len(rows), *self.shape), dtype=self.dtype, device=self.device)
        return self._into(rows, out).view(*index.shape, *self.shape)

    def _into(self, rows: Tensor, out: Tensor, read: np.ndarray | None = None) -> Tensor:
        """The inputs of rows (n,) in `out` (n, *input shape); `read`: what is stored there, where it is read already."""
        if self.stored is None:
            return taken(self.x, rows.to(self.device), out, *self.affine)
        raw = torch.from_numpy(self.stored[rows.cpu().numpy()] if read is None else read)
        return rescaled(raw.to(self.device), out, *self.affine)

    def of(self, k: int) -> tuple[Tensor, Tensor]:
        """All inputs of client k, and its targets."""
        rows = torch.arange(int(self.offsets[k]), int(self.offsets[k + 1]))
        if self.stored is None and self.x.dtype == self.dtype:  # inputs as they are: no copy
            return self.x[int(self.offsets[k]) : int(self.offsets[k + 1])], self.targets(k)
        return self.inputs(rows), self.targets(k)

    def targets(self, k: int) -> Tensor:
        """The targets of client k."""
        return self.y[int(self.offsets[k]) : int(self.offsets[k + 1])]

    def batches(self, plan: Plan, y: Tensor | None = None) -> Iterator[Batch]:
        """Step after step, the samples of all clients that make it. `y`: something else of each sample than its target.

        All steps share one buffer for `x`: fresh memory for each costs as much as the copy. Use a batch before the next.
        """
        y = self.y if y is None else y
        most = plan.index.shape[0] * plan.index.shape[2]
        buffer = torch.empty((most, *self.shape), dtype=self.dtype, device=self.device)
        read = None if self.stored is None else self.stored.ahead([i.cpu().numpy().ravel() for _, i, _ in plan.each()])
        change = None if plan.changes is None else plan.changes.begin(labels=y is self.y)
        for _, index, weight in plan.each():
            found = None if read is None else next(read)
            x, own = (
                self._into(index.reshape(-1), buffer[: index.numel()], found).view(*index.shape, *self.shape),
                y[index],
            )
            if change is not None:
                x, told = change(x, own, weight)
                if y is not self.y and (told.dtype != own.dtype or not torch.equal(told, own)):
                    raise FedkinError("augment changes targets, but this method looks at each sample's own; leave them")
                own = told
            yield Batch(x, own, weight)

    def pieces(self, plan: Plan) -> Iterator[Piece]:
        """All steps at once, or one after the other where each has to be read."""
        if self.stored is None:
            yield Piece(self.x.flatten(1), self.y, plan.index, plan.weight, plan.steps.tolist(), self.flat)
            return
        plain = Affine.of(Rescaling(), self.shape, self.device)
        for x, y, weight, _ in self.batches(plan):
            index = torch.arange(weight.numel(), device=self.device).view(len(weight), 1, -1)
            yield Piece(x.flatten(0, 1).flatten(1), y.flatten(0, 1), index, weight[:, None], [1] * len(weight), plain)

    def close(self) -> None:
        """End the processes that read ahead."""
        if self.stored is not None and self.stored.readers is not None:
            self.stored.readers.close()
