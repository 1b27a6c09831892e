"""What a Flower client does in a round, in a module of its own so that Ray's actors can import it."""

from __future__ import annotations

from functools import cache

import plain_networks
import torch
import work
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp


@cache
def job(arguments: tuple[str, ...]) -> work.Job:
    """An actor reads its job once; samples stay in the memory all processes share."""
    return work.read_job(list(arguments))


def client_app(arguments: tuple[str, ...]) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, _, all_images, all_labels, _ = job(arguments)
        k = int(context.node_config["partition-id"])
        net = plain_networks.network(model)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(net.parameters(), lr=work.LR)
        images, labels = torch.from_numpy(all_images[k]), torch.from_numpy(all_labels[k])
        for batch in torch.randperm(work.SAMPLES).split(work.BATCH):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimiser.step()
        metrics = MetricRecord({"num-examples": work.SAMPLES})
        reply = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
        return Message(content=reply, reply_to=message)

    return app
