"""Looking ahead is not done twice: *post* after round t is the training of round t+1, which then asks for the same again.

When all clients take part, evaluating *post* trains them from the rows they received, with the batches of the next round, and
leaves no trace. What was trained is remembered for the question that follows; if that is the same question, on the same
private state, its answer is known, bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedkin.local.shard import Shard
    from fedkin.local.tasks import Request, Trained

ASIDE = ("commit", "evaluate", "disclose")
"""What a question asks besides training; what is trained does not depend on it."""

REMEMBERED_BYTES = 2**28
"""Trained rows of more bytes than this are not remembered."""


@dataclass(frozen=True)
class Ahead:
    """A question, the private state it was asked on, and what training gave."""

    task: str
    request: Request
    state: Mapping[str, tuple[Tensor, int]]
    trained: Trained
    counters: Tensor


_SEEN: WeakKeyDictionary[Shard, Ahead] = WeakKeyDictionary()


def remember(shard: Shard, task: str, request: Request, trained: Trained, counters: Tensor) -> None:
    """Keep what a look ahead trained, until the next question."""
    if request.mail is None and trained.rows.numel() * trained.rows.element_size() <= REMEMBERED_BYTES:
        _SEEN[shard] = Ahead(task, request, _state(shard), trained, counters)


def recall(shard: Shard, task: str, request: Request) -> tuple[Trained, Tensor] | None:
    """What the last look ahead trained, and counters, if it was for this very question; it is forgotten either way."""
    last = _SEEN.pop(shard, None)
    if last is None or request.mail is not None or last.task != task:
        return None
    asked = [
        {"ids": r.ids, **r.per_client, **{k: v for k, v in r.shared.items() if k not in ASIDE}}
        for r in (last.request, request)
    ]
    now = _state(shard)
    untouched = now.keys() == last.state.keys() and all(
        now[name][0] is tensor and now[name][1] == version for name, (tensor, version) in last.state.items()
    )
    return (last.trained, last.counters) if untouched and _same(*asked) else None


def _state(shard: Shard) -> dict[str, tuple[Tensor, int]]:
    """The private state: its tensors and how often each was written to."""
    return {name: (tensor, tensor._version) for name, tensor in shard.store.items()}


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(_equal(value, other[key]) for key, value in one.items())


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return _same(a, b)
    return bool(a == b)
