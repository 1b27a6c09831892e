"""The settings of local training: its rate, its batches, its step rule, and what it makes of a gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from fedkin.compute.steps import Optimiser, Rule, step_rule
from fedkin.local.schedules import RateSchedule, schedule
from fedkin.local.terms import Clip, Decay, Term
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

    @property
    def tensors(self) -> int:
        """How many as large as the weights a step goes through: weights, gradients, and what the rule remembers."""
        return 2 + {"sgd": 0, "rmsprop": 1}.get(self.optimiser, 2) + bool(self.momentum)

    def rule(self, rate: float, like: Tensor) -> Rule:
        """The step rule for clients with weights like these, (k, P)."""
        return step_rule(self.optimiser, like, rate, self.momentum, self.weight_decay)
