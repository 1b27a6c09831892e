"""Attacked: the clients of a run, some of whom do not send what they trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.attacks.behaviour import Attack, Sight
from fedkin.clients import Alike, Clients, Replies, Stacked, Traffic, set_aside
from fedkin.graphs import ClientGraph
from fedkin.streams import Streams, client_keys

PRIVATE = "private"


class Attacked:
    """`Clients` around those of any engine: what attackers send is altered on its way, what they receive is not.

    They also lie when asked how well others' models do: good is said to be bad. Letters past the server (dFedU) are altered
    as replies are; `initial` (B,) is the row everybody begins with.
    """

    def __init__(
        self, clients: Clients, attack: Attack, hostile: np.ndarray, streams: Streams, initial: Tensor
    ) -> None:
        self.clients, self.attack, self.streams, self.initial = clients, attack, streams, initial
        self.names, self.sizes, self.keys = clients.names, clients.sizes, client_keys(clients.names)
        self.hostile = np.isin(np.arange(len(self.names)), hostile)
        self.sent: Tensor | None = None
        """Everybody's private rows after the last exchange, (K, B)."""
        self.round = 0

    @property
    def traffic(self) -> Traffic:
        return self.clients.traffic

    @traffic.setter
    def traffic(self, traffic: Traffic) -> None:
        self.clients.traffic = traffic

    def ask(
        self, task: str, ids: np.ndarray, per_client: Stacked = None, shared: Alike = None, bill: bool = True
    ) -> Replies:
        replies = self.clients.ask(task, ids, per_client, shared, bill)
        bad = self.hostile[replies.ids]
        if self.attack.send is None or not bad.any():
            return replies
        if "transfer" in replies.arrays:
            told = replies["transfer"].clone()
            told[bad] = told[bad].max(dim=1, keepdim=True).values - told[bad]
            return replace(replies, arrays={**replies.arrays, "transfer": told})
        rows = replies.arrays.get("rows")
        if rows is None or not rows.shape[1] or not (shared or {}).get("commit", True):
            return replies
        self.round = int((shared or {}).get("round", self.round + 1))
        began = self._began(replies, ids, per_client or {})
        sent = self._altered(began, rows, replies.ids)
        arrays = {**replies.arrays, "rows": sent}
        if "moved" in arrays:
            moved = (sent - began).double().norm(dim=1)
            arrays["moved"] = torch.where(torch.from_numpy(bad), moved.to(arrays["moved"].dtype), arrays["moved"])
        return set_aside(self.names, replies.ids, arrays, replies.failed)

    def _began(self, replies: Replies, ids: np.ndarray, per_client: Mapping[str, Tensor]) -> Tensor:
        """The rows that those who answered began at, as far as the server told them; else the mean of what came back."""
        rows = replies["rows"]
        given = per_client.get("rows")
        if given is None or given.shape[1] != rows.shape[1]:
            return rows.mean(dim=0).expand_as(rows)
        place = {int(k): at for at, k in enumerate(ids)}
        return given[[place[int(k)] for k in replies.ids]].to(rows.dtype)

    def _altered(self, began: Tensor, trained: Tensor, ids: np.ndarray) -> Tensor:
        """The trained rows (k, B), those of attackers as the attack has them."""
        assert self.attack.send is not None
        bad = torch.from_numpy(self.hostile[ids])

        def noise() -> Tensor:
            drawn = [
                self.streams.generator("attack", self.names[k], str(self.round)).standard_normal(trained.shape[1])
                for k in ids[self.hostile[ids]]
            ]
            return torch.from_numpy(np.stack(drawn)).to(trained.dtype)

        sight = Sight(began[bad], trained[bad], began[~bad], trained[~bad], noise)
        sent = trained.clone()
        sent[bad] = self.attack.send(sight)
        return sent

    def exchange(
        self, letter: str, task: str, ids: np.ndarray, shared: Alike = None, *how: Any, **more: Any
    ) -> Replies:
        if self.attack.send is None or letter != PRIVATE or not self.hostile[ids].any():
            return self.clients.exchange(letter, task, ids, shared, *how, **more)
        self.round = int((shared or {}).get("round", self.round + 1))
        held = self.clients.snapshot()
        own = held[PRIVATE].clone()
        began = self.initial.to(own.dtype).expand_as(own) if self.sent is None else self.sent
        lies, at = own.clone(), torch.from_numpy(ids)
        lies[at] = self._altered(began[at], own[at], ids)
        self.clients.restore({**held, PRIVATE: lies})
        replies = self.clients.exchange(letter, task, ids, shared, *how, **more)
        held = self.clients.snapshot()
        after = held[PRIVATE].clone()
        after[torch.from_numpy(self.hostile)] = own[torch.from_numpy(self.hostile)]  # attackers keep what they trained
        self.clients.restore({**held, PRIVATE: after})
        self.sent = after
        return replies

    def link(self, graph: ClientGraph) -> None:
        self.clients.link(graph)

    def remember(self, recipe: Callable[[], Any]) -> None:
        self.clients.remember(recipe)

    def snapshot(self) -> dict[str, Tensor]:
        return self.clients.snapshot()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.clients.restore(state)

    def estimators(self) -> dict[str, Any]:
        return self.clients.estimators()

    def close(self) -> None:
        self.clients.close()
