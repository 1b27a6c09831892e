"""Flower: its simulation on Ray with one actor per core, and its FedAvg, which waits for the driver between rounds.

The local loop is the user's in Flower; here it is the plain one on tensors that are already batched, without a
DataLoader, so that what is measured is Flower and PyTorch.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from typing import Any

import plain_networks
import work
from flower_client import client_app
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


class Waiting(FedAvg):
    """FedAvg that begins to configure a round when the driver says so, and reports when it has aggregated."""

    def __init__(self, turns: work.Turns, names: list[str], clients: int) -> None:
        super().__init__(
            fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
        )
        self.turns, self.names = turns, names

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.turns.begin()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[Any, Any]:
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None
        self.turns.end([arrays[name].numpy() for name in self.names])
        return arrays, metrics


def main() -> None:
    job = work.read_job(sys.argv[1:])
    turns = work.Turns(("flwr", "ray", "torch", "numpy"), job.initial)
    net = plain_networks.network(job.model, job.initial)
    strategy = Waiting(turns, [name for name, _ in net.named_parameters()], job.clients)
    server = ServerApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        with contextlib.suppress(work.Stop):
            strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=work.FOREVER)

    run_simulation(
        server,
        client_app(tuple(sys.argv[1:])),
        job.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": len(os.sched_getaffinity(0))},
        },
    )


if __name__ == "__main__":
    main()
