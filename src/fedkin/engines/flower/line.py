"""Line: messages to connected nodes and back. Every wait has an end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from fedkin.engines.flower.wire import Message
from fedkin.errors import FedkinError

POLL_SECONDS = 0.2
TYPE = "query.fedkin"
RECORD = "fedkin"


class Line(Protocol):
    """How the server side reaches nodes."""

    def nodes(self) -> list[int]:
        """The nodes that are connected now."""

    def send(
        self, messages: Mapping[int, Message], limits: Mapping[int, int], timeout: float
    ) -> dict[int, Message | str]:
        """One message per node; its answer, or the reason why there is none. `limits`: bytes an answer may have."""


class GridLine:
    """A line over Flower's grid."""

    def __init__(self, grid: Any) -> None:
        self.grid = grid

    def nodes(self) -> list[int]:
        return sorted(self.grid.get_node_ids())

    def send(
        self, messages: Mapping[int, Message], limits: Mapping[int, int], timeout: float
    ) -> dict[int, Message | str]:
        import flwr.app as fl

        nodes = list(messages)
        sealed = [
            fl.Message(to_record(messages[node]), dst_node_id=node, message_type=TYPE, ttl=timeout) for node in nodes
        ]
        given = list(self.grid.push_messages(sealed))
        waiting = {number: node for number, node in zip(given, nodes) if number}
        found: dict[int, Message | str] = {}
        end = time.monotonic() + timeout
        while waiting and time.monotonic() < end:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    found[node] = _opened(reply, limits[node])
            if waiting:
                time.sleep(POLL_SECONDS)
        late = f"did not answer within {timeout:g} s"
        refused = "Flower did not take the message (too large, or the node has gone)"
        return {node: found.get(node, late if node in waiting.values() else refused) for node in nodes}


def _opened(reply: Any, limit: int) -> Message | str:
    if reply.has_error():
        return f"Flower reports error {reply.error.code}: {reply.error.reason}"
    try:
        return from_record(reply.content, limit)
    except FedkinError as problem:
        return str(problem)


def to_record(message: Message) -> Any:
    import flwr.app as fl

    head, body = message.encode()
    return fl.RecordDict({RECORD: fl.ConfigRecord({"head": head, "body": body})})


def from_record(content: Any, limit: int | None = None) -> Message:
    """Read a record; FedkinError if it is not one of ours."""
    record = content.config_records.get(RECORD) if content is not None else None
    if record is None:
        raise FedkinError("sent something that is no message of fedkin")
    return Message.decode(record.get("head"), record.get("body"), limit)
