"""An engine for checks: the same contract, with clients spread over several hosts that share nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedkin.clients import n_bytes
from fedkin.engines.host import Host
from fedkin.engines.sharding import HostAnswers, Post, Question, Sharded
from fedkin.federation import Federation
from fedkin.local.tasks import Request
from fedkin.models import ModelSpec
from fedkin.streams import Streams


class Scattered(Sharded):
    """Clients dealt out to `count` hosts in this process, in a scrambled order."""

    def __init__(
        self, federation: Federation, spec: ModelSpec, streams: Streams, workers: int | None, count: int = 3
    ) -> None:
        order = np.random.default_rng(7).permutation(len(federation))
        members = [part for part in np.array_split(order, count) if len(part)]
        super().__init__(federation.names, federation.train.sizes, members)
        self.hosts = [Host(federation.take(part), spec, streams, 1) for part in members]

    def _send(self, questions: Mapping[int, Question]) -> HostAnswers:
        return {
            s: self.hosts[s].answer(q.task, Request(q.ids, dict(q.per_client), dict(q.shared)))
            for s, q in questions.items()
        }

    def _deliver(
        self, letter: str, posts: Mapping[int, Post], questions: Mapping[int, Question]
    ) -> tuple[HostAnswers, int]:
        mail = {
            s: post.mail([self.hosts[parcel.sender].outbox(letter, parcel.ids) for parcel in post.parcels])
            for s, post in posts.items()
        }
        said: dict[int, Any] = {
            s: self.hosts[s].answer(q.task, Request(q.ids, {}, dict(q.shared), mail[s])) for s, q in questions.items()
        }
        first = next((m.letters[:1] for m in mail.values() if len(m.letters)), None)
        return said, n_bytes({"letter": first})

    def _snapshots(self) -> list[dict[str, Tensor]]:
        return [host.snapshot() for host in self.hosts]

    def _restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        for host, state in zip(self.hosts, states):
            host.restore(state)

    def estimators(self) -> dict[str, Any]:
        return {name: model for host in self.hosts for name, model in host.estimators().items()}

    def close(self) -> None:
        for host in self.hosts:
            host.close()
