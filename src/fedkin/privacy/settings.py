"""What a user asks of private training: whose data is protected, how well, and where the account is kept."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedkin.errors import unknown
from fedkin.privacy.accounting import noise_for

Level = Literal["sample", "client"]


class Planned(BaseModel):
    """How much training a budget must last for: `rounds`, each of so many epochs and so many steps."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rounds: int = Field(ge=1)
    epochs: int = Field(default=0, ge=0)
    steps: int = Field(default=0, ge=0)
    queries: int = Field(default=1, ge=1)
    """Gradients that a method takes of one batch."""

    def steps_per_round(self, per_epoch: int) -> int:
        """Steps in one round of a client whose epoch has so many steps."""
        return self.epochs * per_epoch + self.steps


class Privacy(BaseModel):
    """Differential privacy of a run, (ε, δ) for every client. See docs/private-training.md for what each level promises."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    level: Level = Field("sample", description="whose presence is hidden: one training sample, or a whole client")
    epsilon: float = Field(gt=0, description="the budget ε of every client, over all runs that its ledger knows")
    delta: float = Field(gt=0, lt=1, description="the δ of the guarantee; below 1 over the number of samples")
    clip: float = Field(1.0, gt=0, description="gradients of samples (or updates of clients) are clipped to this norm")
    noise: float | None = Field(
        None, gt=0, description="noise multiplier σ; without it, as much as lets the budget last for all rounds"
    )
    ledger: str | None = Field(
        None, description="file that keeps what clients have spent (default: ledger.jsonl in the run's folder)"
    )
    insecure_noise_seed: int | None = Field(
        None, ge=0, description="for tests alone: noise that can be drawn again protects nobody"
    )
    planned: Planned | None = Field(None, description="what the budget must last for; a run fills it in")

    def sample_noise(self, rate: float, steps: int) -> float:
        """The noise multiplier σ of a client whose rounds have so many steps at a sampling rate: the one given, or such that
        the budget lasts for the planned rounds."""
        if self.noise is not None:
            return self.noise
        rounds, queries = (1, 1) if self.planned is None else (self.planned.rounds, self.planned.queries)
        return noise_for(self.epsilon, self.delta, rate, steps * rounds) * queries**0.5

    @property
    def client_noise(self) -> float:
        """The noise multiplier of one round, where whole clients are protected."""
        rounds = 1 if self.planned is None else self.planned.rounds
        return self.noise if self.noise is not None else noise_for(self.epsilon, self.delta, 1.0, rounds)

    @model_validator(mode="before")
    @classmethod
    def _a_table(cls, given: Any) -> Any:
        if isinstance(given, str):
            raise ValueError('give a table, for example {"level": "sample", "epsilon": 6, "delta": 1e-5, "clip": 1.0}')
        if isinstance(given, dict):
            for key in given:
                if key not in cls.model_fields:
                    raise unknown("key", key, [name for name in cls.model_fields if name != "planned"])
        return given
