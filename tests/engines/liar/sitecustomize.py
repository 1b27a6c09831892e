"""A site whose operator changed the program: imported by every Python that is started with this folder on its path.

In round t of training it answers with the t-th lie; after the last it is honest again.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any


class Bomb:
    """A pickle that makes a folder when it is read."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def bomb(path: str) -> bytes:
    return pickle.dumps(Bomb(path))


def lie() -> None:
    import flwr.app as fl
    import torch

    from fedkin.engines.flower import client
    from fedkin.engines.flower.line import RECORD, from_record, to_record
    from fedkin.engines.flower.wire import Message

    honest, path = client._answer, os.environ["BOMB"]

    class Raw(Message):
        def encode(self) -> tuple[str, bytes]:
            return '{"answered": []}', bomb(path)

    class Arrays(Message):
        """Not even a message: an array of Flower's, which a careless server would load with pickle."""

    def changed(reply: Message, **arrays: torch.Tensor) -> Message:
        return Message(reply.head, {**reply.tensors, **{f"array/{key}": value for key, value in arrays.items()}})

    def answer(content: Any, node_config: Any) -> Message:
        asked, reply = from_record(content), honest(content, node_config)
        if asked.head.get("task") != "train" or not asked.head["shared"].get("commit", True):
            return reply
        rows = reply.tensors["array/rows"]
        lies = {
            1: lambda: changed(reply, rows=rows * torch.nan),
            2: lambda: changed(reply, rows=rows[:, :3].clone()),
            3: lambda: changed(reply, extra=torch.zeros((len(rows), 2**23 // len(rows)), dtype=torch.float64)),
            4: Raw,
            5: Arrays,
        }
        return lies.get(asked.head["shared"]["round"], lambda: reply)()

    def sealed(message: Message) -> Any:
        if isinstance(message, Arrays):
            array = fl.Array(dtype="object", shape=(1,), stype="numpy.ndarray", data=bomb(path))
            return fl.RecordDict({RECORD: fl.ArrayRecord({"rows": array})})
        return to_record(message)

    client._answer, client.to_record = answer, sealed


if any(word.endswith("flwr-clientapp") for word in sys.orig_argv):
    lie()
