"""The client side: every message of the bundle is answered from disk, as in a process of its own."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedkin.engines.flower.line import from_record, to_record
from fedkin.engines.flower.site import answer_at
from together.bundle import join, split

app = ClientApp()


@app.query("fedkin")
def answer(message: Message, context: Context) -> Message:
    site = Path(str(context.node_config["site"]))
    answers = {name: answer_at(site, part) for name, part in split(from_record(message.content)).items()}
    return Message(to_record(join(answers)), reply_to=message)
