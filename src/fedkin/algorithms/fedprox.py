"""FedProx: FedAvg with a pull back to the global model during local training."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from fedkin.algorithm import LocalWork, Setting, State
from fedkin.algorithms.fedavg import FedAvg


class FedProx(FedAvg):
    """FedAvg whose clients minimise f_k(v) + (μ/2)‖v − w‖², w the model just received.

        v ← v − γ (∇f_k(v) + μ (v − w));   w ← Σ_{k∈S} (n_k / Σ_S n) v_k

    μ = 0 is FedAvg. The authors try μ in 0.001, 0.01, 0.1, 0.5, 1.

    Reference: Li et al., Federated Optimization in Heterogeneous Networks, 2020.
    """

    name: ClassVar[str] = "fedprox"
    title: ClassVar[str] = "FedProx"

    mu: float = Field(0.01, ge=0, description="strength μ of the pull towards the received model")

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        return LocalWork(shared={"mu": self.mu})
