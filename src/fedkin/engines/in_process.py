"""The default engine: all clients are one shard in this process, trained in stacked form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.engines.clients import Replies, Traffic, carried, n_bytes, set_aside
from fedkin.errors import FedkinError, unknown
from fedkin.federation import Federation
from fedkin.graphs import ClientGraph
from fedkin.local.mail import Mail
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, find_task
from fedkin.models import ModelSpec
from fedkin.streams import Streams


class InProcess:
    """The `Clients` contract on one machine."""

    def __init__(self, federation: Federation, spec: ModelSpec, streams: Streams, workers: int | None = None) -> None:
        self.shard = Shard(federation, spec, streams, workers)
        self.names = federation.names
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
        per_client, shared = dict(per_client or {}), dict(shared or {})
        for key, value in per_client.items():
            if len(value) != len(ids):
                raise FedkinError(f"task {task!r}: {key!r} has {len(value)} rows for {len(ids)} clients")
        ids, arrays, failed = self._answers(task, Request(ids, per_client, shared))
        if bill:
            self.traffic.down += n_bytes(per_client) + n_bytes(shared) * len(ids)
            self.traffic.up += n_bytes(arrays)
            self.traffic.messages += 2 * len(ids)
        return set_aside(self.names, ids, arrays, failed)

    def link(self, graph: ClientGraph) -> None:
        if self.graph is not None:
            raise FedkinError("the clients already know their neighbours; a run has one graph")
        self.graph = graph

    def exchange(
        self, letter: str, task: str, ids: np.ndarray, shared: Mapping[str, Any] | None = None, bill: bool = True
    ) -> Replies:
        if self.graph is None:
            raise FedkinError(f"task {task!r} needs neighbours, but the clients have no graph; give one")
        mail = Mail.along(self.graph, ids, ids, self.outbox(letter, ids))
        replies, letters = self.deliver(task, ids, mail, shared), carried(self.graph, ids)
        if bill:
            self.traffic.peers += int(letters.sum()) * n_bytes({"letter": mail.letters[:1]})
            self.traffic.messages += int(letters.sum())
        return replace(replies, letters=letters)

    def outbox(self, letter: str, ids: np.ndarray) -> Tensor:
        """Copies of the private state that clients are about to send, (k, …)."""
        if letter not in self.shard.store:
            raise unknown("private state of the clients", letter, sorted(self.shard.store))
        return self.shard.store[letter][torch.from_numpy(ids)]

    def deliver(self, task: str, ids: np.ndarray, mail: Mail, shared: Mapping[str, Any] | None = None) -> Replies:
        """Have clients do a task with the letters they got."""
        ids, arrays, failed = self._answers(task, Request(ids, {}, dict(shared or {}), mail))
        return set_aside(self.names, ids, arrays, failed)

    def _answers(self, task: str, request: Request) -> tuple[np.ndarray, dict[str, Tensor], dict[str, str]]:
        """Run the task on the shard. If it breaks, find out on which clients and set those aside."""
        function = find_task(task)
        try:
            return request.ids, function(self.shard, request), {}
        except FedkinError:
            raise
        except Exception as problem:
            return self._one_by_one(task, request, problem)

    def _one_by_one(
        self, task: str, request: Request, problem: Exception
    ) -> tuple[np.ndarray, dict[str, Tensor], dict[str, str]]:
        """Ask again client by client, to name the ones that fail; if all fail, the fault is not theirs."""
        answers: list[dict[str, Tensor]] = []
        good: list[int] = []
        failed: dict[str, str] = {}
        for position, k in enumerate(request.ids):
            try:
                answers.append(find_task(task)(self.shard, request.only(position)))
                good.append(int(k))
            except Exception as own:
                failed[self.names[k]] = f"task {task!r} failed: {own}"
        if not good:
            raise FedkinError(
                f"task {task!r} failed on every client, first on {self.names[request.ids[0]]!r}: {problem}"
            ) from problem
        stacked = {key: torch.cat([answer[key] for answer in answers]) for key in answers[0]}
        return np.array(good), stacked, failed

    def snapshot(self) -> dict[str, Tensor]:
        return dict(self.shard.store)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.shard.store = {name: value.clone() for name, value in state.items()}
        self.shard.objects.clear()

    def estimators(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for held in self.shard.objects.values():
            found |= held.models() if hasattr(held, "models") else {}
        return found

    def close(self) -> None:
        self.shard.close()
