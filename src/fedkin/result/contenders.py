"""Comparing runs: those that differ by seed alone are one contender, and gains are taken against training alone.

Here, and nowhere else, a contender's `Standing` is computed; terminal, page and JSON show it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedkin.errors import FedkinError
from fedkin.result import Result
from fedkin.result.summary import gains, summarise

ALONE = "local"
"""The algorithm every other one is held against."""


@dataclass(frozen=True)
class Contender:
    """The runs of one algorithm with the same settings; they differ by seed (and by the data, if those were drawn too)."""

    label: str
    runs: tuple[Result, ...]

    @property
    def first(self) -> Result:
        return self.runs[0]

    @property
    def is_alone(self) -> bool:
        return self.first.algorithm == ALONE

    @property
    def seeds(self) -> list[int]:
        return [_seed(run) for run in self.runs]

    @cached_property
    def draws(self) -> tuple[tuple[Result, ...], ...]:
        """The runs by the samples they were trained on: only within a draw can they be averaged client by client."""
        found: dict[str, list[Result]] = {}
        for run in self.runs:
            found.setdefault(_data_of(run), []).append(run)
        return tuple(map(tuple, found.values()))

    @property
    def same_data(self) -> tuple[Result, ...]:
        """The runs on the same samples as the first."""
        return self.draws[0]

    def values(self, when: str = "deployed", metric: str | None = None) -> np.ndarray:
        """A metric of every client, (K,), averaged over the runs on the same data."""
        name = metric or self.first.metric
        return np.mean([np.array(run.metrics[when][name], dtype=float) for run in self.same_data], axis=0)

    def scores(self, when: str = "deployed") -> np.ndarray:
        """The mean over clients of every run, (runs,)."""
        return np.array([run.summary(when)["mean"] for run in self.runs])

    def summary(self, when: str = "deployed") -> dict[str, float]:
        """Mean, spread, best and worst 5 % over clients, and the mean over samples: each the mean over runs.

        A run in which nobody has a value is left out.
        """
        found = [run.summary(when) for run in self.runs]
        kept = [entry for entry in found if np.isfinite(entry["mean"])] or found
        return {name: float(np.mean([entry[name] for entry in kept])) for name in found[0]}


@dataclass(frozen=True)
class Standing:
    """What a comparison says of one contender; every number is a mean over its runs.

    A client gained if its gain over training alone, averaged over the seeds, is above zero (by more than rounding), and
    lost if it is below. A client is a name on its data: where the seeds also draw the data, the clients of every draw
    are counted, so that three draws of 20 clients are 60.
    """

    label: str
    algorithm: str
    title: str
    metric: str
    larger_is_better: bool
    unit: str
    """"%" where values are told as percentages."""
    seeds: tuple[int, ...]
    deployed: Mapping[str, float]
    """mean, std, best5 and worst5 over clients, and weighted, the mean over samples; likewise `pre` and `post`."""
    pre: Mapping[str, float]
    post: Mapping[str, float]
    seed_std: float | None
    """Standard deviation of the mean over seeds (n − 1 in the denominator); None with one seed."""
    gain: float | None
    """Mean gain of a client over training alone; None without a run of Local on the same data."""
    gained: int | None
    lost: int | None
    same: int | None
    clients: int
    """Clients of all draws, and how many of them have a value; means are over these."""
    valued: int
    bytes: float
    seconds: float

    @property
    def is_alone(self) -> bool:
        return self.algorithm == ALONE

    @property
    def counted(self) -> int:
        """How many clients the counts are of."""
        return (self.gained or 0) + (self.lost or 0) + (self.same or 0)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the numbers of the deployed models stand under the name of the metric."""
        values = {**asdict(self), "seeds": list(self.seeds), "counted": self.counted}
        return {self.metric if key == "deployed" else key: value for key, value in values.items()}


def _seed(run: Result) -> int:
    return int(run.config["run"]["seed"])


def _data_of(run: Result) -> str:
    return str(run.config["data"].get("fingerprint", ""))


def group(results: Sequence[Result]) -> list[Contender]:
    """Contenders in the order of their first run. Runs must share their clients and their task."""
    if not results:
        raise FedkinError("a report needs at least one result")
    first = results[0]
    for result in results[1:]:
        if result.names != first.names:
            raise FedkinError(
                f"{result.title} and {first.title} were trained on different clients; report them in separate pages"
            )
        if result.metric != first.metric:
            raise FedkinError(
                f"{result.title} is judged by {result.task.headline}, {first.title} by {first.task.headline}; "
                "report them in separate pages"
            )
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(json.dumps(_settings(result), sort_keys=True, default=str), []).append(result)
    groups = list(found.values())
    return [Contender(label, tuple(runs)) for label, runs in zip(_labels(groups), groups)]


def _settings(result: Result) -> dict[str, Any]:
    """Everything that makes a method, seeds left out."""
    config = result.config
    shown = {section: dict(config.get(section, {})) for section in ("data", "model", "algorithm", "run")}
    shown["data"].pop("fingerprint", None)
    for section in ("data", "run"):
        shown[section].pop("seed", None)
    if result.algorithm == "auto" and result.facts.get("rate_chosen", True):
        shown["algorithm"].pop("lr", None)  # found on folds, seed by seed
    for speed in ("engine", "workers", "checkpoint_every"):
        shown["run"].pop(speed, None)
    return shown


def _labels(groups: Sequence[Sequence[Result]]) -> list[str]:
    """Titles; where two methods share one, the settings that differ are added: "FedProx (mu 0.1)"."""
    labels = []
    for runs in groups:
        title, settings = runs[0].title, _flat(runs[0])
        twins = [_flat(other[0]) for other in groups if other is not runs and other[0].title == title]
        keys = [key for key in settings if any(twin.get(key) != settings[key] for twin in twins)]
        extra = ", ".join(f"{key} {settings[key]}" for key in keys)
        labels.append(f"{title} ({extra})" if extra else title)
    return [
        f"{label} #{labels[:k].count(label) + 1}" if labels.count(label) > 1 else label
        for k, label in enumerate(labels)
    ]


def _flat(result: Result) -> dict[str, Any]:
    return {key: value for section in _settings(result).values() for key, value in section.items()}


def find_alone(contenders: Sequence[Contender]) -> Contender | None:
    """The runs of Local training, if there are any; of several, those with the most runs."""
    alone = [contender for contender in contenders if contender.is_alone]
    return max(alone, key=lambda contender: len(contender.runs), default=None)


def client_gains(contender: Contender, alone: Contender) -> np.ndarray:
    """What every client of the first draw gains over training alone, (K,), positive = better, averaged over seeds."""
    return _gains(contender.same_data, alone)


def all_gains(contender: Contender, alone: Contender) -> np.ndarray:
    """The gains of the clients of every draw, one after the other."""
    return np.concatenate([_gains(runs, alone) for runs in contender.draws])


def _gains(runs: Sequence[Result], alone: Contender) -> np.ndarray:
    """Gains averaged over runs on the same data, (K,); NaN where nobody trained alone on them.

    A run is held against the Local runs on the same data: that with the same seed, or else the mean of them all.
    """
    sign = 1.0 if runs[0].task.larger_is_better else -1.0
    differences = []
    for run in runs:
        partners = [other for other in alone.runs if _data_of(other) == _data_of(run)]
        same_seed = [other for other in partners if _seed(other) == _seed(run)]
        if partners:
            base = np.mean([_deployed(other) for other in same_seed or partners], axis=0)
            differences.append(sign * (_deployed(run) - base))
    return np.mean(differences, axis=0) if differences else np.full(len(runs[0].names), np.nan)


def tied(best: Contender, others: Sequence[Contender]) -> list[Contender]:
    """Those of the others whose clients do as well as those of the best, as far as the runs tell.

    The 95 % interval over clients of the difference does not leave out zero.
    """
    return [other for other in others if not interval(all_gains(best, other))[1] > 0]


def _deployed(run: Result) -> np.ndarray:
    return np.array(run.metrics["deployed"][run.metric], dtype=float)


def interval(differences: np.ndarray, chosen_from: int = 1) -> tuple[float, float, float]:
    """Mean gain and its 95 % interval over clients (paired t), widened (Bonferroni) when the best of several is shown.

    >>> mean, low, high = interval(np.array([0.1, 0.2, 0.3]))
    >>> round(mean, 3), round(low, 3), round(high, 3)
    (0.2, -0.048, 0.448)
    """
    from scipy.stats import t

    kept = differences[np.isfinite(differences)]
    if not len(kept):
        return float("nan"), float("nan"), float("nan")
    mean = float(kept.mean())
    if len(kept) < 2:
        return mean, float("-inf"), float("inf")
    error = float(kept.std(ddof=1) / np.sqrt(len(kept)))
    half = float(t.ppf(1 - 0.025 / chosen_from, len(kept) - 1)) * error
    return mean, mean - half, mean + half


def line(contender: Contender, alone: Contender | None) -> Standing:
    """The contender's line, against the runs of Local training where there are any."""
    run, scores = contender.first, contender.scores()
    differences = np.array([]) if alone is None else all_gains(contender, alone)
    known = bool(np.isfinite(differences).any())
    counts = gains(differences, np.zeros_like(differences)) if known else {}
    return Standing(
        label=contender.label,
        algorithm=run.algorithm,
        title=run.title,
        metric=run.task.metric,
        larger_is_better=run.task.larger_is_better,
        unit=run.task.unit,
        seeds=tuple(contender.seeds),
        deployed=contender.summary(),
        pre=contender.summary("pre"),
        post=contender.summary("post"),
        seed_std=float(scores.std(ddof=1)) if len(scores) > 1 else None,
        gain=interval(differences)[0] if known else None,
        gained=counts.get("gained"),
        lost=counts.get("lost"),
        same=counts.get("same"),
        clients=sum(len(draw[0].names) for draw in contender.draws),
        valued=sum(draw[0].valued for draw in contender.draws),
        bytes=_mean_fact(contender, "bytes"),
        seconds=_mean_fact(contender, "seconds"),
    )


def _mean_fact(contender: Contender, name: str) -> float:
    return float(np.mean([run.facts.get(name, np.nan) for run in contender.runs]))


def spread(values: np.ndarray) -> dict[str, float]:
    """Summary of one evaluated round over clients, with the 10th and 90th percentile client."""
    kept = values[np.isfinite(values)]
    low, high = np.percentile(kept, [10, 90]) if len(kept) else (np.nan, np.nan)
    return {"mean": summarise(values)["mean"], "low": float(low), "high": float(high)}
