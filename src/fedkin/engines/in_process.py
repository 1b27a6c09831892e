"""The default engine: all clients are one shard in this process, trained in stacked form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.engines.clients import Replies, Traffic, n_bytes, set_aside
from fedkin.errors import FedkinError
from fedkin.federation import Federation
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

    def ask(
        self,
        task: str,
        ids: np.ndarray,
        per_client: Mapping[str, Tensor] | None = None,
        shared: Mapping[str, Any] | None = None,
        bill: bool = True,
    ) -> Replies:
        """Run the task on the shard. If it breaks, find out on which clients and set those aside."""
        function = find_task(task)
        per_client, shared = dict(per_client or {}), dict(shared or {})
        for key, value in per_client.items():
            if len(value) != len(ids):
                raise FedkinError(f"task {task!r}: {key!r} has {len(value)} rows for {len(ids)} clients")
        failed: dict[str, str] = {}
        try:
            arrays = function(self.shard, Request(ids, per_client, shared))
        except FedkinError:
            raise
        except Exception as problem:
            ids, arrays, failed = self._one_by_one(task, ids, per_client, shared, problem)
        if bill:
            self.traffic.down += n_bytes(per_client) + n_bytes(shared) * len(ids)
            self.traffic.up += n_bytes(arrays)
            self.traffic.messages += 2 * len(ids)
        return set_aside(self.names, ids, arrays, failed)

    def _one_by_one(
        self, task: str, ids: np.ndarray, per_client: dict[str, Tensor], shared: dict[str, Any], problem: Exception
    ) -> tuple[np.ndarray, dict[str, Tensor], dict[str, str]]:
        """Ask again client by client, to name the ones that fail; if all fail, the fault is not theirs."""
        answers: list[dict[str, Tensor]] = []
        good: list[int] = []
        failed: dict[str, str] = {}
        for position, k in enumerate(ids):
            mine = {key: value[position : position + 1] for key, value in per_client.items()}
            try:
                answers.append(find_task(task)(self.shard, Request(ids[position : position + 1], mine, shared)))
                good.append(int(k))
            except Exception as own:
                failed[self.names[k]] = f"task {task!r} failed: {own}"
        if not good:
            raise FedkinError(
                f"task {task!r} failed on every client, first on {self.names[ids[0]]!r}: {problem}"
            ) from problem
        stacked = {key: torch.cat([answer[key] for answer in answers]) for key in answers[0]}
        return np.array(good), stacked, failed

    def snapshot(self) -> dict[str, Tensor]:
        return dict(self.shard.store)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.shard.store = {name: value.clone() for name, value in state.items()}

    def close(self) -> None:
        self.shard.close()
