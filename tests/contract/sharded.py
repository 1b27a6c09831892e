"""An engine for tests: the same contract, with clients spread over several shards that share nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.engines.clients import Replies, Traffic, carried
from fedkin.engines.in_process import InProcess
from fedkin.federation import Federation
from fedkin.graphs import ClientGraph
from fedkin.local.mail import Mail
from fedkin.models import ModelSpec
from fedkin.streams import Streams


class Sharded:
    """Clients dealt out to `count` in-process shards in a scrambled order."""

    def __init__(
        self, federation: Federation, spec: ModelSpec, streams: Streams, workers: int | None, count: int = 3
    ) -> None:
        self.names, self.sizes, self.traffic = federation.names, federation.train.sizes, Traffic()
        order = np.random.default_rng(7).permutation(len(federation))
        self.members = [part for part in np.array_split(order, count) if len(part)]
        self.shards = [InProcess(federation.take(part), spec, streams, 1) for part in self.members]

    def ask(
        self,
        task: str,
        ids: np.ndarray,
        per_client: Mapping[str, Tensor] | None = None,
        shared: Mapping[str, Any] | None = None,
        bill: bool = True,
    ) -> Replies:
        found: dict[int, dict[str, Tensor]] = {}
        failed: dict[str, str] = {}
        for members, shard in zip(self.members, self.shards):
            place = {int(k): i for i, k in enumerate(members)}
            asked = [position for position, k in enumerate(ids) if int(k) in place]
            if not asked:
                continue
            local = np.array([place[int(ids[position])] for position in asked])
            mine = {key: value[asked] for key, value in (per_client or {}).items()}
            replies = shard.ask(task, local, mine, shared, bill)
            failed |= replies.failed
            for row, k in enumerate(replies.ids):
                found[int(members[k])] = {key: value[row] for key, value in replies.arrays.items()}
        good = np.array([int(k) for k in ids if int(k) in found], dtype=np.int64)
        keys = next(iter(found.values())).keys() if found else []
        return Replies(good, {key: torch.stack([found[int(k)][key] for k in good]) for key in keys}, failed)

    def link(self, graph: ClientGraph) -> None:
        self.graph = graph

    def exchange(
        self, letter: str, task: str, ids: np.ndarray, shared: Mapping[str, Any] | None = None, bill: bool = True
    ) -> Replies:
        """Every shard gets the letters that its own clients may read, and no others."""
        posted = self.snapshot()[letter][ids]
        found: dict[int, dict[str, Tensor]] = {}
        failed: dict[str, str] = {}
        for members, shard in zip(self.members, self.shards):
            local = np.array([i for i, k in enumerate(members) if k in ids], dtype=np.int64)
            if not len(local):
                continue
            mail = Mail.along(self.graph, members[local], ids, posted)
            replies = shard.deliver(task, local, mail, shared)
            failed |= replies.failed
            for row, k in enumerate(replies.ids):
                found[int(members[k])] = {key: value[row] for key, value in replies.arrays.items()}
        good = np.array([int(k) for k in ids if int(k) in found], dtype=np.int64)
        keys = next(iter(found.values())).keys() if found else []
        stacked = {key: torch.stack([found[int(k)][key] for k in good]) for key in keys}
        return Replies(good, stacked, failed, carried(self.graph, ids))

    def snapshot(self) -> dict[str, Tensor]:
        parts = [shard.snapshot() for shard in self.shards]
        joined = {}
        for key in parts[0]:
            first = parts[0][key]
            whole = torch.zeros((len(self.names), *first.shape[1:]), dtype=first.dtype)
            for members, part in zip(self.members, parts):
                whole[members] = part[key]
            joined[key] = whole
        return joined

    def restore(self, state: Mapping[str, Tensor]) -> None:
        for members, shard in zip(self.members, self.shards):
            shard.restore({key: value[members] for key, value in state.items()})

    def close(self) -> None:
        for shard in self.shards:
            shard.close()
