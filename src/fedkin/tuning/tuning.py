"""What a search found: every trial, the best of them, a table, a plot, and settings that can be run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.algorithm import Algorithm
from fedkin.errors import FedkinError
from fedkin.files import plain, versions, write_atomic, write_json
from fedkin.graphs import ClientGraph
from fedkin.models import ModelLike
from fedkin.notebook import html_table
from fedkin.run import Options
from fedkin.run.recorded import without_none
from fedkin.task.metrics import Metric
from fedkin.tuning.space import BY_NAME, Between, Space

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from optuna.trial import FrozenTrial

STATES = {"COMPLETE": "complete", "PRUNED": "stopped", "FAIL": "failed"}


@dataclass(frozen=True)
class Tried:
    """One trial. `value` is the headline metric on the samples held out, the mean over clients and folds."""

    number: int
    chosen: Mapping[str, Any]
    state: str
    """complete; stopped: it did worse than others after as many rounds; failed: see `reason`."""
    value: float | None
    loss: float | None
    rounds: int
    """Rounds trained, over all folds."""
    seconds: float
    reason: str = ""
    curve: Mapping[int, float] = field(default_factory=dict)
    """Round (over all folds) → value there."""

    @classmethod
    def read(cls, trial: FrozenTrial, space: Space) -> Tried:
        told = trial.user_attrs
        return cls(
            trial.number,
            {name: entry.value(trial.params[name]) for name, entry in space.items()},
            STATES[trial.state.name],
            trial.value if trial.state.name == "COMPLETE" else None,
            told.get("loss"),
            max(trial.intermediate_values, default=0),
            float(told.get("seconds", 0.0)),
            str(told.get("reason", "")),
            dict(trial.intermediate_values),
        )


@dataclass(frozen=True)
class Tuning:
    """The trials of one method, made by `fedkin.tune`."""

    method: type[Algorithm]
    fixed: Mapping[str, Any]
    space: Space
    trials: tuple[Tried, ...]
    metric: Metric
    source: Mapping[str, Any]
    model: ModelLike
    graph: ClientGraph | str | None
    run: Options

    @property
    def best_trial(self) -> Tried:
        """The best on samples held out; of equals the one with the smaller loss there."""
        done = _ranked(self.trials, self.metric)
        if not done:
            reason = next((trial.reason for trial in self.trials if trial.reason), "all trials were stopped")
            raise FedkinError(f"no trial of {self.method.name} came to its end: {reason}")
        return done[0]

    @property
    def best(self) -> dict[str, Any]:
        """The best choice of what was searched."""
        return dict(self.best_trial.chosen)

    @property
    def algorithm(self) -> Algorithm:
        """The method with the best parameters, for `fedkin.train`."""
        return self.method(**{**self.fixed, **{k: v for k, v in self.best.items() if k not in BY_NAME}})

    @staticmethod
    def told_best(trials: Sequence[Tried], metric: Metric) -> str:
        done = _ranked(trials, metric)
        return f"best {metric.label} {metric.amount(done[0].value)}" if done else ""

    # --- looking ------------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        best = ", ".join(f"{name}={value}" for name, value in self.best.items())
        value = self.metric.amount(self.best_trial.value)
        return (
            f"Tuning({self.method.title}, {len(self.trials)} trials, best {self.metric.label} held out {value}: {best})"
        )

    def table(self) -> pd.DataFrame:
        """One line per trial, the best first, then those that were stopped or failed."""
        import pandas as pd

        rows = [
            {
                **trial.chosen,
                self.metric.key: trial.value,
                "loss": trial.loss,
                "rounds": trial.rounds,
                "state": trial.state,
            }
            for trial in self._in_order()
        ]
        return pd.DataFrame(rows, index=pd.Index([t.number for t in self._in_order()], name="trial"))

    def _in_order(self) -> list[Tried]:
        done = _ranked(self.trials, self.metric)
        return done + [trial for trial in self.trials if trial not in done]

    def _repr_html_(self) -> str:
        head = ["trial", *self.space, self.metric.heading, "state"]
        rows = (
            [t.number, *map(str, t.chosen.values()), self.metric.number(t.value), t.reason or t.state]
            for t in self._in_order()
        )
        return html_table(repr(self), head, rows)

    def plot(self, axes: Sequence[Axes] | None = None) -> list[Axes]:
        """The value of every finished trial against each parameter that was searched; the best is filled."""
        from matplotlib import pyplot as plt

        if axes is None:
            _, made = plt.subplots(1, len(self.space), figsize=(3.6 * len(self.space), 3.2), squeeze=False)
            axes = made[0]
        draw_trials(self, axes)
        return list(axes)

    # --- keeping ------------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """The best choice as sections of a settings file; a federation or model of one's own is left out."""
        algorithm = self.algorithm
        chosen = {name: getattr(algorithm, name) for name in algorithm.model_fields_set}
        model, graph = (self.best.get(part, given) for part, given in (("model", self.model), ("graph", self.graph)))
        sections: dict[str, Any] = {
            "data": dict(self.source),
            "model": {"name": model} if isinstance(model, str) else {},
            "algorithm": {"name": self.method.name, **chosen},
            "graph": {"name": graph} if isinstance(graph, str) else {},
            "run": self.run.model_dump(exclude_unset=True),
        }
        return {key: without_none(plain(value)) for key, value in sections.items() if value}

    def save(self, directory: str | Path) -> Path:
        """Write best.toml (`fedkin run` takes it), trials.csv, tuning.png and tuning.json into a folder."""
        import tomli_w
        from matplotlib.figure import Figure

        out = Path(directory)
        out.mkdir(parents=True, exist_ok=True)
        head = f"# {self!r}\n# judged on samples held out of training; for test samples: fedkin run best.toml\n\n"
        write_atomic(out / "best.toml", (head + tomli_w.dumps(self.settings())).encode())
        write_atomic(out / "trials.csv", self.table().to_csv().encode())
        figure = Figure(figsize=(3.6 * len(self.space), 3.2), layout="constrained")
        draw_trials(self, figure.subplots(1, len(self.space), squeeze=False)[0])
        figure.savefig(out / "tuning.png", dpi=110)
        write_json(out / "tuning.json", self.to_dict())
        return out

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "algorithm": self.method.name,
            "metric": self.metric.told(),
            "space": {name: str(entry) for name, entry in self.space.items()},
            "best": self.best,
            "value": self.best_trial.value,
            "settings": self.settings(),
            "trials": [vars(trial) for trial in self.trials],
            "versions": versions(),
        }


def _ranked(trials: Sequence[Tried], metric: Metric) -> list[Tried]:
    sign = -1.0 if metric.larger_is_better else 1.0
    done = [trial for trial in trials if trial.value is not None]
    return sorted(done, key=lambda t: (sign * (t.value or 0.0), math.inf if t.loss is None else t.loss, t.number))


def draw_trials(tuning: Tuning, axes: Sequence[Axes]) -> None:
    """Value against parameter, one picture each: numbers on a scale, names side by side."""
    done, best = _ranked(tuning.trials, tuning.metric), tuning.best_trial
    factor = 100.0 if tuning.metric.unit == "%" else 1.0
    values = np.array([trial.value for trial in done], dtype=float) * factor
    for ax, (name, entry) in zip(axes, tuning.space.items()):
        given = [trial.chosen[name] for trial in done]
        numeric = isinstance(entry, Between) or all(type(v) in (int, float) for v in entry.values)
        labels = [str(v) for v in given]
        places = np.array(given, dtype=float) if numeric else np.array([_places(entry)[text] for text in labels])
        ax.scatter(places, values, s=26, facecolors="none", edgecolors="#0072b2")
        at = places[done.index(best)]
        ax.scatter([at], [(best.value or 0.0) * factor], s=46, color="#d55e00", zorder=3, label="best")
        if numeric and (places > 0).all() and places.max() / places.min() >= 10:
            ax.set_xscale("log")
        if not numeric:
            ax.set_xticks(range(len(_places(entry))), list(_places(entry)), rotation=20, ha="right")
        ax.set_xlabel(name)
        ax.set_ylabel(f"{tuning.metric.heading}, held out")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)


def _places(entry: Any) -> dict[str, int]:
    return {str(value): place for place, value in enumerate(entry.values)}
