"""BlazeFL: its FedAvg on its pool of processes, one per core, with shared memory (its pool of threads was not tried).

A round is what its example's loop does: sample (all), broadcast, train, load into the server. How data are held is the
user's in BlazeFL; here they are tensors in memory, cut into shuffled batches without a DataLoader. It forks a new pool in
every round, so what torch imports with its first step is imported before, once, instead of by every process of every round.
Needs Python 3.12.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import plain_networks
import torch
import work
from blazefl.contrib.fedavg import FedAvgBaseServerHandler, FedAvgProcessPoolClientTrainer
from blazefl.core import IPCMode
from torch import Tensor, nn

JOB = work.read_job(sys.argv[1:])
"""Read once; the processes that BlazeFL forks share it."""


class Networks:
    """BlazeFL asks for a new model by name wherever one is needed."""

    def select_model(self, model_name: str) -> nn.Module:
        return plain_networks.network(model_name, JOB.initial)


class Batches:
    """The samples of a client in shuffled batches."""

    def __init__(self, client: int, batch_size: int, generator: torch.Generator | None) -> None:
        self.dataset, self.batch_size, self.generator = client, batch_size, generator

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = torch.from_numpy(JOB.images[self.dataset]), torch.from_numpy(JOB.labels[self.dataset])
        for batch in torch.randperm(len(labels), generator=self.generator).split(self.batch_size):
            yield images[batch], labels[batch]


class Samples:
    """BlazeFL's partitioned data set, of tensors in memory."""

    def get_dataloader(
        self, type_: str, cid: int, batch_size: int, generator: torch.Generator | None = None
    ) -> Batches:
        return Batches(cid, batch_size, generator)

    def set_dataset(self, type_: str, cid: int, dataset: int) -> None:
        """Nothing was changed that would have to be kept."""


def first_step() -> None:
    """One step of SGD on a made-up sample, so that the forked processes find everything imported."""
    net = plain_networks.network(JOB.model)
    optimiser = torch.optim.SGD(net.parameters(), lr=work.LR)
    nn.functional.cross_entropy(net(torch.zeros(2, *work.SHAPE)), torch.zeros(2, dtype=torch.long)).backward()
    optimiser.zero_grad()
    optimiser.step()


def main() -> None:
    torch.set_num_threads(
        1
    )  # before the processes are forked: one thread each, and none in this one that a fork would lose
    first_step()
    turns = work.Turns(("blazefl", "torch", "numpy"), JOB.initial)
    names, samples = Networks(), Samples()
    server = FedAvgBaseServerHandler(
        names, JOB.model, samples, work.FOREVER, JOB.clients, 1.0, "cpu", work.BATCH, seed=0
    )
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(work.Stop):
        clients = FedAvgProcessPoolClientTrainer(
            model_selector=names,
            model_name=JOB.model,
            share_dir=Path(folder) / "share",
            state_dir=Path(folder) / "state",
            dataset=samples,
            device="cpu",
            num_clients=JOB.clients,
            epochs=1,
            batch_size=work.BATCH,
            lr=work.LR,
            seed=0,
            num_parallels=len(os.sched_getaffinity(0)),
            ipc_mode=IPCMode.SHARED_MEMORY,
        )
        while not server.if_stop():
            turns.begin()
            clients.local_process(server.downlink_package(), server.sample_clients())
            for package in clients.uplink_package():
                server.load(package)
            turns.end(plain_networks.parameters(server.model))


if __name__ == "__main__":
    main()
