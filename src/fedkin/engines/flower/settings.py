"""What the server's [federation] table says: who takes part, and how each site splits its data."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedkin.engines.flower.messages import MOST_SAMPLES
from fedkin.task import Forecast, check_kind


class FederationSettings(BaseModel):
    """Who takes part, and how each site splits its data."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sites: int = Field(ge=1, description="how many sites must be there to begin")
    wait: float = Field(300.0, gt=0, description="seconds to wait for them")
    timeout: float = Field(600.0, gt=0, description="seconds a site may take for one answer")
    task: str | None = Field(
        None, description="classification, regression, multilabel or counts, where data leave it open"
    )
    classes: list[str | int] | None = None
    test_fraction: float = Field(0.25, ge=0, lt=1)
    validation_fraction: float = Field(0.0, ge=0, lt=1)
    split_seed: int = Field(0, ge=0)
    prepare: bool = Field(
        False, description="sites give raw tables; agree on how to fill, scale and encode their columns"
    )
    forecast: Forecast | None = None
    """Targets are z-scores of a series: its mean and std, minutes between values, the value that means none."""
    accept: list[str] = []
    """Clients that may come back through another key, or with other data; "*" for all."""
    accept_changes: bool = False
    """Go on with a run although its files were changed, or another version of fedkin began it."""
    owners: dict[int, list[str]] = {}
    """Node → the clients that it alone may speak for; those not named belong to the site that first joins with them."""
    most_samples: int = Field(10**7, ge=1, le=MOST_SAMPLES, description="samples a client may claim to have")
    update_limit: float = Field(1e3, gt=1, description="how many times the others' median an update may be")

    @field_validator("task")
    @classmethod
    def _known_task(cls, task: str | None) -> str | None:
        return None if task is None else check_kind(task)
