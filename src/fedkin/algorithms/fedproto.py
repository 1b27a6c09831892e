"""FedProto: models stay at home; clients share the mean feature of each class, and train towards everybody's."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Algorithm, Deploys, LocalWork, Setting, State
from fedkin.algorithms._linear_head import linear_head
from fedkin.clients import Replies
from fedkin.errors import FedkinError
from fedkin.local.features import part_features, taps, train_guided
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, training_task
from fedkin.models.cut import cut


class FedProto(Algorithm):
    """Prototypes instead of parameters: c_kj is the mean feature h of client k's samples of class j.

        client:  SGD on ℓ + λ ‖h_i − c_{y_i}‖²/d for its own model,   then  c_kj = mean{h_i : y_i = j} by the trained one
        server:  c_j = Σ_k n_kj c_kj / Σ_k n_kj                       over the clients of the round that hold class j
        deploy:  argmin_j ‖h − c_j‖²

    A class without a prototype has no penalty and is never predicted. −‖h − c_j‖² is linear in h up to a constant, so the
    deployed model is the client's network with head 2c_j, −‖c_j‖²; `predict="head"` deploys its own head. *Pre* has the
    own head. Nothing but prototypes and class counts travels: C·d numbers each way. All models have one architecture here,
    though the method needs only equal d. λ = 0 with `predict="head"` is Local. A network with the layer `features` before a
    linear head is needed, and classes.

    PFLlib, and the authors' code that it follows (yuetan031/FedProto), averages prototypes without counts (the paper's formula
    divides by both n_j and the number of clients); PFLlib first collected them over the batches of training, while the
    model moves.

    Reference: Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, 2022.
    """

    name: ClassVar[str] = "fedproto"
    title: ClassVar[str] = "FedProto"
    couples: ClassVar[bool] = False
    deploys: ClassVar[Deploys] = "trained"

    lam: float = Field(1.0, ge=0, description="strength λ of the pull of features towards the prototypes")
    predict: Literal["prototypes", "head"] = Field(
        "prototypes", description="deploy the nearest prototype, or the head"
    )
    features: str = Field("features", description="the layer before the head, whose output is the feature")

    def check(self, setting: Setting) -> None:
        if not setting.task.classes:
            raise FedkinError("fedproto has a prototype for each class, but this task has none; choose another method")
        size, head = cut(setting.model, setting.task, self.features).size, linear_head(setting.model, self.name)
        if size != head.weight.shape[1]:
            raise FedkinError(f"features = {self.features!r}: the head reads another layer; choose the one before it")

    def private(self, setting: Setting) -> tuple[str, ...]:
        return tuple(slot.name for slot in setting.spec.layout.slots)

    def start(self, setting: Setting) -> State:
        size = cut(setting.model, setting.task, self.features).size
        prototypes = torch.zeros((setting.task.outputs, size), dtype=setting.spec.dtype)
        known = torch.zeros(setting.task.outputs, dtype=torch.bool)
        return super().start(setting).with_arrays(prototypes=prototypes, known=known)

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        shared = {name: state.arrays[name] for name in ("prototypes", "known")}
        own = {"lam": self.lam, "layer": self.features, "predict": self.predict}
        return LocalWork(f"{__name__}:fedproto", shared={**shared, **own})

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        counts = replies["class_counts"].to(setting.spec.dtype)
        total = counts.sum(dim=0)
        mean = torch.einsum("kc,kcd->cd", counts / total.clamp(min=1), replies["class_means"])
        heard = total > 0
        prototypes = torch.where(heard[:, None], mean, state.arrays["prototypes"])
        known = state.arrays["known"] | heard
        state = state.with_arrays(prototypes=prototypes, known=known)
        arrays = {name: value for name, value in state.arrays.items() if name != "influence"}  # no rows are mixed
        return State(state.round, arrays, state.values, state.log, changed=state.changed, watched=state.watched)


def distance(features: Tensor, guides: Tensor) -> Tensor:
    """‖h − c‖²/d of each pair, (…, d) → (…,); 0 where the guide is NaN: a class nobody told of."""
    known = guides.isnan().logical_not()
    return (known * (features - guides.nan_to_num()).square()).mean(dim=-1)


@training_task("fedproto")
def train_towards(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """Training with features pulled to their class's prototype, and the trained model's own class means."""
    ids, shared = request.ids, request.shared
    tap, known = taps(shard, shared["layer"], shared["lam"], distance), shared["known"]
    prototypes = torch.where(known[:, None], shared["prototypes"].to(rows.dtype), torch.nan)
    guides = prototypes.expand(len(ids), *prototypes.shape)
    settings, t = Sgd(**shared["sgd"]), shared["round"]
    trained, loss = train_guided(shard, ids, rows, settings, t, tap, guides, "class", counters)
    counts = [torch.bincount(shard.train.targets(int(k)), minlength=shard.task.outputs) for k in ids]
    means = part_features(shard, ids, trained, tap, "class")["parts"]
    told = {"class_means": means, "class_counts": torch.stack(counts)}
    if shared["predict"] == "head" or not known.any():
        return Trained(trained, loss, extra=told)
    head, personal = linear_head(shard.spec, "fedproto"), trained.clone()
    centres = prototypes.nan_to_num()
    personal[:, head.weight.start : head.weight.stop] = 2 * centres.reshape(-1)
    personal[:, head.biases] = torch.where(known, -centres.square().sum(dim=1), -1e4)
    return Trained(trained, loss, personal=personal, rebuilt=True, extra=told)
