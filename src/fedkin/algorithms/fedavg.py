"""FedAvg: one model for all, the average of what clients make of it."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Algorithm, Setting, State, mix
from fedkin.clients import Replies
from fedkin.couplings import Average
from fedkin.couplings.server_step import ServerOptimiser, server_step
from fedkin.privacy.settings import Level

Counting = Literal["equal", "size"]
"""How clients count in an average: alike, or by their numbers of samples."""


def counted(weights: Counting, setting: Setting) -> np.ndarray:
    """How much each client counts, (K,)."""
    return np.ones(len(setting)) if weights == "equal" else setting.sizes


class FedAvg(Algorithm):
    """Federated averaging.

        w_k ← SGD(w; D_k) for k in the cohort S;   w ← Σ_{k∈S} (n_k / Σ_S n) w_k

    Floating-point buffers (batch-norm statistics) are averaged with the same weights. With a server optimiser the server
    goes another way along the mean update (`fedkin.couplings.server_step`): FedAvgM, FedAdam, FedYogi, FedAdagrad.

    References: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017; Reddi et
    al., Adaptive Federated Optimization, 2021.
    """

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    protects: ClassVar[tuple[Level, ...]] = ("sample", "client")
    along_edges: ClassVar[bool] = True
    defence: ClassVar[str] = "direction"

    server_optimiser: ServerOptimiser = Field(
        "sgd", description="the server's step along the mean update: sgd, adam (FedAdam), yogi or adagrad"
    )
    server_lr: float = Field(1.0, gt=0, description="rate η of the server's step; try 0.01 for adam, yogi, adagrad")
    server_momentum: float = Field(0.0, ge=0, lt=1, description="momentum β of the server's step (FedAvgM: 0.9)")

    @property
    def averages_plainly(self) -> bool:
        """Whether the server's step ends at the average."""
        return (self.server_optimiser, self.server_lr, self.server_momentum) == ("sgd", 1.0, 0.0)

    def start(self, setting: Setting) -> State:
        state = super().start(setting)
        if self.averages_plainly:
            return state
        zeros = torch.zeros(setting.spec.layout.n_parameters, dtype=setting.spec.dtype)
        return state.with_arrays(server_mean=zeros, server_square=zeros.clone())

    def counts(self, setting: Setting) -> np.ndarray:
        """How much each client counts in the average, (K,)."""
        return setting.sizes

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        private = self.private(setting)
        columns = setting.shared_columns(private) if private else None
        averaged = mix(state, replies, Average(self.counts(setting), replies.ids), columns)
        return averaged if self.averages_plainly else self._stepped(state, averaged, columns)

    def _stepped(self, state: State, averaged: State, columns: Tensor | None) -> State:
        """The server's step towards the average and beyond; running statistics are the average's."""
        moments = state.arrays["server_mean"], state.arrays["server_square"]
        n = len(moments[0])
        before = state.rows[0, :n]
        change = averaged.rows[0, :n] - before
        if columns is not None:
            change = change * columns[:n]
        way, mean, square = server_step(self.server_optimiser, change, *moments, self.server_lr, self.server_momentum)
        rows = averaged.rows.clone()
        rows[:, :n] = before + way if columns is None else torch.where(columns[:n], before + way, rows[:, :n])
        return averaged.with_arrays(rows=rows, server_mean=mean, server_square=square)
