"""Several messages of fedkin in one: a message starts a process, which costs seconds."""

from __future__ import annotations

from collections.abc import Mapping

from fedkin.engines.flower.wire import Message, under


def join(messages: Mapping[str, Message]) -> Message:
    tensors = {key: value for name, m in messages.items() for key, value in under(name, m.tensors).items()}
    return Message({name: m.head for name, m in messages.items()}, tensors)


def split(bundle: Message) -> dict[str, Message]:
    return {name: Message(head, bundle.part(name)) for name, head in bundle.head.items()}
