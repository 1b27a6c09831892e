"""FedAvg: one model for all, the average of what clients make of it."""

from __future__ import annotations

from typing import ClassVar

from fedkin.algorithm import Algorithm, Setting, State, mix
from fedkin.clients import Replies
from fedkin.couplings import Average


class FedAvg(Algorithm):
    """Federated averaging.

        w_k ← SGD(w; D_k) for k in the cohort S;   w ← Σ_{k∈S} (n_k / Σ_S n) w_k

    Floating-point buffers (batch-norm statistics) are averaged with the same weights.

    Reference: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017.
    """

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    defence: ClassVar[str] = "evidence"

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        private = self.private(setting)
        columns = setting.shared_columns(private) if private else None
        return mix(state, replies, Average(setting.sizes, replies.ids), columns)
