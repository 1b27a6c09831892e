"""Members: ordinary methods trained in every fold, and what more local steps make of their models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.algorithm import Algorithm, Setting, State
from fedkin.algorithms.kin import Kin
from fedkin.clients import Replies
from fedkin.local.sgd import Sgd
from fedkin.models import ModelSpec
from fedkin.portfolio.evidence import FORGET
from fedkin.portfolio.together import Fold, Folds
from fedkin.streams import Streams

FINE_TUNING = 1_000_000
"""Fine-tuning draws its batches as rounds from this number on: never those of training."""

WatchMembers = Callable[[str, int, int], None]
"""Told after every round of a member: its name, the round, and how many there are."""


@dataclass(frozen=True)
class TrainedMember:
    """A member's models in every fold, (F, K, B); a client's row is NaN where its training broke off."""

    rows: Tensor
    states: tuple[State, ...] = ()


def begin_anew(folds: Folds) -> None:
    """Private state of what was trained before is dropped."""
    folds.clients.ask(FORGET, np.arange(len(folds.clients.names)), bill=False)


def train_member(
    folds: Folds,
    settings: tuple[Setting, ...],
    method: Algorithm,
    rounds: int,
    watch: WatchMembers,
    start: Tensor | None = None,
    cohort: np.ndarray | None = None,
) -> TrainedMember:
    """Train a method in all folds, round by round; what its clients would deploy. Private state begins anew.

    `cohort` are the clients that train (default: all). For Kin, `start` (F, K, B) are models trained alone, from which it estimates its
    first weights; models of clients that did not train are NaN.
    """
    begin_anew(folds)
    everyone = np.arange(len(folds.names))
    cohort = everyone if cohort is None else cohort
    states = [method.start(setting) for setting in settings]

    def begun(fold: Fold) -> State:
        here = settings[fold.place]
        assert start is not None
        assert isinstance(method, Kin)
        return method.estimated(states[fold.place], start[fold.place], fold, cohort, here)

    def one_round(fold: Fold) -> State:
        here = settings[fold.place]
        return method.round(states[fold.place], fold, cohort, here)

    if start is not None:
        states[:] = folds.each(begun)
    for number in range(1, rounds + 1):
        states[:] = folds.each(one_round)
        watch(method.name, number, rounds)

    def models(fold: Fold) -> Tensor:
        setting, post = settings[fold.place], method.deploys == "trained"
        if not post and not method.private(setting):
            return method.received(states[fold.place], setting)
        replies = method.evaluate(states[fold.place], fold, setting, post, [], disclose=True)
        return placed(replies, "model", states[fold.place].rows)

    rows = torch.stack(folds.each(models))
    if start is not None:
        absent = np.setdiff1d(everyone, cohort)
        rows[:, torch.from_numpy(absent)] = torch.nan
    return TrainedMember(rows, tuple(states))


def steps_alone(
    folds: Folds, spec: ModelSpec, streams: Streams, sgd: Sgd, rounds: int, ids: np.ndarray | None = None
) -> Tensor:
    """Models (F, K, B) of clients that train alone: all steps in one question, unless the rate changes with the round.

    With `ids` those clients alone; the others' rows are NaN.
    """
    steady = sgd.lr_schedule == "constant" and sgd.lr_decay == 1
    pieces = [(1, rounds)] if steady else [(number, 1) for number in range(1, rounds + 1)]
    first = spec.initial_row(streams)
    asked = np.arange(len(folds.names)) if ids is None else ids
    beginning = first.new_full((len(folds.names), len(first)), torch.nan)
    beginning[torch.from_numpy(asked)] = first
    rows = torch.stack([beginning] * folds.count)
    begin_anew(folds)
    for number, count in pieces:
        length = {"steps": sgd.steps * count} if sgd.steps else {"epochs": sgd.epochs * count}
        rows = more_steps(folds, rows, {**sgd.told(number), **length}, number)
    return rows


def fine_tuned(folds: Folds, rows: Tensor, sgd: Mapping[str, Any], steps: int, number: int) -> Tensor:
    """The models (F, K, B) after `steps` more local steps on every client, who begin at the rate they are told."""
    begin_anew(folds)
    return more_steps(folds, rows, {**sgd, "steps": steps}, FINE_TUNING + number)


def more_steps(folds: Folds, start: Tensor, sgd: Mapping[str, Any], round: int) -> Tensor:
    """The models (F, K, B) after local training; those that are not finite stay as they are."""
    how = {"sgd": dict(sgd), "round": round, "private": ()}

    def work(fold: Fold) -> Tensor:
        rows = start[fold.place]
        sound = np.flatnonzero(torch.isfinite(rows).all(dim=1).numpy())
        replies = fold.ask("train", sound, {"rows": rows[torch.from_numpy(sound)]}, how)
        return placed(replies, "rows", rows)

    return torch.stack(folds.each(work))


def placed(replies: Replies, name: str, rows: Tensor) -> Tensor:
    """The answered rows of that name, NaN where a client did not answer; as many and as long as `rows` (K, B)."""
    found = torch.full_like(rows, torch.nan, memory_format=torch.contiguous_format)
    if len(replies):  # nobody answers where all have diverged
        found[torch.from_numpy(replies.ids)] = replies[name]
    return found
