"""FedBABU: clients train and share the body of the network under a head that never moves, and fine-tune at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import LocalWork, Setting, State
from fedkin.algorithms.fedper import FedPer
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, private_columns, training_task
from fedkin.local.terms import Mask
from fedkin.local.training import train_rows
from fedkin.privacy.settings import Planned


class FedBABU(FedPer):
    """FedAvg over the body alone; the head keeps the common initial weights in all rounds.

        rounds:      body_k ← body_k − γ ∇_body f_k(body_k, head⁰);   body ← Σ_{k∈S} (n_k / Σ_S n) body_k
        fine-tuned:  (body, head) ← SGD(body, head⁰; D_k) for tune_epochs, on each client alone

    *Pre* is the common model with the initial head, *post* the fine-tuned one, which a client deploys; fine-tuning leaves
    no trace in the rounds. The head is found as in FedPer and does not travel; `head=[]` is FedAvg + fine-tuning.
    `tune="head"` or `"body"` fine-tunes one part (the paper compares all three and takes all).

    PFLlib fine-tunes once, after the last round, with the optimiser of the rounds: its curves over rounds are those of the
    model under the initial head.

    Reference: Oh, Kim and Yun, FedBABU: Toward Enhanced Representation for Federated Image Classification, 2022.
    """

    name: ClassVar[str] = "fedbabu"
    title: ClassVar[str] = "FedBABU"

    tune_epochs: int = Field(5, ge=1, description="passes over the client's data to fine-tune")
    tune: Literal["all", "head", "body"] = Field("all", description="what is fine-tuned")

    def planned(self, rounds: int) -> Planned:
        """Fine-tuning may take more epochs than a round."""
        once = super().planned(rounds)
        return once.model_copy(update={"epochs": max(once.epochs, self.tune_epochs)})

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        return LocalWork(f"{__name__}:fedbabu", shared={"part": "body"})

    def for_post(self, state: State) -> Mapping[str, Any]:
        return {"part": self.tune, "sgd": {**self.told(state.round + 1), "epochs": self.tune_epochs, "steps": None}}


@training_task("fedbabu")
def train_part(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """SGD on the body, on the head, or on both."""
    part, n = request.shared["part"], shard.spec.layout.n_parameters
    head = private_columns(shard, request)
    terms = []
    if head is not None and part != "all":
        terms = [Mask((head if part == "head" else ~head)[:n].to(rows.dtype))]
    settings = Sgd(**request.shared["sgd"])
    trained, loss = train_rows(shard, request.ids, rows, settings, request.shared["round"], terms, counters)
    return Trained(trained, loss)
