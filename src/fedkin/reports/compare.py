"""Comparing runs: those that differ by seed alone belong to one method, and gains are taken against training alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedkin.errors import FedkinError
from fedkin.result import Result
from fedkin.result.summary import gains, summarise

ALONE = "local"
"""The method every other one is held against."""


@dataclass(frozen=True)
class Method:
    """The runs of one method with the same settings; they differ by seed (and by the split, if that was seeded too)."""

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
        return [int(run.config["run"]["seed"]) for run in self.runs]

    @cached_property
    def same_data(self) -> tuple[Result, ...]:
        """The runs on the same samples as the first: only these can be averaged client by client."""
        return tuple(run for run in self.runs if fingerprint(run) == fingerprint(self.first))

    def values(self, when: str = "deployed", metric: str | None = None) -> np.ndarray:
        """A metric of every client, (K,), averaged over the runs on the same data."""
        name = metric or self.first.metric
        return np.mean([np.array(run.metrics[when][name], dtype=float) for run in self.same_data], axis=0)

    def scores(self, when: str = "deployed") -> np.ndarray:
        """The mean over clients of every run, (runs,)."""
        return np.array([run.summary(when)["mean"] for run in self.runs])

    def tails(self, when: str = "deployed") -> dict[str, float]:
        """Spread over clients, best and worst 5 %, and the mean over samples: each the mean over runs."""
        found = [run.summary(when) for run in self.runs]
        return {name: float(np.mean([entry[name] for entry in found])) for name in found[0]}


def fingerprint(run: Result) -> str:
    return str(run.config["data"].get("fingerprint", ""))


def group(results: Sequence[Result]) -> list[Method]:
    """Methods in the order of their first run. Runs must share their clients and their task."""
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
                f"{result.title} and {first.title} have different tasks ({result.task.kind}, {first.task.kind}); "
                "report them in separate pages"
            )
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(json.dumps(_settings(result), sort_keys=True, default=str), []).append(result)
    groups = list(found.values())
    return [Method(label, tuple(runs)) for label, runs in zip(_labels(groups), groups)]


def _settings(result: Result) -> dict[str, Any]:
    """Everything that makes a method, seeds left out."""
    config = result.config
    shown = {section: dict(config.get(section, {})) for section in ("data", "model", "algorithm", "run")}
    shown["data"].pop("fingerprint", None)
    for section in ("data", "run"):
        shown[section].pop("seed", None)
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


def find_alone(methods: Sequence[Method]) -> Method | None:
    """The runs of Local training, if there are any; of several, those with the most runs."""
    alone = [method for method in methods if method.is_alone]
    return max(alone, key=lambda method: len(method.runs), default=None)


def client_gains(method: Method, alone: Method) -> np.ndarray:
    """What every client gains over training alone, (K,), positive = better, averaged over runs on the same data.

    A run is held against the Local runs on the same data: that with the same seed, or else the mean of them all.
    """
    sign = 1.0 if method.first.task.larger_is_better else -1.0
    differences = []
    for run in method.same_data:
        partners = [other for other in alone.runs if fingerprint(other) == fingerprint(run)]
        same_seed = [other for other in partners if other.config["run"]["seed"] == run.config["run"]["seed"]]
        if partners:
            base = np.mean([other.metrics["deployed"][run.metric] for other in same_seed or partners], axis=0)
            differences.append(sign * (np.array(run.metrics["deployed"][run.metric], dtype=float) - base))
    return np.mean(differences, axis=0) if differences else np.full(len(method.first.names), np.nan)


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


def line(method: Method, alone: Method | None) -> dict[str, Any]:
    """One line of the comparison table."""
    tails = method.tails()
    entry: dict[str, Any] = {
        "label": method.label,
        "runs": len(method.runs),
        "pre": float(method.scores("pre").mean()),
        "post": float(method.scores("post").mean()),
        "deployed": float(method.scores().mean()),
        "over_seeds": float(method.scores().std(ddof=1)) if len(method.runs) > 1 else None,
        **{name: tails[name] for name in ("std", "worst5", "best5", "weighted")},
        "seconds": float(np.mean([run.facts.get("seconds", np.nan) for run in method.runs])),
        "bytes": float(np.mean([run.facts.get("bytes", np.nan) for run in method.runs])),
        "gain": None,
    }
    if alone is not None and method is not alone:
        differences = client_gains(method, alone)
        entry["gain"] = interval(differences)[0]
        entry |= gains(differences, np.zeros_like(differences))
    return entry


def spread(values: np.ndarray, larger_is_better: bool) -> dict[str, float]:
    """Summary of one evaluated round over clients, with the 10th and 90th percentile client."""
    kept = values[np.isfinite(values)]
    low, high = np.percentile(kept, [10, 90]) if len(kept) else (np.nan, np.nan)
    return {"mean": summarise(values, larger_is_better)["mean"], "low": float(low), "high": float(high)}
