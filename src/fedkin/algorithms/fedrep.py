"""FedRep: learn a common representation; each client first fits its own head to it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import LocalWork, Setting, State
from fedkin.algorithms.fedavg import Counting, counted
from fedkin.algorithms.fedper import FedPer
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, private_columns, training_task
from fedkin.local.terms import Mask
from fedkin.local.training import train_rows
from fedkin.privacy.settings import Planned


class FedRep(FedPer):
    """FedPer with two turns per round: the head alone, then the body alone.

        head_epochs:  head_k ← head_k − γ ∇_head f_k(body, head_k)      body as received
        epochs:       body_k ← body_k − γ ∇_body f_k(body_k, head_k)    head as just found
        body ← mean_S(body_k)

    Clients count alike, as in the paper (its published code, and `weights="size"`, count samples). The head is found as in
    FedPer; `head=[]` with `weights="size"` makes it FedAvg.

    Reference: Collins et al., Exploiting Shared Representations for Personalized Federated Learning, 2021.
    """

    name: ClassVar[str] = "fedrep"
    title: ClassVar[str] = "FedRep"

    epochs: int = Field(1, ge=1, description="passes over the client's data for the body, after the head's turn")
    head_epochs: int = Field(10, ge=0, description="passes over the client's data for the head, before the body's turn")
    weights: Counting = Field("equal", description="clients count alike in the average, as in the paper, or by samples")

    def counts(self, setting: Setting) -> np.ndarray:
        return counted(self.weights, setting)

    def planned(self, rounds: int) -> Planned:
        """The turn of the body, and before it that of the head."""
        body = super().planned(rounds)
        return body.model_copy(update={"epochs": body.epochs + self.head_epochs})

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        return LocalWork(f"{__name__}:fedrep", shared={"head_epochs": self.head_epochs})


@training_task("fedrep")
def head_then_body(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """SGD on the private columns, then SGD on the shared ones."""
    settings, t = Sgd(**request.shared["sgd"]), request.shared["round"]
    columns = private_columns(shard, request)
    n = shard.spec.layout.n_parameters
    head = torch.zeros(n, dtype=rows.dtype) if columns is None else columns[:n].to(rows.dtype)

    def turn(rows: Tensor, settings: Sgd, columns: Tensor, purpose: str) -> tuple[Tensor, Tensor]:
        return train_rows(shard, request.ids, rows, settings, t, [Mask(columns)], counters, purpose)

    if request.shared["head_epochs"] and head.any():
        first = settings.model_copy(update={"epochs": request.shared["head_epochs"], "steps": None})
        rows, _ = turn(rows, first, head, "head")
    trained, loss = turn(rows, settings, 1 - head, "batches")
    return Trained(trained, loss)
