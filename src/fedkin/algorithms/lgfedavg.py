"""LG-FedAvg: clients keep the body of the network and share its head: local representations, one common reading of them."""

from __future__ import annotations

from typing import ClassVar

from fedkin.algorithm import Setting
from fedkin.algorithms.fedper import FedPer


class LGFedAvg(FedPer):
    """FedAvg over the head; the body never leaves its client. FedPer the other way round.

        (body_k, head) ← SGD(body_k, head; D_k);   head ← Σ_{k∈S} (n_k / Σ_S n) head_k

    Heads are small, so a round costs a fraction of FedAvg's bytes. The head is found as in FedPer. A model that is nothing
    but a head (mlr) makes this FedAvg, `head=[]` makes it Local.

    Published code starts from a model that FedAvg trained before, keeps for every client the model of the round with its
    best test accuracy, and tests an ensemble of them; here all bodies start at the common initial weights.

    Reference: Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, 2020.
    """

    name: ClassVar[str] = "lgfedavg"
    title: ClassVar[str] = "LG-FedAvg"

    def private(self, setting: Setting) -> tuple[str, ...]:
        head = super().private(setting)
        return tuple(slot.name for slot in setting.spec.layout.slots if slot.name not in head)
