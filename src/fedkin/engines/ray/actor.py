"""A host in a process of its own, as Ray starts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.clients import n_bytes
from fedkin.engines.host import Answer, Host
from fedkin.engines.sharding import Post
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.local.tasks import Request
from fedkin.models import ModelSpec
from fedkin.streams import Streams


class HostActor:
    """A host in a process of its own. Tensors travel as NumPy arrays, which Ray moves without pickling them."""

    def __init__(self, federation: Federation, common: tuple[ModelSpec, Streams]) -> None:
        torch.set_num_threads(1)
        self.host = Host(federation, *common, workers=1)

    def ready(self) -> bool:
        return True

    def answer(
        self, task: str, ids: np.ndarray, per_client: Mapping[str, Any], shared: Mapping[str, Any]
    ) -> Answer | FedkinError:
        return self._answer(task, Request(ids.copy(), tensors(per_client), tensors(shared)))

    def post(self, letter: str, parcels: Sequence[np.ndarray]) -> tuple[Any, ...]:
        """The bytes of one letter, or the names of all others where there is none; then the letters of every parcel."""
        store = self.host.shard.store
        if letter not in store:
            return sorted(store), *(np.zeros(0) for _ in parcels)
        size = n_bytes({"letter": store[letter][:1]})
        return size, *(self.host.outbox(letter, ids.copy()).cpu().numpy() for ids in parcels)

    def deliver(
        self, task: str, ids: np.ndarray, shared: Mapping[str, Any], post: Post, *letters: np.ndarray
    ) -> Answer | FedkinError:
        mail = post.mail([torch.from_numpy(part.copy()) for part in letters])
        return self._answer(task, Request(ids.copy(), {}, tensors(shared), mail))

    def _answer(self, task: str, request: Request) -> Answer | FedkinError:
        try:
            answer = self.host.answer(task, request)
        except FedkinError as problem:
            return problem
        return replace(answer, arrays=arrays(answer.arrays))

    def snapshot(self) -> dict[str, Any]:
        return arrays(self.host.snapshot())

    def restore(self, state: Mapping[str, Any]) -> None:
        self.host.restore(tensors(state))

    def estimators(self) -> dict[str, Any]:
        return self.host.estimators()


def arrays(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.cpu().numpy() if isinstance(value, Tensor) else value for key, value in values.items()}


def tensors(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays from the object store are read-only views of it: copied, because tasks own what they get."""
    return {key: torch.from_numpy(v.copy()) if isinstance(v, np.ndarray) else v for key, v in values.items()}
