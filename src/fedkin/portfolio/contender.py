"""auto as a contender: what a comparison runs under the name "auto"."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, ValidationError

from fedkin.errors import FedkinError, first_fault, unknown
from fedkin.federation import Federation
from fedkin.local.sgd import Sgd, by_field
from fedkin.models import ModelLike
from fedkin.portfolio.auto import TRAINING, auto
from fedkin.result import Result, load
from fedkin.run import Options


class Auto(Sgd):
    """`fedkin.auto` with its settings. What is not set of local training auto decides: ten steps, a rate found on folds."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: ClassVar[str] = "auto"
    effort: Literal["quick", "standard", "thorough"] = "standard"
    distil: bool = False

    def __init__(self, **settings: Any) -> None:
        settings = by_field(settings)
        for key in settings:
            if key not in type(self).model_fields:
                raise unknown("parameter of auto", key, list(type(self).model_fields))
        try:
            super().__init__(**settings)
        except ValidationError as problem:
            raise FedkinError(first_fault("auto", problem)) from problem

    def training(self) -> dict[str, Any]:
        """The settings of local training: those that were given, and auto's own."""
        return {**TRAINING, **self.model_dump(include=self.model_fields_set - {"effort", "distil"})}

    def run(self, federation: Federation, model: ModelLike, options: Options, out: Path | None = None) -> Result:
        """The result; from its folder if it is finished there and of the same settings."""
        kept = None if out is None or not (out / "result.safetensors").exists() else load(out)
        asked = self.model_dump(include=self.model_fields_set | {"effort"})
        if kept is None:
            return auto(federation, model, out=out, **{**options.model_dump(exclude_unset=True), **asked})
        same = all(kept.config["algorithm"].get(key) == value for key, value in asked.items())
        if not same or kept.config["data"]["fingerprint"] != federation.fingerprint():
            raise FedkinError(f"{out} holds a run of auto with other settings or data; choose another folder")
        return kept
