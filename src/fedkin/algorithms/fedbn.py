"""FedBN: FedAvg over everything except batch norm, which stays with each client."""

from __future__ import annotations

from typing import ClassVar

from fedkin.algorithm import Setting
from fedkin.algorithms.fedavg import FedAvg


class FedBN(FedAvg):
    """FedAvg whose clients keep their batch-norm weights, biases and running statistics to themselves.

    Batch norm is found by module type, not by name. Without batch-norm layers it is FedAvg.

    Reference: Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, 2021.
    """

    name: ClassVar[str] = "fedbn"
    title: ClassVar[str] = "FedBN"

    def private(self, setting: Setting) -> tuple[str, ...]:
        return setting.spec.layout.norms
