"""What an answer may hold. A site is not trusted: sizes, names, types and shapes are checked before anything is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from fedkin.clients import n_bytes
from fedkin.engines.flower.wire import Message
from fedkin.engines.host import Answer
from fedkin.engines.sharding import Question
from fedkin.errors import FedkinError, first_fault
from fedkin.models import ModelSpec
from fedkin.task import Task

SLACK = 2**20
"""Bytes for counts, losses, metrics and names, whatever the model."""
COPIES = 6
"""How many arrays of a row's size a task may give back for a client (rows, model, control, …)."""


def allowed_bytes(question: Question, spec: ModelSpec, task: Task) -> int:
    """The most an answer to this question may weigh: a few rows per client, statistics of its inputs, predictions.

    A method that asks for more says so: `numbers` in what is shared is how many more a client may send.
    """
    inputs, number = int(np.prod(task.input_shape, dtype=int)), spec.dtype.itemsize
    models = question.shared.get("models")
    across = len(models) if isinstance(models, Tensor) else 0
    each = 8 * COPIES * (spec.layout.width + len(spec.layout.counters)) + 64 * (inputs + task.outputs)
    each += (
        8 * int(question.shared.get("numbers", 0))
        + 16 * across
        + n_bytes(question.per_client) // max(1, len(question.ids)) * (8 // number)
    )
    return SLACK + len(question.ids) * each


def expected(question: Question, spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The shapes, per client, of arrays whose shape is known beforehand."""
    width, private = spec.layout.width, tuple(question.shared.get("private", ()))
    known: dict[str, tuple[int, ...]] = {"loss": (), "moved": (), "model": (width,)}
    known["counters"] = (len(spec.layout.counters),)
    if "sgd" in question.shared:
        known["rows"] = (width - int(spec.layout.mask(private).sum()),)
    return known


class AnswerHead(BaseModel):
    """The head of an answer: who answered, who did not and why, who must be told again, the bytes of one letter."""

    model_config = ConfigDict(frozen=True, strict=True)

    answered: list[str]
    failed: dict[str, str] = {}
    forgot: list[str] = []
    letter_bytes: int = Field(0, ge=0)


def read_answer(message: Message, names: list[str], known: Mapping[str, tuple[int, ...]]) -> tuple[Answer, int]:
    """The answer of a site to a question put to its clients `names`, and the bytes of a letter.

    FedkinError says what is wrong with it.
    """
    if "refused" in message.head:
        raise FedkinError(f"refused: {str(message.head['refused'])[:500]}")
    try:
        told = AnswerHead.model_validate(message.head)
    except ValidationError as problem:
        raise FedkinError(f"sent a head that is no answer: {first_fault('head', problem)[:500]}") from problem
    if not {*told.answered, *told.failed, *told.forgot} <= set(names):
        raise FedkinError("answered for clients it was not asked about")
    if len(set(told.answered)) != len(told.answered):
        raise FedkinError("answered twice for the same client")
    arrays = message.part("array")
    for key, value in arrays.items():
        if value.ndim < 1 or len(value) != len(told.answered):
            raise FedkinError(f"sent {key!r} of shape {tuple(value.shape)} for {len(told.answered)} clients")
        if key in known and tuple(value.shape[1:]) != known[key]:
            raise FedkinError(f"sent {key!r} of shape {tuple(value.shape[1:])} per client, expected {known[key]}")
    ids = np.array([names.index(name) for name in told.answered], dtype=np.int64)
    failed = {name: reason[:500] for name, reason in told.failed.items()}
    return Answer(ids, arrays, failed, tuple(told.forgot)), told.letter_bytes


def read_letters(
    message: Message, letter: str, names: list[str], padded: bool, like: Tensor | None
) -> dict[str, Tensor]:
    """What the clients `names` of a site wrote, by name; FedkinError says what is wrong with it.

    `like` is a letter of another site, whose shape this site's must have; in padded letters NaN stands for no value.
    """
    stack = message.tensors.get("letters")
    if stack is None or len(stack) != len(names):
        raise FedkinError(f"sent no letters {letter!r}: {str(message.head.get('refused', 'none came'))[:500]}")
    if stack.is_floating_point() and not padded and not bool(torch.isfinite(stack).all()):
        raise FedkinError(f"sent NaN or infinity in its letters {letter!r}")
    if like is not None and stack.shape[1:] != like.shape:
        raise FedkinError(f"sent letters {letter!r} of another shape than the first site's")
    return dict(zip(names, stack))


def letter_limit(spec: ModelSpec, task: Task) -> int:
    """The most a letter may weigh: a few rows, or inputs of a few thousand public points."""
    inputs = int(np.prod(task.input_shape, dtype=int))
    return SLACK + 8 * spec.dtype.itemsize * (spec.layout.width + inputs * 1000)


def _kind(answer: Answer) -> tuple[Any, ...]:
    return tuple(sorted((key, str(value.dtype), tuple(value.shape[1:])) for key, value in answer.arrays.items()))


def agreeing(answers: Mapping[int, Answer | str]) -> dict[int, Answer | str]:
    """Answers that hold other arrays than most clients' do become a reason."""
    votes: Counter[tuple[Any, ...]] = Counter()
    for answer in answers.values():
        if isinstance(answer, Answer) and len(answer.ids):
            votes[_kind(answer)] += len(answer.ids)
    if len(votes) < 2:
        return dict(answers)
    usual = votes.most_common(1)[0][0]
    checked: dict[int, Answer | str] = {}
    for site, answer in answers.items():
        if isinstance(answer, Answer) and len(answer.ids) and _kind(answer) != usual:
            names = sorted({entry[0] for entry in {*_kind(answer)} ^ {*usual}})
            checked[site] = f"sent other arrays than most sites: {', '.join(names)}"
        else:
            checked[site] = answer
    return checked
