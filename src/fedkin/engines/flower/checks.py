"""What an answer may hold. A site is not trusted: sizes, names, types and shapes are checked before anything is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from fedkin.clients import n_bytes
from fedkin.engines.flower.wire import Message
from fedkin.engines.host import Answer
from fedkin.engines.sharding import Question
from fedkin.errors import FedkinError
from fedkin.models import ModelSpec
from fedkin.task import Task

SLACK = 2**20
"""Bytes for counts, losses, metrics and names, whatever the model."""
COPIES = 6
"""How many arrays of a row's size a task may give back for a client (rows, model, control, …)."""


def allowed_bytes(question: Question, spec: ModelSpec, task: Task) -> int:
    """The most an answer to this question may weigh: a few rows per client, statistics of its inputs, predictions."""
    inputs, number = int(np.prod(task.input_shape, dtype=int)), spec.dtype.itemsize
    relax: Mapping[str, Any] = question.shared.get("relax", {})
    points = int(question.shared.get("size", 0)) * inputs
    points += int(relax.get("points", 0)) * int(relax.get("degree", 0)) * task.outputs
    models = question.shared.get("models")
    across = len(models) if isinstance(models, Tensor) else 0
    each = 8 * COPIES * (spec.layout.width + len(spec.layout.counters)) + 64 * (inputs + task.outputs)
    each += 8 * points + 16 * across + n_bytes(question.per_client) // max(1, len(question.ids)) * (8 // number)
    return SLACK + len(question.ids) * each


def expected(question: Question, spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The shapes, per client, of arrays whose shape is known beforehand."""
    width, private = spec.layout.width, tuple(question.shared.get("private", ()))
    known: dict[str, tuple[int, ...]] = {"loss": (), "moved": (), "model": (width,)}
    known["counters"] = (len(spec.layout.counters),)
    if "sgd" in question.shared:
        known["rows"] = (width - int(spec.layout.mask(private).sum()),)
    return known


def read_answer(message: Message, names: list[str], known: Mapping[str, tuple[int, ...]]) -> Answer:
    """The answer of a site to a question put to its clients `names`; FedkinError says what is wrong with it."""
    if "refused" in message.head:
        raise FedkinError(f"refused: {str(message.head['refused'])[:500]}")
    answered, failed = message.head.get("answered"), message.head.get("failed", {})
    if not isinstance(answered, list) or not isinstance(failed, dict) or not {*answered, *failed} <= set(names):
        raise FedkinError("answered for clients it was not asked about")
    if len(set(answered)) != len(answered):
        raise FedkinError("answered twice for the same client")
    arrays = message.part("array")
    for key, value in arrays.items():
        if value.ndim < 1 or len(value) != len(answered):
            raise FedkinError(f"sent {key!r} of shape {tuple(value.shape)} for {len(answered)} clients")
        if key in known and tuple(value.shape[1:]) != known[key]:
            raise FedkinError(f"sent {key!r} of shape {tuple(value.shape[1:])} per client, expected {known[key]}")
    ids = np.array([names.index(name) for name in answered], dtype=np.int64)
    return Answer(ids, arrays, {str(name): str(reason)[:500] for name, reason in failed.items()})


def _kind(answer: Answer) -> tuple[Any, ...]:
    return tuple(sorted((key, str(value.dtype), tuple(value.shape[1:])) for key, value in answer.arrays.items()))


def agreeing(answers: Mapping[int, Answer | str]) -> dict[int, Answer | str]:
    """Answers that hold other arrays than most clients' do become a reason.

    A site that is not ready (its clients must meet their neighbours again) says only that, and may.
    """
    votes: Counter[tuple[Any, ...]] = Counter()
    for answer in answers.values():
        if isinstance(answer, Answer) and set(answer.arrays) != {"ready"}:
            votes[_kind(answer)] += len(answer.ids)
    if len(votes) < 2:
        return dict(answers)
    usual = votes.most_common(1)[0][0]
    checked: dict[int, Answer | str] = {}
    for site, answer in answers.items():
        odd = isinstance(answer, Answer) and len(answer.ids) and _kind(answer) != usual
        if odd and isinstance(answer, Answer) and set(answer.arrays) != {"ready"}:
            names = sorted({entry[0] for entry in {*_kind(answer)} ^ {*usual}})
            checked[site] = f"sent other arrays than most sites: {', '.join(names)}"
        else:
            checked[site] = answer
    return checked
