"""HalfWay: every client goes a share of the way from its own model to the average."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from fedkin.algorithm import Algorithm, Setting, State, mix
from fedkin.clients import Replies
from fedkin.couplings import Mixing


class HalfWay(Algorithm):
    """w_k ← (1 − a) ŵ_k + a Σ_l n_l ŵ_l / n, with ŵ_k the model client k has trained and a the share.

    a = 1 is FedAvg, a = 0 leaves every client alone.
    """

    name: ClassVar[str] = "half-way"
    title: ClassVar[str] = "Half way"

    share: float = Field(0.5, ge=0, le=1, description="share of the way to the average")

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        sizes, own = setting.sizes[replies.ids], np.eye(len(replies))
        weights = (1 - self.share) * own + self.share * sizes / sizes.sum()
        return mix(state, replies, Mixing(weights, len(setting), replies.ids))
