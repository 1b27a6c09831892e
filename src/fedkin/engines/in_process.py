"""The default engine: all clients are one shard in this process, trained in stacked form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedkin.clients import carried, n_bytes
from fedkin.engines.asking import Asking, Exchanged
from fedkin.engines.host import Host
from fedkin.federation import Federation
from fedkin.graphs import ClientGraph
from fedkin.local.mail import Mail
from fedkin.local.tasks import Request
from fedkin.models import ModelSpec
from fedkin.streams import Streams


class InProcess(Host, Asking):
    """The `Clients` contract on one machine: one host with everybody in it."""

    def __init__(self, federation: Federation, spec: ModelSpec, streams: Streams, workers: int | None = None) -> None:
        Host.__init__(self, federation, spec, streams, workers)
        Asking.__init__(self, federation.names, federation.train.sizes)

    def _exchange(
        self, letter: str, task: str, request: Request, graph: ClientGraph, padded: bool, senders: np.ndarray
    ) -> Exchanged:
        ids = request.ids
        mail = Mail.along(graph, ids, senders, self.outbox(letter, senders))
        answer = self.answer(task, replace(request, mail=mail))
        size = n_bytes({"letter": mail.letters[:1]})
        return Exchanged(answer.ids, answer.arrays, answer.failed, answer.forgot, carried(graph, ids, senders), size)
