"""Local: every client trains alone. Nothing travels."""

from __future__ import annotations

from typing import Any, ClassVar

from fedkin.algorithm import Algorithm, Setting, State, follow_influence
from fedkin.clients import Replies
from fedkin.couplings import Identity
from fedkin.privacy.settings import Level


class Local(Algorithm):
    """Each client trains on its own data from the common initial weights (also called Separate).

        w_k ← SGD(w_k; D_k)

    The baseline of every comparison: a client *gains* from collaboration if it does better than here.
    """

    name: ClassVar[str] = "local"
    title: ClassVar[str] = "Local"
    protects: ClassVar[tuple[Level, ...]] = ("sample",)
    along_edges: ClassVar[bool] = True

    def private(self, setting: Setting) -> tuple[str, ...]:
        return tuple(slot.name for slot in setting.spec.layout.slots)

    def train(self, *args: Any, **options: Any) -> Replies:
        return super().train(*args, **{**options, "bill": False})

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        return follow_influence(state, replies, Identity(len(setting)))
