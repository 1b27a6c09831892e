"""Distilled: one network of the original size per client, with what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fedkin
from fedkin import Federation
from fedkin.cli import app
from fedkin.portfolio.distil import DRAWS, _drawn
from fedkin.portfolio.join import join
from fedkin.result.combined import Combined
from fedkin.result.verdict import distilled_text

from .conftest import sites

HOW: dict[str, Any] = {"effort": "quick", "rounds": 10, "lr": 0.3}


def width(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("regression", [False, True])
def test_one_network_says_what_the_combination_says(regression: bool) -> None:
    """A linear model can say all that a combination of linear ones says: the closed form of a perfect student."""
    federation = sites(regression=regression)
    how = {**HOW, "lr": 0.1, "effort": "standard"} if regression else HOW
    model = "linear" if regression else "mlr"
    many = fedkin.auto(federation, model, **how)
    one = fedkin.auto(federation, model, distil=True, **how)
    told = one.facts["distilled"]
    assert max(told["networks"]) > 1
    assert told["combined"] == many.metrics["deployed"]  # the combination is the same, and was tested the same
    x = torch.tensor(federation.test[0][0], dtype=torch.float32)
    for name in federation.names:
        assert width(one.models[name]) == (6 if regression else 14)
        with torch.no_grad():
            taught, combined = one.models[name](x), many.models[name](x)
        if regression:
            assert torch.allclose(taught, combined, atol=0.05)
        else:
            assert (torch.softmax(taught, 1) - combined.exp()).abs().mean() < 0.1
            assert (taught.argmax(1) == combined.argmax(1)).float().mean() > 0.85
    assert "one network per client" in distilled_text(one)


def test_it_saves_loads_exports_and_is_the_same_for_any_order_of_clients(tmp_path: Path, contrary: Federation) -> None:
    result = fedkin.auto(contrary, "mlp:4", distil=True, dtype="float64", out=tmp_path / "run", **HOW)
    again = fedkin.load(tmp_path / "run")
    x = torch.randn(5, 6, dtype=torch.float64)
    plain = [name for name in contrary.names if not isinstance(again.models[name], Combined)]
    assert plain
    for name in contrary.names:
        assert torch.equal(again.models[name](x), result.models[name](x))
    assert again.facts["distilled"]["networks"] == result.facts["distilled"]["networks"]
    result.export(tmp_path / "out", "torch")
    program = torch.export.load(tmp_path / "out" / f"{plain[0]}.pt2").module()
    assert torch.allclose(program(x), result.models[plain[0]](x))
    turned = fedkin.auto(contrary.take(list(range(8))[::-1]), "mlp:4", distil=True, dtype="float64", **HOW)
    for name in contrary.names:
        assert torch.allclose(turned.models[name](x), result.models[name](x), atol=1e-6)


def test_the_command_tells_what_it_costs_and_newcomers_get_one_network(tmp_path: Path) -> None:
    how = ["--data", "clusters", "--clients", "6", "--effort", "quick", "--rounds", "3", "--model", "linear"]
    done = CliRunner().invoke(app, ["auto", *how, "--distil", "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "distilled: one network per client" in " ".join(done.output.split())
    result = fedkin.load(tmp_path / "run")
    new = fedkin.data.load("clusters", clients=8, seed=3)
    clients = {f"new-{k}": {"train": new.train[k], "test": new.test[k]} for k in range(2)}
    joined = join(result, Federation.from_arrays(clients))
    assert "distilled" in joined.facts


def test_labels_are_drawn_as_often_as_the_combination_says() -> None:
    p = np.tile([0.5, 0.25, 0.25], (1000, 1))
    drawn = _drawn(p, np.random.default_rng(0))
    assert len(drawn) == DRAWS * 1000
    assert np.allclose(np.bincount(drawn) / len(drawn), p[0], atol=0.01)
    assert (_drawn(np.eye(3)[[2, 0]], np.random.default_rng(0)) == np.tile([2, 0], DRAWS)).all()
