"""What every engine does with a question: hosts that forgot are told again, before anyone acts where that is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedkin
from fedkin import data, engines
from fedkin.algorithms import FedRelax
from fedkin.run import Callback, Run
from fedkin.testing.scattered import Scattered


class StartsAHostAnew(Callback):
    """After the first round one of three hosts is a new process with the private state of the old one."""

    def __init__(self, known: bool) -> None:
        self.known = known

    def on_round(self, run: Run, record: Any) -> bool:
        if record["round"] == 1:
            clients: Any = run.clients
            clients.hosts[1].restore(clients.hosts[1].snapshot())
            clients.restarted = self.known
        return False


@pytest.mark.parametrize("known", [True, False])
def test_a_host_started_anew_is_told_again_without_a_bill(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the engine knows of it, the numbers are those of a run in which nothing happened."""
    monkeypatch.setitem(engines.ENGINES, "sharded", Scattered)
    federation = data.load("clusters", clients=6, dimension=3, clusters=2, samples=10, held_out=20, seed=0, public=20)
    whole, after = (
        fedkin.train(federation, "tree:3", FedRelax(alpha=0.1), rounds=3, engine="sharded", eval_every=3,
                     callbacks=callbacks)
        for callbacks in ((), (StartsAHostAnew(known),))
    )  # fmt: skip
    assert not any(record["log"].get("failed") for record in after.history)
    assert after.history[-1]["bytes"] == whole.history[-1]["bytes"]
    if known:
        assert np.array_equal(after.metrics["pre"]["test_mse"], whole.metrics["pre"]["test_mse"])
