"""The `Clients` contract over sites: one message per site and question, with all its clients in it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.engines.flower.called import Called
from fedkin.engines.flower.checks import (
    Far,
    agreeing,
    agreeing_letters,
    allowed_bytes,
    letter_limit,
    plausible,
    read_answer,
    read_letters,
)
from fedkin.engines.flower.line import Line
from fedkin.engines.flower.messages import Deployed, HasFrozen, Join, read_head
from fedkin.engines.flower.register import Register
from fedkin.engines.flower.settings import FederationSettings
from fedkin.engines.flower.site_state import LACKS_FROZEN
from fedkin.engines.flower.wire import HEAD_LIMIT, Message, split_shared, under
from fedkin.engines.host import Answer
from fedkin.engines.sharding import HostAnswers, Post, Question, Sharded, no_letter
from fedkin.errors import FedkinError
from fedkin.federation import PARTS
from fedkin.models import ModelSpec

MARK = "site_state"
"""What a checkpoint holds instead of private state: the run's name at the sites, and the mark they keep it under."""


class FlowerClients(Sharded):
    """Sites behind a line. `members[s]` are the clients of site s, `node[s]` the node through which it is reached.

    Letters between sites go through the server: Flower has no way from site to site. The server passes
    them on along edges of the graph, and keeps none. Private state stays on the sites' disks.
    """

    def __init__(
        self,
        line: Line,
        called: Called,
        spec: ModelSpec,
        register: Register,
        settings: FederationSettings,
        registered: Called | None = None,
    ) -> None:
        """`registered` are the clients that sites join with, where those of `called` are their folds."""
        self.registered = registered or called
        super().__init__(called.roster.names, called.roster.train, called.members)
        self.line, self.roster, self.spec, self.setup = line, called.roster, spec, called.setup
        self.register, self.timeout, self.far = register, settings.timeout, Far(updates=settings.update_limit)
        self.node = list(called.nodes)
        self.run = secrets.token_hex(7)
        self.mark = 0
        self.session = time.time_ns()
        """Tells this server from one before it: a site refuses messages of an earlier one that come late."""
        self.provided: set[int] = set()
        """Sites that have the frozen part of the model."""
        self.number = 0
        """Of the last message: a site refuses one that it has heard, or that comes after a later one."""
        self.adopted: dict[str, Any] = {}
        """The earlier run whose private state sites begin from, if they have it."""
        self.behind: set[int] = set()
        """Sites that have not been told yet to go back to the mark."""
        self.lost: set[int] = set(called.away)
        """Sites that did not answer: before they are heard again they show that they are who they were."""

    # --- messages -----------------------------------------------------------------------------------------------------

    def _names(self, host: int, ids: np.ndarray) -> list[str]:
        return [self.names[k] for k in self.members[host][ids]]

    def _message(self, kind: str, tensors: Mapping[str, Tensor] | None = None, **head: Any) -> Message:
        self.number += 1
        order = {"session": self.session, "number": self.number, "mark": self.mark}
        told = {"kind": kind, "run": self.run, **order, "setup": self.setup.told(), **self.adopted}
        return Message({**told, **head}, tensors or {})

    def call(
        self, messages: Mapping[int, Message], limits: Mapping[int, int] | None = None
    ) -> dict[int, Message | str]:
        """Site → its answer or the reason why there is none. A site that is not connected is not waited for."""
        refused = self._find_again()
        online = set(self.line.nodes())
        there = {host: m for host, m in messages.items() if self.node[host] in online and host not in refused}
        self.lost |= {host for host in messages if self.node[host] not in online}
        self._provide(set(there))
        bounds = {self.node[host]: (limits or {}).get(host, HEAD_LIMIT) for host in there}
        for host in self.behind & set(there):
            there[host] = Message({**there[host].head, "restore": True}, there[host].tensors)
        got = self.line.send({self.node[host]: m for host, m in there.items()}, bounds, self.timeout) if there else {}
        heard = {host for host in there if isinstance(got[self.node[host]], Message)}
        self.behind -= heard
        self.lost |= set(there) - heard
        self.provided -= {host for host in heard if lacks_frozen(got[self.node[host]])} | self.lost
        away = "its site is not connected"
        return {host: got[self.node[host]] if host in there else refused.get(host, away) for host in messages}

    def _provide(self, hosts: set[int]) -> None:
        """Send the frozen part of the model to sites that do not have it: once, whatever the number of rounds."""
        new = sorted(hosts - self.provided) if self.spec.frozen else []
        for tensors in ({}, under("frozen", self.spec.frozen)):
            asked = {self.node[host]: self._message("frozen", tensors) for host in new}
            got = self.line.send(asked, dict.fromkeys(asked, HEAD_LIMIT), self.timeout) if asked else {}
            self.provided |= {host for host in new if self._keeps(got[self.node[host]])}
            new = [host for host in new if host not in self.provided]

    def _keeps(self, got: Message | str) -> bool:
        try:
            return isinstance(got, Message) and read_head(HasFrozen, got).kept == self.setup.frozen_sha256
        except FedkinError:  # its next answer will say what is wrong with it
            return False

    def _find_again(self) -> dict[int, str]:
        """Let sites that were lost join again, through their own node or, if the operator accepts that, through another.

        A site shows the clients and the data that it was registered with. Site → why it is not let in.
        """
        online = set(self.line.nodes())
        away = [host for host, node in enumerate(self.node) if node not in online]
        back = {self.node[host]: [host] for host in self.lost if self.node[host] in online}
        asked = {**back, **{node: away for node in sorted(online - set(self.node)) if away}}
        if not asked:
            return {}
        join = Message({"kind": "join", "setup": self.registered.setup.told()})
        told = self.line.send(dict.fromkeys(asked, join), dict.fromkeys(asked, HEAD_LIMIT), self.timeout)
        refused: dict[int, str] = {}
        for node, hosts in asked.items():
            try:
                host, entries = self._joined(told[node], hosts)
                fault = self.register.fault(node, entries)
                if fault:
                    raise FedkinError(fault)
            except FedkinError as problem:
                refused |= {host: str(problem) for host in hosts if self.node[host] == node}
                continue
            self.register.enter({node: entries})
            self.node[host] = node
            self.lost.discard(host)
        return refused

    def _joined(self, told: Message | str, hosts: Sequence[int]) -> tuple[int, dict[str, str]]:
        """Which of these sites it is that joins again, and the hashes of its clients' data."""
        if isinstance(told, str):
            raise FedkinError(told)
        clients = {client.name: client for client in read_head(Join, told).clients}
        for host in hosts:
            own, roster = self.registered.members[host], self.registered.roster
            if set(clients) == {roster.names[k] for k in own}:
                sizes = {roster.names[k]: [int(getattr(roster, part)[k]) for part in PARTS] for k in own}
                if any([getattr(clients[name], part) for part in PARTS] != due for name, due in sizes.items()):
                    raise FedkinError("joined again with another number of samples")
                return host, {name: client.fingerprint for name, client in clients.items()}
        raise FedkinError("joined again with other clients than it is registered with")

    # --- questions ----------------------------------------------------------------------------------------------------

    def _question(self, host: int, question: Question, tensors: Mapping[str, Tensor], **head: Any) -> Message:
        values, shared = split_shared(question.shared)
        carried = {**under("per_client", question.per_client), **under("shared", shared), **tensors}
        clients = self._names(host, question.ids)
        return self._message("answer", carried, task=question.task, clients=clients, shared=values, **head)

    def _answers(
        self, questions: Mapping[int, Question], messages: Mapping[int, Message]
    ) -> tuple[dict[int, Answer | str], int]:
        """Site → its answer, checked, or a reason; and the bytes of a letter."""
        limits = {host: allowed_bytes(q, self.spec, self.roster.task) for host, q in questions.items()}
        said: dict[int, Answer | str] = {}
        size = 0
        for host, got in self.call(messages, limits).items():
            if isinstance(got, str):
                said[host] = got
                continue
            question = questions[host]
            try:
                names = self._names(host, question.ids)
                answer, told = read_answer(got, names, question, self.spec, self.roster.task)
                said[host], size = replace(answer, ids=question.ids[answer.ids]), max(size, told)
            except FedkinError as problem:
                said[host] = str(problem)
        members = dict(enumerate(self.members))
        return plausible(agreeing(said), questions, members, self.roster, self.far), size

    def _send(self, questions: Mapping[int, Question]) -> HostAnswers:
        return self._answers(questions, {host: self._question(host, q, {}) for host, q in questions.items()})[0]

    def _deliver(
        self, letter: str, posts: Mapping[int, Post], questions: Mapping[int, Question]
    ) -> tuple[HostAnswers, int]:
        wanted = _abroad(posts)
        padded = any(post.padded for post in posts.values())
        letters, silent, lacking = self._collect(letter, wanted, padded)
        if wanted and len(lacking) == len(self.members):
            raise no_letter(letter, next(iter(lacking.values())))
        messages = {}
        for host, question in questions.items():
            if host not in silent:
                post = posts[host].without({*silent, *lacking} - {host})
                messages[host] = self._with_mail(host, question, letter, post, letters)
        said, size = self._answers({host: questions[host] for host in messages}, messages)
        return {**silent, **said}, size

    def _collect(
        self, letter: str, wanted: Mapping[int, np.ndarray], padded: bool
    ) -> tuple[dict[str, Tensor], dict[int, str], dict[int, list[str]]]:
        """Letters that must cross from site to site, by client; silent sites; sites that have no such letter."""
        names = {host: self._names(host, ids) for host, ids in wanted.items()}
        asked = {host: self._message("post", letter=letter, clients=own) for host, own in names.items()}
        limit = letter_limit(self.spec, self.roster.task)
        found: dict[int, Mapping[str, Tensor]] = {}
        silent: dict[int, str] = {}
        lacking: dict[int, list[str]] = {}
        for host, got in self.call(asked, {host: limit * len(own) for host, own in names.items()}).items():
            try:
                if isinstance(got, str):
                    raise FedkinError(got)
                read = read_letters(got, letter, names[host], padded)
                if isinstance(read, dict):
                    found[host] = read
                else:
                    lacking[host] = read
            except FedkinError as problem:
                silent[host] = str(problem)
        good, unlike = agreeing_letters(found, letter, self.far.values)
        letters = {name: value for own in good.values() for name, value in own.items()}
        return letters, silent | unlike, lacking

    def _with_mail(
        self, host: int, question: Question, letter: str, post: Post, letters: Mapping[str, Tensor]
    ) -> Message:
        """A question with the letters of other sites; those of the site's own clients never leave it."""
        own = {self.names[k] for k in self.members[host]}
        foreign = [letters[name] for name in post.senders if name not in own]
        links = {key: torch.from_numpy(getattr(post.links, key)) for key in ("data", "indices", "indptr")}
        tensors = {**under("links", links), **({"letters": torch.stack(foreign)} if foreign else {})}
        mail = {"letter": letter, "receivers": post.receivers, "senders": post.senders}
        return self._question(host, question, tensors, mail=mail)

    # --- private state ------------------------------------------------------------------------------------------------

    def _snapshots(self) -> list[dict[str, Tensor]]:
        """Sites keep their private state under a mark, which the next message names; the checkpoint holds the mark."""
        self.mark += 1
        return [{MARK: torch.tensor([[int(self.run, 16), self.mark]] * len(own))} for own in self.members]

    def _restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        if any(set(state) != {MARK} for state in states):
            raise FedkinError("this checkpoint was made by another engine; its private state is not with the sites")
        number, self.mark = (int(value) for value in states[0][MARK][0])
        self.run = f"{number:014x}"
        self.behind = set(range(len(self.members)))

    def adopt(self, private: Mapping[str, Tensor]) -> None:
        """Let sites begin from the private state they keep of an earlier run, at the mark its last checkpoint holds."""
        if MARK in private:
            number, mark = (int(value) for value in private[MARK][0])
            self.adopted = {"adopt": {"run": f"{number:014x}", "mark": mark}}

    def deploy(
        self, cards: Mapping[str, Mapping[str, Any]], combined: Mapping[str, Mapping[str, Tensor]] | None = None
    ) -> dict[str, str]:
        """Have every site write its clients' models; client → why it has none, for those that failed.

        A model that combines networks is sent as what `Parts.of_client` has of it; others a site has itself.
        """
        messages = {}
        for host, own in enumerate(self.members):
            mine = {self.names[k]: cards[self.names[k]] for k in own if self.names[k] in cards}
            sent = [under(f"combined/{name}", combined[name]) for name in mine] if combined else []
            messages[host] = self._message("deploy", {key: t for each in sent for key, t in each.items()}, cards=mine)
        failed: dict[str, str] = {}
        for host, got in self.call(messages).items():
            try:
                if isinstance(got, str):
                    raise FedkinError(got)
                read_head(Deployed, got)
            except FedkinError as problem:
                failed |= {self.names[k]: str(problem) for k in self.members[host]}
        return failed

    def close(self) -> None:
        """Nothing to let go of: Flower keeps the connections."""


def lacks_frozen(got: Message | str) -> bool:
    """Whether a site refused because it no longer has the frozen part."""
    return isinstance(got, Message) and str(got.head.get("refused", "")).startswith(LACKS_FROZEN)


def _abroad(posts: Mapping[int, Post]) -> dict[int, np.ndarray]:
    """Site → those of its clients (positions within it) whose letters another site waits for."""
    wanted: dict[int, list[np.ndarray]] = {}
    for receiver, post in posts.items():
        for parcel in post.parcels:
            if parcel.sender != receiver:
                wanted.setdefault(parcel.sender, []).append(parcel.ids)
    return {host: np.unique(np.concatenate(ids)) for host, ids in wanted.items()}
