"""The `Clients` contract over several hosts that share nothing: who is where, and how answers come together again.

A question to clients of several hosts is split, sent to all of them at once, and the answers are put back in the order
asked. How a question travels is the engine's business: it defines `_send`, `_deliver`, `_snapshots` and `_restore`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedkin.clients import UNSET, carried
from fedkin.engines.asking import Asking, Exchanged
from fedkin.engines.host import Answer
from fedkin.errors import FedkinError, unknown
from fedkin.graphs import ClientGraph
from fedkin.local.mail import Mail
from fedkin.local.tasks import Request


@dataclass(frozen=True)
class Question:
    """What one host is asked: a task for some of its clients (positions within the host)."""

    task: str
    ids: np.ndarray
    per_client: Mapping[str, Tensor] = field(default_factory=dict)
    shared: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Parcel:
    """Letters of one host for another: positions of the senders within their host."""

    sender: int
    ids: np.ndarray


@dataclass(frozen=True)
class Post:
    """What one host gets in an exchange: which letters of which hosts, and who may read which of them."""

    parcels: tuple[Parcel, ...]
    receivers: tuple[str, ...]
    senders: tuple[str, ...]
    """Names of the senders, parcel after parcel."""
    links: sp.csr_array
    """Weights of the edges, (receivers, senders)."""
    padded: bool = False
    """NaN in a letter stands for no value."""

    def without(self, silent: Collection[int]) -> Post:
        """The same without the letters of these hosts."""
        if not any(parcel.sender in silent for parcel in self.parcels):
            return self
        keep = np.concatenate([np.full(len(parcel.ids), parcel.sender not in silent) for parcel in self.parcels])
        parcels = tuple(parcel for parcel in self.parcels if parcel.sender not in silent)
        senders = tuple(name for name, kept in zip(self.senders, keep) if kept)
        links = sp.csr_array(self.links[:, np.flatnonzero(keep)])
        return replace(self, parcels=parcels, senders=senders, links=links)

    def mail(self, letters: Sequence[Tensor]) -> Mail:
        """The mail of the receivers, from the letters of every parcel."""
        return Mail(self.receivers, self.senders, self.links, torch.cat(list(letters)) if letters else torch.zeros(0))


def no_letter(letter: str, known: Iterable[str]) -> FedkinError:
    """No host at all has the private state that was to be sent."""
    return unknown("private state of the clients", letter, sorted(known))


HostAnswers = Mapping[int, Answer | str]
"""Host → its answer, or the reason why there is none."""


class Sharded(Asking):
    """Clients spread over hosts: `members[s]` are the positions, in the federation, of the clients of host s."""

    def __init__(self, names: tuple[str, ...], sizes: np.ndarray, members: Sequence[np.ndarray]) -> None:
        super().__init__(names, sizes)
        self.members = list(members)
        self.home = np.zeros(len(names), dtype=np.int64)
        self.place = np.zeros(len(names), dtype=np.int64)
        for host, own in enumerate(self.members):
            self.home[own], self.place[own] = host, np.arange(len(own))

    # --- how questions travel -----------------------------------------------------------------------------------------

    @abstractmethod
    def _send(self, questions: Mapping[int, Question]) -> HostAnswers:
        """Put a question to every host named, all at the same time."""

    @abstractmethod
    def _deliver(
        self, letter: str, posts: Mapping[int, Post], questions: Mapping[int, Question]
    ) -> tuple[HostAnswers, int]:
        """Carry letters between hosts, then put the questions with the letters received; also the bytes of a letter.

        A host that has no such letter (it was restarted) writes none, but is asked like the others.
        """

    @abstractmethod
    def _snapshots(self) -> list[dict[str, Tensor]]:
        """The private state of every host."""

    @abstractmethod
    def _restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Put back the private state of every host."""

    # --- the contract -------------------------------------------------------------------------------------------------

    def answer(self, task: str, request: Request) -> Answer:
        ids, asked = request.ids, self._asked(request.ids)
        questions = {}
        for host, positions in asked.items():
            rows = torch.from_numpy(positions)
            mine = {key: value[rows] for key, value in request.per_client.items()}
            questions[host] = Question(task, self.place[ids[positions]], mine, request.shared)
        return self._merged(ids, asked, self._send(questions))

    def _exchange(
        self, letter: str, task: str, request: Request, graph: ClientGraph, padded: bool, senders: np.ndarray
    ) -> Exchanged:
        ids, asked = request.ids, self._asked(request.ids)
        questions = {
            host: Question(task, self.place[ids[positions]], {}, request.shared) for host, positions in asked.items()
        }
        posts = {host: self._post(graph, ids[positions], senders, padded) for host, positions in asked.items()}
        said, size = self._deliver(letter, posts, questions)
        answer = self._merged(ids, asked, said)
        silent = [host for host, answered in said.items() if isinstance(answered, str)]
        present, wrote = (some[~np.isin(self.home[some], silent)] for some in (ids, senders))
        return Exchanged(answer.ids, answer.arrays, answer.failed, answer.forgot, carried(graph, present, wrote), size)

    def snapshot(self) -> dict[str, Tensor]:
        parts = self._snapshots()
        joined: dict[str, Tensor] = {}
        for own, part in zip(self.members, parts):
            for key, value in part.items():
                if key not in joined:
                    joined[key] = torch.zeros((len(self.names), *value.shape[1:]), dtype=value.dtype)
                joined[key][own] = value
        for key in [key for key in joined if not key.endswith(UNSET)]:
            lacking = [own for own, part in zip(self.members, parts) if key not in part]
            if lacking:  # nobody there was asked so far: they begin from their default, not from zero
                joined.setdefault(key + UNSET, torch.zeros(len(self.names), dtype=torch.bool))[
                    np.concatenate(lacking)
                ] = True
        return joined

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._restore([{key: value[own] for key, value in state.items()} for own in self.members])

    def estimators(self) -> dict[str, Any]:
        return {}

    # --- bookkeeping --------------------------------------------------------------------------------------------------

    def _asked(self, ids: np.ndarray) -> dict[int, np.ndarray]:
        """Host → the positions in `ids` of its clients, in the order in which the host has them."""
        order = np.argsort(self.place[ids], kind="stable")
        home = self.home[ids[order]]
        return {int(host): order[home == host] for host in np.unique(home)}

    def _post(self, graph: ClientGraph, receivers: np.ndarray, writers: np.ndarray, padded: bool) -> Post:
        """Which letters the clients `receivers` of one host may read, sender's host by sender's host."""
        links = sp.csr_array(graph.adjacency[receivers])
        linked = np.intersect1d(np.unique(links.indices), writers)
        senders = linked[np.argsort(self.home[linked], kind="stable")]
        homes = self.home[senders]
        parcels = tuple(Parcel(int(h), self.place[senders[homes == h]]) for h in np.unique(homes))
        names = tuple(self.names[k] for k in receivers), tuple(self.names[k] for k in senders)
        return Post(parcels, *names, sp.csr_array(links[:, senders]), padded)

    def _merged(self, ids: np.ndarray, asked: Mapping[int, np.ndarray], said: HostAnswers) -> Answer:
        """All answers in the order asked; the clients of a silent host have failed for its reason."""
        answered = np.zeros(len(ids), dtype=bool)
        failed: dict[str, str] = {}
        forgot: list[str] = []
        found: list[tuple[np.ndarray, Answer]] = []
        for host, positions in asked.items():
            answer = said[host]
            if isinstance(answer, str):
                failed |= {self.names[ids[p]]: answer for p in positions}
                continue
            at = np.full(len(self.members[host]), -1)
            at[self.place[ids[positions]]] = positions
            where = at[answer.ids]
            answered[where] = True
            failed |= answer.failed
            forgot += answer.forgot
            if len(where):
                found.append((where, answer))
        return Answer(ids[answered], _stacked(found, np.cumsum(answered) - 1), failed, tuple(forgot))


def _stacked(found: Sequence[tuple[np.ndarray, Answer]], row: np.ndarray) -> dict[str, Tensor]:
    """The arrays of all hosts as one: client at position p of the question is in row `row[p]`."""
    arrays: dict[str, Tensor] = {}
    total = sum(len(where) for where, _ in found)
    for key, like in found[0][1].arrays.items() if found else ():
        arrays[key] = torch.empty((total, *like.shape[1:]), dtype=like.dtype)
        for where, answer in found:
            arrays[key][torch.from_numpy(row[where])] = answer.arrays[key]
    return arrays


def contiguous(sizes: np.ndarray, count: int) -> list[np.ndarray]:
    """Positions 0…K−1 cut into at most `count` runs with about the same number of samples.

    >>> [part.tolist() for part in contiguous(np.array([5, 1, 1, 1, 4]), 2)]
    [[0, 1], [2, 3, 4]]
    """
    middle = np.cumsum(sizes) - sizes / 2
    share = np.minimum((middle / max(1, sizes.sum()) * count).astype(int), count - 1)
    return [part for part in np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(share)) + 1) if len(part)]
