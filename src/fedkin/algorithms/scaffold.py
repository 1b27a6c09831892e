"""SCAFFOLD: FedAvg with control variates against client drift."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Algorithm, LocalWork, Setting, State, mix, stretched
from fedkin.clients import Replies
from fedkin.couplings import Average
from fedkin.local.batches import count_steps
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, narrowed, training_task, widened
from fedkin.local.terms import Shift
from fedkin.local.training import train_rows
from fedkin.privacy.settings import Level


class Scaffold(Algorithm):
    """Each local step is corrected by what all clients do (c) minus what this client does (c_k), option II.

        v ← v − γ (∇f_k(v) − c_k + c)            s local steps from v = w
        c_k⁺ = c_k − c + (w − v) / (s γ)          s counts all local steps of the round
        w ← w + γ_g mean_S(v − w);   c ← c + (|S|/K) mean_S(c_k⁺ − c_k)

    All controls start at zero and cover trainable parameters only, never batch-norm buffers. c_k lives with the client,
    c on the server; both travel, so a round costs twice FedAvg's bytes. With one client it is SGD. It diverges easily
    when clients make very different numbers of steps: set `steps` rather than `epochs` for uneven clients.

    Reference: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, 2020.
    """

    name: ClassVar[str] = "scaffold"
    title: ClassVar[str] = "SCAFFOLD"
    protects: ClassVar[tuple[Level, ...]] = ("sample",)

    momentum: float = Field(0.0, ge=0, le=0, description="must be 0: controls are read from the way of plain steps")
    optimiser: Literal["sgd"] = Field("sgd", description="must be sgd, as momentum must be 0")
    global_lr: float = Field(1.0, gt=0, description="step size γ_g of the server")

    def start(self, setting: Setting) -> State:
        control = torch.zeros(setting.spec.layout.n_parameters, dtype=setting.spec.dtype)
        return super().start(setting).with_arrays(control=control)

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        return LocalWork(f"{__name__}:scaffold", shared={"control": state.arrays["control"]})

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        control = state.arrays["control"] + replies["control_change"].sum(dim=0) / len(setting)
        trained = stretched(state, replies, self.global_lr, setting)
        coupling = Average(np.ones(len(setting)), replies.ids)
        return mix(state, replies, coupling, trained=trained).with_arrays(control=control)


@training_task("scaffold")
def controlled_training(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """SGD with every gradient shifted by c − c_k, then the client's new control."""
    settings, t = Sgd(**request.shared["sgd"]), request.shared["round"]
    n = shard.spec.layout.n_parameters
    common: Tensor = request.shared["control"].to(rows.dtype)
    own = shard.private("control", lambda: torch.zeros_like(common))[request.ids]
    shift = widened(shard, request, common - own, rows.new_zeros((1, n)))  # what stays at home goes its own way
    trained, loss = train_rows(shard, request.ids, rows, settings, t, [Shift(shift)], counters)
    steps = count_steps(shard.train.sizes[request.ids], settings.batch_size, settings.epochs, settings.steps)
    way = torch.as_tensor(steps).to(rows.dtype)[:, None] * settings.rate(t)
    change = narrowed(shard, request, (rows - trained)[:, :n]) / way - common
    return Trained(trained, loss, keep={"control": own + change}, extra={"control_change": change})
