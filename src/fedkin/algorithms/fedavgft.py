"""FedAvg + fine-tuning: the average, then one more round of local training on every client."""

from __future__ import annotations

from typing import ClassVar

from fedkin.algorithm import Deploys
from fedkin.algorithms.fedavg import FedAvg


class FedAvgFT(FedAvg):
    """FedAvg whose clients deploy the model after local training.

    Trains exactly as FedAvg; only the model a client puts to use differs. It belongs in every comparison: much of what is
    reported as a gain of personalised methods over FedAvg is the difference between testing before and after local
    training.
    """

    name: ClassVar[str] = "fedavgft"
    title: ClassVar[str] = "FedAvg + fine-tuning"
    deploys: ClassVar[Deploys] = "trained"
