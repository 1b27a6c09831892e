"""What docs/privacy.md says can be learned is learned here, and what it says is not sent is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedkin import Federation, algorithms, data
from fedkin.algorithms import FedRelax, FedSKA
from fedkin.run import make_options, make_run


def overheard(federation: Federation, model: str, method: Any, rounds: int = 1) -> tuple[Any, list[Any]]:
    """A run, and everything the server side asked and heard in it."""
    run = make_run(federation, model, method, make_options(rounds=rounds, dtype="float64"))
    heard: list[Any] = []
    ask = run.clients.ask

    def listening(task: str, ids: Any, per_client: Any = None, *rest: Any, **more: Any) -> Any:
        replies = ask(task, ids, per_client, *rest, **more)
        heard.append((task.rpartition(":")[2], per_client or {}, replies))
        return replies

    run.clients.ask = listening  # type: ignore[method-assign]
    run.run()
    return run, heard


def test_the_server_of_fedska_solves_for_every_clients_label_shares() -> None:
    """∂l_k/∂h = Wᵀ(softmax(Wh + b) − p): the server knows W, b and h, hence the shares p of the labels."""
    federation = data.load("digits", clients=5, partition="dirichlet:0.3", seed=0)
    run, heard = overheard(federation, "mlp:16", FedSKA(encoder_steps=1, granularity="client"))
    rows = next(replies["rows"] for task, _, replies in heard if task == "fedska")
    guides, gradient = next((q["guides"], r["gradient"]) for task, q, r in heard if task == "fedska gradient")
    counts = federation.label_counts()
    for k in range(len(federation)):
        layers = [m for m in run.setting.spec.module(rows[k]).modules() if isinstance(m, nn.Linear)]
        weight, bias = layers[-1].weight.detach(), layers[-1].bias.detach()
        chance = torch.softmax(weight @ guides[k, 0] + bias, dim=0)
        shares = chance - torch.linalg.lstsq(weight.T, gradient[k, 0][:, None]).solution.ravel()
        assert np.allclose(shares.numpy(), counts[k] / counts[k].sum(), atol=1e-9)


def test_the_page_speaks_of_every_method() -> None:
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    assert [name for name in algorithms.names() if f"`{name}`" not in page] == []


def public_points(federation: Federation, **parameters: Any) -> torch.Tensor:
    run, _ = overheard(federation, "mlr", FedRelax(**parameters))
    return run.clients.snapshot()["public"].double()


def test_fedrelax_shows_no_real_input_to_neighbours_unless_told() -> None:
    federation = data.load("digits", clients=4, seed=0)
    real = torch.from_numpy(np.asarray(federation.train.x)).double().flatten(1)

    def shown(points: torch.Tensor) -> int:
        return sum(bool((real == point).all(dim=1).any()) for point in points.flatten(0, 1).flatten(1))

    assert shown(public_points(federation)) == 0
    assert shown(public_points(federation, public="drawn", public_size=5)) == 20
