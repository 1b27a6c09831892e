"""Together: one method in F federations at once. Each has its own state; their questions go out as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, BrokenBarrierError
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedkin.clients import Clients, Replies, Traffic
from fedkin.errors import FedkinError
from fedkin.graphs import ClientGraph

T = TypeVar("T")


class Folds:
    """Some of the folds that K·F clients stand for, as federations of K; `each` does the same in all of them, in step.

    To a stacked kernel folds are further clients: when every fold asks the same, as methods do that differ in rows alone,
    that is one question to K·F clients instead of F.
    """

    def __init__(self, clients: Clients, names: tuple[str, ...], numbers: Sequence[int]) -> None:
        self.clients, self.names, self.numbers, count = clients, names, tuple(numbers), len(numbers)
        self.count = count
        self.views = tuple(Fold(self, place, number) for place, number in enumerate(numbers))
        self._questions: list[tuple[Any, ...]] = [()] * count
        self._answers: list[Replies] = []
        self._fault: Exception | None = None
        self._all_asked = Barrier(count, action=self._ask)

    def each(self, work: Callable[[Fold], T]) -> list[T]:
        """work(fold) for every fold, each in a thread of its own; they must put the same number of questions."""
        self._fault = None
        self._all_asked.reset()
        found: list[Any] = [None] * self.count
        faults: dict[int, Exception] = {}

        def do(fold: int) -> None:
            try:
                found[fold] = work(self.views[fold])
            except Exception as problem:
                faults[fold] = problem
                self._all_asked.abort()

        with ThreadPoolExecutor(self.count) as pool:
            list(pool.map(do, range(self.count)))
        if self._fault is not None:
            raise self._fault
        real = [faults[fold] for fold in sorted(faults) if not isinstance(faults[fold], BrokenBarrierError)]
        if real or faults:
            raise real[0] if real else FedkinError("the folds of a run got out of step")
        return found

    def ask(self, fold: int, *question: Any) -> Replies:
        self._questions[fold] = question
        self._all_asked.wait()
        return self._answers[fold]

    def _ask(self) -> None:
        try:
            tasks = {question[0] for question in self._questions}
            if len(tasks) == 1 and all(_same(q[3], self._questions[0][3]) for q in self._questions):
                self._answers = self._as_one()
            else:
                self._answers = [self._alone(fold, *asked) for fold, asked in zip(self.numbers, self._questions)]
        except Exception as problem:
            self._fault = problem
            raise

    def _as_one(self) -> list[Replies]:
        size, asked = len(self.names), [question[1] for question in self._questions]
        ids = np.concatenate([own + fold * size for fold, own in zip(self.numbers, asked)])
        keys = self._questions[0][2]
        rows = {key: torch.cat([question[2][key] for question in self._questions]) for key in keys}
        replies = self.clients.ask(self._questions[0][0], ids, rows, *self._questions[0][3:])
        return [self._part(replies, fold) for fold in self.numbers]

    def _part(self, replies: Replies, fold: int) -> Replies:
        size = len(self.names)
        mine = np.flatnonzero(replies.ids // size == fold)
        ids = replies.ids[mine] % size
        arrays = {key: value[torch.from_numpy(mine)] for key, value in replies.arrays.items()}
        return Replies(ids, arrays, self._named(replies.failed, fold))

    def _alone(self, fold: int, task: str, ids: np.ndarray, *question: Any) -> Replies:
        size = len(self.names)
        replies = self.clients.ask(task, ids + fold * size, *question)
        return Replies(replies.ids % size, replies.arrays, self._named(replies.failed, fold))

    def _named(self, failed: Mapping[str, str], fold: int) -> dict[str, str]:
        size = len(self.names)
        own = dict(zip(self.clients.names[fold * size : (fold + 1) * size], self.names))
        return {own[name]: reason for name, reason in failed.items() if name in own}


class Fold:
    """One of the F federations, as a method sees it (the part of the `Clients` contract that members need)."""

    def __init__(self, folds: Folds, place: int, number: int) -> None:
        size = len(folds.names)
        self.folds, self.place, self.names = folds, place, folds.names
        self.sizes = folds.clients.sizes[number * size : (number + 1) * size]
        self.traffic: Traffic = folds.clients.traffic

    def ask(
        self,
        task: str,
        ids: np.ndarray,
        per_client: Mapping[str, Tensor] | None = None,
        shared: Mapping[str, Any] | None = None,
        bill: bool = True,
    ) -> Replies:
        return self.folds.ask(self.place, task, ids, dict(per_client or {}), dict(shared or {}), bill)

    def link(self, graph: ClientGraph) -> None:
        raise FedkinError("members of auto use no graph between clients that write to each other")

    def exchange(self, *_: Any, **__: Any) -> Replies:
        raise FedkinError("members of auto exchange nothing past the server")

    def snapshot(self) -> dict[str, Tensor]:
        return self.folds.clients.snapshot()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.folds.clients.restore(state)

    def estimators(self) -> dict[str, Any]:
        return {}

    def remember(self, recipe: Callable[[], object]) -> None:
        raise FedkinError("members of auto keep nothing but rows and private state on their clients")

    def close(self) -> None:
        """The clients belong to all folds."""


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    return not isinstance(a, Tensor) and not isinstance(b, Tensor) and bool(a == b)
