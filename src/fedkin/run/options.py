"""How a run goes, whatever the method: rounds, seed, who takes part, when to test and save, on which engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedkin.errors import FedkinError, first_fault, refuse_truth_values, unknown


class Options(BaseModel):
    """How a run goes, whatever the method."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rounds: int = Field(50, ge=0, description="rounds to train")
    seed: int = Field(0, ge=0, description="seed of all random streams")
    fraction: float = Field(1.0, gt=0, le=1, description="share of the clients that take part in a round")
    cohort: int | None = Field(None, ge=1, description="how many clients take part, instead of a share")
    eval_every: int | None = Field(
        None,
        ge=1,
        description="evaluate every so many rounds (default: ten times a run, less often where few take part)",
    )
    post: Literal["auto", "always", "last"] = Field(
        "auto",
        description="when to evaluate after local training too: auto = always under full participation, else last",
    )
    validation: Literal["auto", "given", "fold"] = Field(
        "auto",
        description='what decides where a method deploys "validated": given validation samples, or without any (fold) a '
        "fifth of the training samples, held out of a further run; auto = fold up to 1,500 clients where it can be",
    )
    range_test: bool = Field(
        False,
        description="first try other rates, and Adam, on a fold of the training samples, and train as does best there; it "
        "costs two runs more",
    )
    global_test: bool = Field(False, description="also test every final model on all clients' test samples")
    dtype: Literal["float32", "float64"] = Field("float32", description="number type of training")
    device: str = Field("cpu", description="where clients compute and rows live: cpu, cuda, cuda:1, mps or auto")
    precision: Literal["float32", "bfloat16-mixed"] = Field(
        "float32", description="bfloat16-mixed: products and convolutions in bfloat16, rows in float32"
    )
    engine: str = Field("in_process", description="who runs the clients")
    engine_options: dict[str, Any] | None = Field(
        None, description="options of the engine: address, timeout, start_timeout of ray"
    )
    workers: int | None = Field(None, ge=1, description="worker threads, or Ray actors (default: one per core)")
    checkpoint_every: int | None = Field(
        None, ge=1, description="save every so many rounds (default: as often as takes a hundredth of the time)"
    )
    influence: bool | None = Field(None, description="track who shaped whom (default: up to 1,500 clients)")
    rows_file: str | None = Field(
        None, description="keep the server's rows in this file instead of memory, which they may exceed"
    )

    loss: Any = Field(
        None,
        description="what is minimised: cross-entropy, focal:2, mse, mae, huber:1, quantile:0.9, poisson, bce, or f",
    )
    class_weight: str | dict[Any, float] | list[float] | None = Field(
        None, description="how much a class counts in the loss: balanced, one weight per class, or by label"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of a label that is spread over all classes")
    metrics: tuple[str, ...] = Field((), description="how predictions are judged, for example auroc, f1, brier")
    augment: Any = Field(
        None, description="random changes of training batches: crop:4+flip, mixup:0.2, or a function (fedkin.augment)"
    )
    headline: str | None = Field(None, description="the metric that tables speak of (default: the first)")

    private: tuple[str, ...] = Field(
        (), description="patterns of tensor names that never leave their client, whatever the method: *.lora_B"
    )
    frozen: tuple[str, ...] = Field(
        (), description="patterns of tensor names that nobody trains: backbone.*; kept once for all clients"
    )
    cache_features: Literal["auto", "off"] = Field(
        "auto", description="keep what frozen first layers make of each sample, where the model has such layers"
    )

    @field_validator("loss")
    @classmethod
    def _a_name_or_a_function(cls, loss: Any) -> Any:
        if not (loss is None or isinstance(loss, str) or callable(loss)):
            raise ValueError("give a name, such as 'focal:2', or a function of outputs and targets")
        return loss

    @field_validator("class_weight", mode="before")
    @classmethod
    def _weights(cls, asked: Any) -> Any:
        if asked is None or isinstance(asked, str | bool):
            return asked
        try:
            if isinstance(asked, Mapping):
                return {label: float(weight) for label, weight in asked.items()}
            return [float(weight) for weight in asked]
        except (TypeError, ValueError):
            raise ValueError("say 'balanced', one number per class, or a number for each label") from None

    @field_validator("private", "frozen", mode="before")
    @classmethod
    def _one_or_several(cls, patterns: Any) -> Any:
        return (patterns,) if isinstance(patterns, str) else patterns

    @property
    def caches(self) -> bool:
        """Whether features may be kept, where the model and the task allow it (`models.front.front_of`)."""
        return self.cache_features == "auto"

    @field_validator("metrics", mode="before")
    @classmethod
    def _by_name(cls, asked: Any) -> Any:
        """One name, several, or functions that are registered."""
        from fedkin.task.choice import entry_name

        return tuple(map(entry_name, asked)) if isinstance(asked, list | tuple) else (entry_name(asked),)

    @property
    def learning(self) -> dict[str, Any]:
        """What is asked of the task: its loss and its metrics."""
        return {name: getattr(self, name) for name in LEARNING}

    def cohort_size(self, clients: int) -> int:
        if self.cohort is not None:
            return min(self.cohort, clients)
        return max(1, round(self.fraction * clients))


Options.__doc__ = "How a run goes, whatever the method. Every field, with its default:\n\n" + "\n".join(
    f"    {name} = {field.default!r}: {field.description}" for name, field in Options.model_fields.items()
)

LEARNING = ("loss", "class_weight", "label_smoothing", "metrics", "headline", "augment")


def make_options(**values: Any) -> Options:
    """Validated run options; a wrong one is refused in one line."""
    for key in values:
        if key not in Options.model_fields:
            raise unknown("run option", key, list(Options.model_fields))
    refuse_truth_values("run", Options, values)
    try:
        return Options(**values)
    except ValidationError as problem:
        raise FedkinError(first_fault("run", problem)) from problem
