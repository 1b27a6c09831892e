"""fluke: its FedAVG on clients with its fast loader, everything in memory, no evaluation; an observer waits between rounds.

fluke imports torchvision for data sets and networks that are not used here, and there is no build of it beside every
build of torch. So it is not installed: the names fluke imports are stood in for, and none of them is ever called.
"""

from __future__ import annotations

import contextlib
import sys
import types

import plain_networks
import torch
import torchmetrics  # noqa: F401  looks for torchvision when imported, so before the stand-in
import work


class _StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for _name in ("", ".models", ".datasets", ".datasets.utils", ".transforms"):
    sys.modules[f"torchvision{_name}"] = _StandIn(f"torchvision{_name}")

from fluke import FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.client import Client  # noqa: E402
from fluke.config import OptimizerConfigurator  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.server import Server  # noqa: E402
from fluke.utils import FederationObserver  # noqa: E402


class Wait(FederationObserver):
    def __init__(self, turns: work.Turns, server: Server) -> None:
        self.turns, self.server = turns, server

    def start_round(self, round: int, global_model: torch.nn.Module) -> None:
        self.turns.begin()

    def end_round(self, round: int) -> None:
        self.turns.end(plain_networks.parameters(self.server.model))


def main() -> None:
    job = work.read_job(sys.argv[1:])
    turns = work.Turns(("fluke-fl", "torch", "numpy"), job.initial)
    environment = FlukeENV()
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    sgd = OptimizerConfigurator({"name": "SGD", "lr": work.LR})
    clients = [
        Client(
            index=k,
            train_set=FastDataLoader(
                torch.from_numpy(job.images[k]),
                torch.from_numpy(job.labels[k]),
                num_labels=work.CLASSES,
                batch_size=work.BATCH,
                shuffle=True,
            ),
            test_set=None,
            optimizer_cfg=sgd,
            loss_fn=torch.nn.CrossEntropyLoss(),
            local_epochs=1,
        )
        for k in range(job.clients)
    ]
    server = Server(plain_networks.network(job.model, job.initial), None, clients, weighted=True)
    federation = FedAVG(job.clients, None, None, clients=clients, server=server)
    federation.set_callbacks(Wait(turns, server))
    with contextlib.suppress(work.Stop):
        federation.run(work.FOREVER, 1)


if __name__ == "__main__":
    main()
