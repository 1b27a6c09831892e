"""`ask` and `exchange` as every engine has them: the question is checked, the answer billed, a host that forgot reminded.

An engine defines how a question travels: `answer` and `_exchange`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from fedkin.clients import Alike, Replies, Stacked, Traffic, check_rows, everyone_failed, needs_graph, set_aside
from fedkin.engines.host import Answer
from fedkin.errors import FedkinError
from fedkin.graphs import ClientGraph
from fedkin.local.tasks import Request


@dataclass(frozen=True)
class Exchanged(Answer):
    """The answer to a question that came with letters."""

    letters: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """How many letters each edge carried, in the order of the adjacency's entries."""
    letter_bytes: int = 0
    """The bytes of one letter."""


AnswerT = TypeVar("AnswerT", bound=Answer)


class Asking(ABC):
    """The server's side of the `Clients` contract, whatever way questions travel."""

    def __init__(self, names: tuple[str, ...], sizes: np.ndarray) -> None:
        self.names, self.sizes = names, sizes
        self.traffic = Traffic()
        self.graph: ClientGraph | None = None
        self._recipe: Callable[[], Any] | None = None
        self._reminding = False
        self.restarted = False
        """An engine sets this when it has started a host anew: the recipe is replayed before anyone acts."""

    @abstractmethod
    def answer(self, task: str, request: Request) -> Answer:
        """What the clients `request.ids` (positions in the federation) answer, in the order asked."""

    @abstractmethod
    def _exchange(
        self, letter: str, task: str, request: Request, graph: ClientGraph, padded: bool, senders: np.ndarray
    ) -> Exchanged:
        """The same after letters went along the edges of the graph from the `senders` to the clients `request.ids`."""

    def ask(
        self, task: str, ids: np.ndarray, per_client: Stacked = None, shared: Alike = None, bill: bool = True
    ) -> Replies:
        request = Request(ids, dict(per_client or {}), dict(shared or {}))
        check_rows(task, request)
        if self.restarted:
            self._replay()
        answer = self.answer(task, request)
        if answer.forgot:
            answer = self._reminded(answer, partial(self.answer, task, request))
        if bill and not self._reminding:
            self.traffic.add(request, answer.ids, answer.arrays)
        if answer.failed and not len(answer.ids):
            raise everyone_failed(task, answer.failed)
        return set_aside(self.names, answer.ids, answer.arrays, answer.failed)

    def link(self, graph: ClientGraph) -> None:
        if self.graph is not None:
            raise FedkinError("the clients already know their neighbours; a run has one graph")
        self.graph = graph

    def exchange(
        self,
        letter: str,
        task: str,
        ids: np.ndarray,
        shared: Alike = None,
        bill: bool = True,
        padded: bool = False,
        senders: np.ndarray | None = None,
    ) -> Replies:
        writers = ids if senders is None else senders
        graph, request = needs_graph(task, self.graph), Request(ids, {}, dict(shared or {}))
        if self.restarted:
            self._replay()
        question = partial(self._exchange, letter, task, request, graph, padded, writers)
        answer = question()
        if answer.forgot:
            answer = self._reminded(answer, question)
        if bill and not self._reminding:
            self.traffic.add_letters(answer.letters, answer.letter_bytes)
        if answer.failed and not len(answer.ids):
            raise everyone_failed(task, answer.failed)
        replies = set_aside(self.names, answer.ids, answer.arrays, answer.failed)
        return replace(replies, letters=answer.letters)

    def remember(self, recipe: Callable[[], Any]) -> None:
        self._recipe = recipe

    def _reminded(self, answer: AnswerT, question: Callable[[], AnswerT]) -> AnswerT:
        """A host forgot its objects: the recipe is replayed, and the question put to all again."""
        why = "says that it forgot what nobody told it"
        if self._recipe is not None and not self._reminding:
            self._replay()
            answer, why = (
                question(),
                "forgot what it was told right after it was told again; its host loses it: let it run the same fedkin as "
                "the others and keep its state folder between messages",
            )
        return replace(answer, failed={**answer.failed, **dict.fromkeys(answer.forgot, why)})

    def _replay(self) -> None:
        """Tell the clients again what they are to hold, unbilled; not while that is being done."""
        if self._recipe is None or self._reminding:
            return
        self.restarted, self._reminding = False, True
        try:
            self._recipe()
        finally:
            self._reminding = False
