"""The default engine: all clients are one shard in this process, trained in stacked form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from fedkin.clients import Replies, Traffic, carried, check_rows, n_bytes, needs_graph, settled
from fedkin.engines.host import Host
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.graphs import ClientGraph
from fedkin.local.mail import Mail
from fedkin.local.tasks import Request
from fedkin.models import ModelSpec
from fedkin.streams import Streams


class InProcess(Host):
    """The `Clients` contract on one machine: one host with everybody in it."""

    def __init__(self, federation: Federation, spec: ModelSpec, streams: Streams, workers: int | None = None) -> None:
        super().__init__(federation, spec, streams, workers)
        self.sizes = federation.train.sizes
        self.traffic = Traffic()
        self.graph: ClientGraph | None = None

    def ask(
        self,
        task: str,
        ids: np.ndarray,
        per_client: Mapping[str, Tensor] | None = None,
        shared: Mapping[str, Any] | None = None,
        bill: bool = True,
    ) -> Replies:
        request = Request(ids, dict(per_client or {}), dict(shared or {}))
        check_rows(task, request)
        answer = self.answer(task, request)
        if bill:
            self.traffic.add(request, answer.ids, answer.arrays)
        return settled(task, self.names, answer.ids, answer.arrays, answer.failed)

    def link(self, graph: ClientGraph) -> None:
        if self.graph is not None:
            raise FedkinError("the clients already know their neighbours; a run has one graph")
        self.graph = graph

    def exchange(
        self, letter: str, task: str, ids: np.ndarray, shared: Mapping[str, Any] | None = None, bill: bool = True
    ) -> Replies:
        graph = needs_graph(task, self.graph)
        mail = Mail.along(graph, ids, ids, self.outbox(letter, ids))
        answer = self.answer(task, Request(ids, {}, dict(shared or {}), mail))
        letters = carried(graph, ids)
        if bill:
            self.traffic.add_letters(letters, n_bytes({"letter": mail.letters[:1]}))
        return replace(settled(task, self.names, answer.ids, answer.arrays, answer.failed), letters=letters)
