"""The page's first sentences: who gained, who lost, and whether working together is worth it here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedkin.result.contenders import Contender, all_gains, client_gains, find_alone, interval, tied
from fedkin.result.summary import gains
from fedkin.result.verdict import in_words, who_helps
from fedkin.task.metrics import Metric

Verdict = Literal["pays", "unclear", "costs", "unknown"]


YARDSTICKS = ("global", "oracle")
"""Contenders that see what clients would not show; they mark what is possible and are no way of working together."""


@dataclass(frozen=True)
class Headline:
    """A title, the sentences under it, and the verdict that colours them."""

    title: str
    sentences: tuple[str, ...]
    verdict: Verdict


def collaborations(methods: Sequence[Contender]) -> list[Contender]:
    """The methods in which clients work together; the yardsticks only where there is nothing else."""
    together = [method for method in methods if not method.is_alone]
    return [method for method in together if method.first.algorithm not in YARDSTICKS] or together


def best(methods: Sequence[Contender]) -> Contender:
    """The method whose clients fare best on average, as deployed."""
    sign = 1 if methods[0].first.task.larger_is_better else -1
    return max(methods, key=lambda method: sign * np.nan_to_num(method.summary()["mean"], nan=-sign * np.inf))


def verdict_on(methods: Sequence[Contender]) -> Headline:
    """What the runs say, claiming no more than they show."""
    alone = find_alone(methods)
    together = collaborations(methods)
    metric = methods[0].first.task.headline_metric
    if not together:
        score = methods[0].summary()["mean"]
        return Headline(
            f"Alone, the clients reach {metric.amount(score)} on average",
            ("Only Local training is shown here. Add a run of another method to see whether working together pays.",),
            "unknown",
        )
    winner = best(together)
    score = winner.summary()["mean"]
    if alone is None:
        return Headline(
            f"{winner.label} reaches {metric.amount(score)} on average",
            (
                _extremes(winner),
                "Whether working together pays cannot be said: add a run of Local training to compare.",
            ),
            "unknown",
        )
    if _undecided(winner) and _undecided(alone):
        return Headline(
            "These models cannot be judged: they predict one class only",
            (
                f"With {winner.label} and alone alike, most models give all test samples of their client the same class, so "
                f"{winner.first.task.headline_metric.label} only counts how frequent that class is. Judge by AUROC (headline='auroc'), weigh classes "
                "(class_weight='balanced'), or train longer.",
            ),
            "unknown",
        )
    differences = all_gains(winner, alone)
    if not np.isfinite(differences).any():
        return Headline(
            f"{winner.label} reaches {metric.amount(score)} on average",
            ("The run of Local training is on other data, so gains cannot be computed.",),
            "unknown",
        )
    return _judged(winner, alone, differences, together)


def level_with(winner: Contender, together: Sequence[Contender]) -> list[Contender]:
    """The other ways of working together that cannot be told from the best one here."""
    return tied(winner, [other for other in together if other is not winner])


def _judged(winner: Contender, alone: Contender, differences: np.ndarray, together: Sequence[Contender]) -> Headline:
    metric, names, candidates = winner.first.task.headline_metric, winner.first.names, len(together)
    mean, low, high = interval(differences, candidates)
    counts = gains(differences, np.zeros_like(differences))
    verdict: Verdict = "pays" if low > 0 else "costs" if high < 0 else "unclear"
    tally = f"{counts['gained']} of {sum(counts.values())} clients gain, {counts['lost']} {'loses' if counts['lost'] == 1 else 'lose'}"
    title = {
        "pays": f"Working together pays here: {tally}",
        "costs": f"Working together does not pay here: {tally}",
        "unclear": f"Working together makes no clear difference here: {tally}",
    }[verdict]
    own, theirs = alone.summary()["mean"], winner.summary()["mean"]
    smaller = "" if metric.larger_is_better else f" ({metric.better})"
    sentences = [
        f"With {winner.label} the mean test {metric.label}{smaller} is {metric.amount(theirs)}; alone it is {metric.amount(own)}. "
        f"A client gains {metric.difference(mean)} on average{_range(low, high, metric, candidates)}."
    ]
    if len(winner.draws) > 1:
        sentences.append(
            f"Every seed draws the data anew, so the clients of all {len(winner.draws)} draws are counted: "
            f"{sum(counts.values())}."
        )
    sentences += _ends(client_gains(winner, alone), names, metric)
    sentences += [told for told in (who_helps(method.first) for method in (winner, *together)) if told][:1]
    if level := level_with(winner, together):
        what = in_words([other.label for other in level], 5)
        sentences.append(
            f"{what} {'ties' if len(level) == 1 else 'tie'} with {winner.label}: over these clients the difference to "
            f"{'it' if len(level) == 1 else 'each'} may be chance."
        )
    if candidates > 1:
        sentences.append(
            f"{winner.label} is the best of {candidates} methods on the test samples it is judged by: expect a little "
            "less on new ones."
        )
    return Headline(title, tuple(sentences), verdict)


def _undecided(method: Contender) -> bool:
    """Whether most of its models that saw several classes predict a single one, and the metric counts labels."""
    run = method.first
    if run.task.headline_metric.needs != "labels" or not run.facts.get("single_class"):
        return False
    several = len(run.names) if run.label_counts is None else int(((run.label_counts > 0).sum(axis=1) > 1).sum())
    return len(run.facts["single_class"]) > several / 2


def _ends(differences: np.ndarray, names: Sequence[str], metric: Metric) -> list[str]:
    """Who gains most and who loses most, of the clients of the first draw."""
    low, high = (int(find(np.nan_to_num(differences))) for find in (np.argmin, np.argmax))
    ends = [f"{names[high]} gains most ({metric.difference(differences[high])})"] if differences[high] > 0 else []
    ends += [f"{names[low]} loses most ({metric.difference(differences[low])})"] if differences[low] < 0 else []
    return [", ".join(ends) + "."] if ends else []


def _range(low: float, high: float, metric: Metric, candidates: int) -> str:
    if not np.isfinite([low, high]).all():
        return ""
    ends = f"{metric.difference(low).removesuffix(' points')} to {metric.difference(high)}"
    widened = f", widened for picking the best of {candidates}" if candidates > 1 else ""
    return f" (95 % interval over clients {ends}{widened})"


def _extremes(method: Contender) -> str:
    metric, tails = method.first.task.headline_metric, method.summary()
    return f"Its best 5 % of clients reach {metric.amount(tails['best5'])}, its worst 5 % {metric.amount(tails['worst5'])}."
