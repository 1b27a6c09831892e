"""FedPer: clients share the body of the network and keep its head."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedkin.algorithm import Deploys, Setting
from fedkin.algorithms.fedavg import FedAvg
from fedkin.errors import unknown
from fedkin.models import Layout


class FedPer(FedAvg):
    """FedAvg over the body; the head never leaves its client. Both are trained together.

        (body, head_k) ← SGD(body, head_k; D_k);   body ← Σ_{k∈S} (n_k / Σ_S n) body_k

    The head is the model's `classifier`, or its last layer if it has no module of that name. A model that is nothing but
    a head (mlr) makes this Local, `head=[]` makes it FedAvg.

    Reference: Arivazhagan et al., Federated Learning with Personalization Layers, 2019.
    """

    name: ClassVar[str] = "fedper"
    title: ClassVar[str] = "FedPer"
    deploys: ClassVar[Deploys] = "trained"

    head: tuple[str, ...] | None = Field(
        None, description="modules that stay with the client (default: classifier, or the last layer)"
    )

    def check(self, setting: Setting) -> None:
        head_of(setting.model.layout, self.head)

    def private(self, setting: Setting) -> tuple[str, ...]:
        return head_of(setting.model.layout, self.head)


def head_of(layout: Layout, modules: tuple[str, ...] | None) -> tuple[str, ...]:
    """The names of the tensors of these modules; None: of `classifier`, or of the last layer where there is none."""
    for module in modules or ():
        if not layout.under([module]):
            found = {slot.name.rpartition(".")[0] for slot in layout.slots}
            parents = {name.split(".")[0] for name in found}
            raise unknown("module of the model for the head", module, sorted((found | parents) - {""}))
    if modules is not None:
        return layout.under(modules)
    return layout.under(["classifier"]) or layout.under([layout.parameters[-1].name.rpartition(".")[0]])
