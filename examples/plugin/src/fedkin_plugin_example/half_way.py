"""HalfWay: every client goes a share of the way from its own model to the average."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from fedkin.algorithm import Algorithm, Setting, State, place
from fedkin.clients import Replies
from fedkin.couplings import Average


class HalfWay(Algorithm):
    """w_k ← (1 − a) ŵ_k + a Σ_l n_l ŵ_l / n, with ŵ_k the model client k has trained and a the share.

    a = 1 is FedAvg, a = 0 leaves every client alone.
    """

    name: ClassVar[str] = "half-way"
    title: ClassVar[str] = "Half way"

    share: float = Field(0.5, ge=0, le=1, description="share of the way to the average")

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        trained = place(state.rows, replies)
        average = Average(setting.sizes, replies.ids).apply(trained)
        return state.with_arrays(rows=torch.lerp(trained, average, self.share))
