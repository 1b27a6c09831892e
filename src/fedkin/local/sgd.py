"""Stacked local training: all clients of a chunk take each step together, by a list of gradient terms and one step rule.

Client k's gradient is g = ∇f_k(w), changed in turn by clipping, weight decay λw and the terms of a method — a proximal pull
μ(w − a_k), a constant shift s_k (see `fedkin.local.terms`) — and its weights move by the rule (see `fedkin.compute.steps`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from fedkin.compute.steps import Optimiser, Rule, step_rule
from fedkin.local.batches import Plan
from fedkin.local.kernels import Kernel
from fedkin.local.samples import Samples
from fedkin.local.schedules import RateSchedule, schedule
from fedkin.local.terms import Clip, Decay, Term, affine
from fedkin.privacy.settings import Planned, Privacy


def by_field(given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters by the names of fields: `schedule` is short for `lr_schedule` (but FedPnP has a schedule of its own).

    >>> by_field({"lr": 0.1, "schedule": "cosine:50"})
    {'lr': 0.1, 'lr_schedule': 'cosine:50'}
    """
    return {"lr_schedule" if name == "schedule" else name: value for name, value in given.items()}


class Sgd(BaseModel):
    """Settings of local training."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)

    own_rate: ClassVar[bool] = False
    """Whether `lr` means something else than the rate of plain local training, so that one rate for all methods spares it."""

    lr: float = Field(0.05, gt=0, description="learning rate γ")
    epochs: int = Field(5, ge=1, description="passes over the client's data per round")
    steps: int | None = Field(None, ge=1, description="steps per round instead of epochs")
    batch_size: int = Field(32, ge=1, description="samples per step; the last batch of an epoch may be smaller")
    optimiser: Optimiser = Field("sgd", description="step rule of local training: sgd, adam, adamw or rmsprop")
    moments: Literal["reset", "keep"] = Field(
        "reset", description="what momentum and Adam remember: reset each round, or keep with the client"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="heavy-ball momentum (of sgd and rmsprop)")
    weight_decay: float = Field(0.0, ge=0, description="L2 coefficient λ; adds λ·w to the gradient (adamw: apart)")
    clip: float | None = Field(None, gt=0, description="scale a step's gradient of the loss down to this norm")
    privacy: Privacy | None = Field(
        None, description="differential privacy: a table of level, epsilon, delta, clip (docs/private-training.md)"
    )
    halvings: int = Field(
        6, ge=0, description="how often a client whose training grows without bound may halve its rate and begin again"
    )
    lr_decay: float = Field(1.0, gt=0, le=1, description="the rate is multiplied by this …")
    lr_decay_every: int = Field(1, ge=1, description="… every so many rounds")
    lr_schedule: str | RateSchedule = Field(
        "constant",
        description="factor of the rate: step:n,f, cosine:n, warm-up:n, joined by +, or a function of the round",
    )

    @model_validator(mode="after")
    def _fits(self) -> Sgd:
        if self.momentum and self.optimiser in ("adam", "adamw"):
            raise ValueError(f"{self.optimiser} has a momentum of its own; leave momentum at 0")
        if isinstance(self.lr_schedule, str):
            schedule(self.lr_schedule)
        if self.privacy is not None and self.moments == "keep":
            raise ValueError("momentum kept across rounds is not for private training; leave moments at 'reset'")
        return self

    def rate(self, round: int) -> float:
        """The learning rate of round t = 1, 2, …: γ · decay^⌊(t−1)/every⌋ · schedule(t)."""
        rate = float(self.lr * self.lr_decay ** ((round - 1) // self.lr_decay_every))
        if self.lr_schedule == "constant":
            return rate
        factor = schedule(self.lr_schedule) if isinstance(self.lr_schedule, str) else self.lr_schedule
        return rate * float(factor(round))

    def told(self, round: int) -> dict[str, Any]:
        """The settings of one round as clients get them; a function of the round stays here, its rate travels."""
        told = {name: getattr(self, name) for name in Sgd.model_fields}
        told["privacy"] = None if self.privacy is None else self.privacy.model_dump()
        if not isinstance(self.lr_schedule, str):
            told |= {"lr": self.rate(round), "lr_decay": 1.0, "lr_schedule": "constant"}
        return told

    def terms(self) -> list[Term]:
        """What the settings make of a gradient: clipped, then with weight decay."""
        decays = self.weight_decay and self.optimiser != "adamw"
        return [*([Clip(self.clip)] if self.clip else []), *([Decay(self.weight_decay)] if decays else [])]

    def planned(self, rounds: int) -> Planned:
        """The local training of so many rounds, for privacy's account; a method that trains more says so."""
        return Planned(rounds=rounds, epochs=0 if self.steps else self.epochs, steps=self.steps or 0)

    def rule(self, rate: float, like: Tensor) -> Rule:
        """The step rule for clients with weights like these, (k, P)."""
        return step_rule(self.optimiser, like, rate, self.momentum, self.weight_decay)


@runtime_checkable
class Fusing(Protocol):
    """A kernel that can take all steps itself, where they are w ← shrink·w − rate·∇f(w) + push."""

    fuses: bool

    def descend(
        self, rows: Tensor, samples: Samples, plan: Plan, rate: float, shrink: float, push: Tensor | None
    ) -> Tensor:
        """Each client's steps, in place; return the sums of its losses, (k,)."""


@runtime_checkable
class FusingRules(Protocol):
    """A kernel that can take all steps of any rule itself, down ∇f(w) + (1 − shrink)·w − push."""

    def descend_by_rule(
        self, rows: Tensor, samples: Samples, plan: Plan, rule: Rule, shrink: float, push: Tensor | None
    ) -> Tensor:
        """Each client's steps, in place; return the sums of its losses, (k,)."""


def descend(
    kernel: Kernel,
    rows: Tensor,
    samples: Samples,
    plan: Plan,
    terms: Sequence[Term],
    rule: Rule,
    rate: float,
    counters: Tensor | None = None,
) -> Tensor:
    """Train a chunk of clients in place; return each client's mean training loss over its steps, shape (k,).

    rows (k, B), sorted so that clients with more steps come first.
    """
    weights = rows[:, : kernel.layout.n_parameters]
    steps = torch.as_tensor(plan.steps).clamp(min=1).to(rows.dtype)
    if isinstance(kernel, Fusing) and kernel.fuses and plan.changes is None:
        together = affine(terms, rate if rule.plain else 1.0)
        if together is not None and rule.plain:  # all terms in one pass over the weights
            return kernel.descend(rows, samples, plan, rate, *together) / steps
        if together is not None and isinstance(kernel, FusingRules):
            return kernel.descend_by_rule(rows, samples, plan, rule, *together) / steps
    slopes = torch.empty_like(weights, memory_format=torch.contiguous_format)
    total = rows.new_zeros(len(rows))
    for batch in samples.batches(plan):
        active = batch.active
        w, g, counted = weights[:active], slopes[:active], None if counters is None else counters[:active]
        total[:active] += kernel.gradient(rows[:active], batch, g, counted)
        for term in terms:
            term.add(g, w)
        rule.step(w, g)
    return total / steps
