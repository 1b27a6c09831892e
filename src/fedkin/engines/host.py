"""Host: the clients that live in one process, answering what the server side asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.clients import UNSET
from fedkin.compute.placement import on_device
from fedkin.errors import FedkinError, Forgot, unknown
from fedkin.federation import Federation
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, find_task
from fedkin.models import ModelSpec
from fedkin.streams import Streams


@dataclass(frozen=True)
class Answer:
    """What the clients of one host have to say to a question."""

    ids: np.ndarray
    """Positions, within the host, of the clients that answered, in the order they were asked."""
    arrays: dict[str, Tensor] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Client name → why it has no answer."""
    forgot: tuple[str, ...] = ()
    """Names of clients whose process no longer holds what the task works on: they must be told again."""


class Host:
    """A shard and the way questions are put to it. Every engine has one per process that holds clients."""

    def __init__(self, federation: Federation, spec: ModelSpec, streams: Streams, workers: int | None = None) -> None:
        self.placement = spec.placement
        self.afar = None if spec.placement.on_host else spec.placement.device
        """The device that questions are brought to, where it is not this processor."""
        with self.placement.here():
            self.shard = Shard(federation, spec, streams, workers)
        self.names = federation.names

    def answer(self, task: str, request: Request) -> Answer:
        """Do the task. If it breaks, it is done again client by client, so that those who fail are named."""
        function = find_task(task)
        if self.afar is not None:
            per_client, shared = on_device(request.per_client, self.afar), on_device(request.shared, self.afar)
            mail = request.mail and replace(request.mail, letters=request.mail.letters.to(self.afar))
            request = replace(request, per_client=per_client, shared=shared, mail=mail)
        try:
            with self.placement.here():
                return Answer(request.ids, function(self.shard, request))
        except FedkinError:
            raise
        except Forgot:
            return Answer(request.ids[:0], forgot=tuple(self.names[k] for k in request.ids))
        except Exception as problem:
            if len(request.ids) == 1:
                return Answer(request.ids[:0], {}, {self.names[request.ids[0]]: _failure(task, problem)})
            return self._one_by_one(task, request)

    def _one_by_one(self, task: str, request: Request) -> Answer:
        answers: list[dict[str, Tensor]] = []
        good: list[int] = []
        failed: dict[str, str] = {}
        for position, k in enumerate(request.ids):
            try:
                with self.placement.here():
                    answers.append(find_task(task)(self.shard, request.only(position)))
                good.append(int(k))
            except Exception as problem:
                failed[self.names[k]] = _failure(task, problem)
        keys = answers[0] if answers else {}
        stacked = {key: torch.cat([answer[key] for answer in answers]) for key in keys}
        return Answer(np.array(good, dtype=np.int64), stacked, failed)

    def outbox(self, letter: str, ids: np.ndarray) -> Tensor:
        """Copies of the private state that clients are about to send, (k, …)."""
        if letter not in self.shard.store:
            raise unknown("private state of the clients", letter, sorted(self.shard.store))
        return self.shard.store[letter][torch.as_tensor(ids)]

    def snapshot(self) -> dict[str, Tensor]:
        """The clients' private state, name → (clients, …), on the CPU."""
        state = {**self.shard.store, **{name + UNSET: mask for name, mask in self.shard.unset.items()}}
        return {name: value.cpu() for name, value in state.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Put private state back; what was made from it is made again when it is needed."""
        device = torch.device(self.placement.device)
        copies = {name: value.to(device, copy=True) for name, value in state.items()}
        self.shard.unset = {name.removesuffix(UNSET): copies.pop(name) for name in state if name.endswith(UNSET)}
        self.shard.store = copies
        self.shard.objects.clear()

    def estimators(self) -> dict[str, Any]:
        """Fitted estimators by client."""
        found: dict[str, Any] = {}
        for held in self.shard.objects.values():
            found |= held.models() if hasattr(held, "models") else {}
        return found

    def close(self) -> None:
        self.shard.close()


def _failure(task: str, problem: Exception) -> str:
    return f"task {task!r} failed: {problem}"
