"""MOCHA: convex multi-task learning with a fixed relation between tasks, in its primal form."""

from __future__ import annotations

import warnings
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Algorithm, Deploys, LocalWork, Setting, State, place
from fedkin.clients import Replies
from fedkin.errors import FedkinError
from fedkin.local.batches import count_steps
from fedkin.local.kernels.linear import dense_layers
from fedkin.privacy.settings import Level


class Mocha(Algorithm):
    """min_W Σ_k f_k(w_k) + λ tr(WᵀΩW), with Ω = I − 11ᵀ/N, so that tr(WᵀΩW) = Σ_k ‖w_k − w̄‖²: clients stay near their mean.

        client k ∈ S:  w_k ← SGD on f_k(w) + λ Σ_j ‖w_j − w̄‖² with the other clients' rows as last known

    The penalty's gradient in w_k is 2λ (w_k − w̄) = 2λ (1 − 1/N) (w_k − m_k), m_k the mean of the *other* rows: exact at
    every step, because w̄ moves with w_k. λ = 0 is Local. The second penalty λ₂‖W‖² of the paper is `weight_decay` = 2λ₂.
    Up to scale this is FedU on the equal graph (η·a·N = 2λ), but with the pull inside local training. The solver of the
    paper works on the dual of a hinge loss and learns Ω; the comparison in FedU's paper fixes Ω as here. Convex models
    only: one linear layer.

    Shapes: W is (K, B), row k = w_k. Reference: Smith, Chiang, Sanjabi and Talwalkar, Federated Multi-Task Learning, 2017.
    """

    name: ClassVar[str] = "mocha"
    title: ClassVar[str] = "MOCHA"
    protects: ClassVar[tuple[Level, ...]] = ("sample",)
    couples: ClassVar[bool] = False
    deploys: ClassVar[Deploys] = "validated"

    lam: float = Field(
        0.01, ge=0, allow_inf_nan=False, description="strength λ of the pull towards the mean of all clients"
    )

    def check(self, setting: Setting) -> None:
        layers = dense_layers(setting.model.template(), setting.model.layout)
        if layers is None or len(layers) != 1:
            found = "this model has other layers" if layers is None else f"this model has {len(layers)} linear layers"
            raise FedkinError(f"mocha trains convex models only, one linear layer ('mlr' or 'linear'); {found}")
        bound = 2 / self.lr / (2 * (1 - 1 / len(setting))) if len(setting) > 1 else float("inf")
        if self.lam > bound:
            warnings.warn(
                f"mocha: lam = {self.lam:g} is beyond the stable bound {bound:.3g} at lr = {self.lr:g}", stacklevel=2
            )

    def pull(self, setting: Setting) -> float:
        """2λ (1 − 1/N): how strongly a client is pulled towards the mean of the others."""
        return 2 * self.lam * (1 - 1 / len(setting))

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        return LocalWork(
            per_client={"anchor": mean_of_others(state.rows)[torch.as_tensor(ids)]}, shared={"mu": self.pull(setting)}
        )

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        if "influence" in state.arrays:
            state = state.with_arrays(influence=self._influence(state, replies, setting))
        rows = place(state.rows, replies)
        return state.with_arrays(rows=rows).with_log(spread=float((rows - rows.mean(dim=0)).double().square().sum()))

    def _influence(self, state: State, replies: Replies, setting: Setting) -> Tensor:
        """I_k ← (1 − q_k) I_k + q_k · mean of the others, with q_k = 1 − (1 − γμ)^steps; then ‖Δ_k‖ joins the diagonal.

        This is the linear part of s steps w ← w − γ (∇f + μ (w − m_k)), for those who trained.
        """
        ids = torch.as_tensor(replies.ids)
        steps = count_steps(setting.sizes[replies.ids], self.batch_size, self.epochs, self.steps)
        kept = (1 - self.rate(state.round + 1) * self.pull(setting)) ** steps
        stays = torch.as_tensor(kept)[:, None]
        influence = state.arrays["influence"].clone()
        others = mean_of_others(influence)
        influence[ids] = stays * influence[ids] + (1 - stays) * others[ids]
        influence[ids, ids] += replies["moved"].to(influence.dtype)
        return influence


def mean_of_others(rows: Tensor) -> Tensor:
    """Row k: the mean of all rows but k, (K, B); a lone client's is its own.

    >>> mean_of_others(torch.tensor([[0.0], [2.0], [4.0]]))
    tensor([[3.],
            [2.],
            [1.]])
    """
    n = len(rows)
    return rows if n == 1 else (rows.sum(dim=0) - rows) / (n - 1)
