"""pfl (Apple): `FederatedAveraging.run` on its simulated backend, one process per core under torchrun, as its guide says.

A callback waits for the driver between rounds; process 0 talks with it and tells the other. Users' data are tensors in
memory (pfl's fastest form) and its batches are not shuffled; batch-norm statistics are not averaged, only parameters.
"""

from __future__ import annotations

import contextlib
import os
import sys

import plain_networks
import torch
import work
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

FIRST = int(os.environ.get("RANK", "0")) == 0


class Network(nn.Module):
    """What pfl asks of a module: a loss, and metrics (computed in the warm-up round only)."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.train()
        return nn.functional.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(nn.functional.cross_entropy(self.net(x), y, reduction="sum")), len(y))}


class Wait(TrainingProcessCallback):
    def __init__(self, turns: work.Turns | None) -> None:
        self.turns = turns

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.begin()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        if self.turns:
            self.turns.end(plain_networks.parameters(model.pytorch_model))
        self.begin()
        return False, Metrics()

    def begin(self) -> None:
        """Process 0 waits for the driver, the others for process 0."""
        go = torch.ones(1)
        if self.turns:
            try:
                self.turns.begin()
            except work.Stop:
                go.zero_()
        if torch.distributed.is_initialized():
            torch.distributed.broadcast(go, src=0)
        if not go:
            raise work.Stop


def main() -> None:
    job = work.read_job(sys.argv[1:])
    turns = work.Turns(("pfl", "torch", "numpy"), job.initial) if FIRST else None
    module = Network(plain_networks.network(job.model, job.initial))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    users = [Dataset([torch.from_numpy(x), torch.from_numpy(y)]) for x, y in zip(job.images, job.labels)]
    population = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(range(job.clients))))
    rounds = NNAlgorithmParams(
        central_num_iterations=work.FOREVER,
        evaluation_frequency=work.FOREVER,
        train_cohort_size=job.clients,
        val_cohort_size=0,
    )
    local = NNTrainHyperParams(local_batch_size=work.BATCH, local_num_epochs=1, local_learning_rate=work.LR)
    with contextlib.suppress(work.Stop):
        FederatedAveraging().run(
            rounds, SimulatedBackend(population, population), model, local, callbacks=[Wait(turns)]
        )


if __name__ == "__main__":
    main()
