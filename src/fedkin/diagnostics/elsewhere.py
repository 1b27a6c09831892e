"""How models do on what their own client does not have: the union of all test sets, round after round (FedPnP, figure 8)."""

from __future__ import annotations

import numpy as np

from fedkin.errors import FedkinError
from fedkin.result.history import Record
from fedkin.run import Callback, Run
from fedkin.run.deployed import on_global_test, whole_models


class GlobalTest(Callback):
    """Give it to `train(callbacks=[…])`: every `every` rounds every client's model is tested on all clients' test samples.

    `rounds` (T,) and `curves["pre"]`, `curves["post"]` (T, K): before and after local training, which costs one more training of
    all clients (`post=False`: without). Nothing of the run changes. Models go to all clients, which private runs must not do:
    they are refused.
    """

    def __init__(self, every: int = 1, post: bool = True) -> None:
        if every < 1:
            raise FedkinError(f"every = {every}; test every 1, 2, … rounds")
        self.every, self.moments = every, ("pre", "post") if post else ("pre",)
        self.tested: list[int] = []
        self.found: dict[str, list[list[float]]] = {moment: [] for moment in self.moments}

    @property
    def rounds(self) -> np.ndarray:
        """The rounds after which models were tested."""
        return np.array(self.tested, dtype=np.int64)

    @property
    def curves(self) -> dict[str, np.ndarray]:
        """Moment → metric of every client's model after each of these rounds, (T, K)."""
        return {moment: np.array(values) for moment, values in self.found.items()}

    def on_start(self, run: Run) -> None:
        if run.setting.privacy is not None:
            raise FedkinError("GlobalTest shows every model to all clients, which a private run must not; leave it out")
        if not run.setting.model.layout.width:
            raise FedkinError("GlobalTest moves models between clients, but these clients bring models of their own")

    def on_round(self, run: Run, record: Record) -> None:
        if run.state.round % self.every:
            return
        self.tested.append(run.state.round)
        for moment in self.moments:
            question = run.state, run.clients, run.setting, moment == "post", ["test"], True
            models, _ = whole_models(run.algorithm.evaluate(*question), run.state, run.setting)
            self.found[moment].append(on_global_test(run.clients, models))
