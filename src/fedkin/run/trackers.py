"""Trackers: what a run tells W&B, MLflow, trackio or TensorBoard, round by round. By name: `train(track="mlflow")`, `--track wandb`.

Where the numbers go is the tracker's own affair, set as its users are used to: WANDB_MODE=offline, MLFLOW_TRACKING_URI, TRACKIO_DIR.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkin.errors import FedkinError, unknown
from fedkin.result.history import Record
from fedkin.run.callbacks import Callback, round_mean

if TYPE_CHECKING:
    from fedkin.run import Run

PROJECT = "fedkin"


def scalars_of(record: Record) -> dict[str, float]:
    """The numbers of a round: "log/train_loss", …, and the means over clients, "pre/test_accuracy", …"""
    found = {f"log/{k}": float(v) for k, v in record["log"].items() if isinstance(v, int | float)}
    for when in ("pre", "post"):
        for metric in record.get(when, {}):
            if (mean := round_mean(record, when, metric)) is not None:
                found[f"{when}/{metric}"] = mean
    return found


def settings_of(run: Run) -> dict[str, Any]:
    """What was trained, one level deep: "algorithm.name", "run.rounds", …"""
    return {f"{section}.{key}": value for section, own in run.config().items() if isinstance(own, Mapping)
            for key, value in own.items() if isinstance(value, str | int | float | bool)}  # fmt: skip


class TensorBoard(Callback):
    """Scalars for TensorBoard: `tensorboard --logdir DIR` (extra `fedkin[track]`)."""

    def __init__(self, directory: str | Path = "tensorboard") -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as problem:
            raise FedkinError("TensorBoard is not installed; pip install 'fedkin[track]'") from problem
        self.writer = SummaryWriter(str(directory))

    def on_round(self, run: Run, record: Record) -> None:
        for name, value in scalars_of(record).items():
            self.writer.add_scalar(name, value, record["round"])

    def on_end(self, run: Run) -> None:
        self.writer.close()


class MLflow(Callback):
    """A run of MLflow: parameters, and metrics with the round as step (extra `fedkin[mlflow]`)."""

    def __init__(self, experiment: str = PROJECT) -> None:
        self.mlflow, self.experiment = _package("mlflow", "mlflow"), experiment

    def on_start(self, run: Run) -> None:
        try:
            self.client = self.mlflow.MlflowClient()
            known = self.client.get_experiment_by_name(self.experiment)
            number = known.experiment_id if known else self.client.create_experiment(self.experiment)
        except Exception as problem:  # whatever its store raises
            line = " ".join(str(problem).split())[:300]
            raise FedkinError(f"MLflow has nowhere to write: {line}; set MLFLOW_TRACKING_URI") from problem
        self.run_id = self.client.create_run(number, run_name=_name(run)).info.run_id
        for name, value in settings_of(run).items():
            self.client.log_param(self.run_id, name, value)

    def on_round(self, run: Run, record: Record) -> None:
        for name, value in scalars_of(record).items():
            self.client.log_metric(self.run_id, name, value, step=record["round"])

    def on_end(self, run: Run) -> None:
        if hasattr(self, "run_id"):
            self.client.set_terminated(self.run_id, "FINISHED" if run.finished else "KILLED")


class WeightsAndBiases(Callback):
    """A run of W&B (extra `fedkin[wandb]`)."""

    def __init__(self, project: str = PROJECT) -> None:
        self.wandb, self.project = _package("wandb", "wandb"), project

    def on_start(self, run: Run) -> None:
        self.tracked = self.wandb.init(
            project=self.project, name=_name(run), config=settings_of(run), reinit="create_new"
        )

    def on_round(self, run: Run, record: Record) -> None:
        self.tracked.log(scalars_of(record), step=record["round"])

    def on_end(self, run: Run) -> None:
        if hasattr(self, "tracked"):
            self.tracked.finish(exit_code=0 if run.finished else 1)


class Trackio(Callback):
    """A run of trackio, on this machine: `trackio show` (extra `fedkin[trackio]`)."""

    def __init__(self, project: str = PROJECT) -> None:
        self.trackio, self.project = _package("trackio", "trackio"), project

    def on_start(self, run: Run) -> None:
        self.tracked = self.trackio.init(project=self.project, name=_name(run), config=settings_of(run))

    def on_round(self, run: Run, record: Record) -> None:
        self.tracked.log(scalars_of(record), step=record["round"])

    def on_end(self, run: Run) -> None:
        if hasattr(self, "tracked"):
            self.tracked.finish()


TRACKERS: dict[str, Callable[..., Callback]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WeightsAndBiases,
}


def find_trackers(names: str | Sequence[str]) -> list[Callback]:
    """Trackers by name, "wandb" or "wandb:project"; what is not installed is said before training."""
    found = []
    for text in [names] if isinstance(names, str) else names:
        name, _, option = text.partition(":")
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        found.append(TRACKERS[name](option) if option else TRACKERS[name]())
    return found


def _package(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError as problem:
        raise FedkinError(f"{name} is not installed; pip install 'fedkin[{extra}]'") from problem


def _name(run: Run) -> str:
    return run.out.name if run.out is not None else f"{run.algorithm.name}-seed{run.options.seed}"
