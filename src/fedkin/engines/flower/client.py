"""The Flower ClientApp around a site: one message in, one message out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp

from fedkin.engines.flower.line import TYPE, from_record, to_record
from fedkin.engines.flower.site import answer_at
from fedkin.engines.flower.wire import Message
from fedkin.errors import FedkinError

app = ClientApp()


@app.query(TYPE.partition(".")[2])
def answer_message(message: FlowerMessage, context: Context) -> FlowerMessage:
    """Answer the server from this site's own data (node config: site="…/site.toml")."""
    return FlowerMessage(to_record(_answer(message.content, context.node_config)), reply_to=message)


def _answer(content: Any, node_config: Any) -> Message:
    try:
        path = node_config.get("site")
        if not path:
            raise FedkinError("the SuperNode was started without a site; add --node-config 'site=\"…/site.toml\"'")
        return answer_at(Path(str(path)), from_record(content))
    except FedkinError as problem:
        return Message({"refused": str(problem)})
