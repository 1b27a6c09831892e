"""Patterns of tensors that stay at home, whatever the method: personal, never mixed, never sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from fedkin import algorithms
from fedkin.engines.host import Answer, Host
from fedkin.errors import FedkinError
from fedkin.local.tasks import Request
from fedkin.result import Result
from fedkin.testing import uneven_federation
from fedkin.testing.algorithms import SCATTERED

from ..contract import test_every_method as contract

SGD = {"lr": 0.1, "epochs": 2, "batch_size": 8}
OPTIONS: dict[str, Any] = {"rounds": 3, "seed": 1, "dtype": "float64"}
ROWLESS = ("fedrelax", "global")
"""Without rows, or without anything of one client's own."""


def trained(method: str, model: str = "mlp:6", **options: Any) -> Result:
    return fedkin.train(uneven_federation(), model, algorithms.make(method, SGD), **{**OPTIONS, **options})


@pytest.mark.parametrize(
    ("method", "model", "private", "same_as"),
    [
        ("fedavg", "mlp:6", "classifier", "fedper"),
        ("fedavg", "mlp:6", "features.*", "lgfedavg"),
        ("fedavg", "bn-mlp:6", "features.2", "fedbn"),
        ("fedper", "mlp:6", "*.bias", "fedper"),
    ],
)
def test_known_methods_are_patterns_of_fedavg(method: str, model: str, private: str, same_as: str) -> None:
    one, other = trained(method, model, private=private), trained(same_as, model)
    if method == same_as:  # FedPer whose biases stay at home, too
        other = trained("fedavg", model, private=["classifier", "*.bias"])
    assert np.allclose(one.rows, other.rows, rtol=0, atol=1e-12)
    assert one.facts["bytes"] == other.facts["bytes"]
    for when in ("pre", "post"):
        for key, values in one.metrics[when].items():
            assert values == pytest.approx(other.metrics[when][key], nan_ok=True)


@pytest.mark.parametrize("name", [name for name in algorithms.names() if name not in ROWLESS])
def test_every_method_keeps_them_at_home(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No array that goes to a client or comes back has room for them, but for models disclosed at the end."""
    model = contract.MODEL.get(name, "mlp:6")
    private = "classifier.bias"
    spec = fedkin.models.ModelSpec.of(model, uneven_federation().task)
    full = {spec.layout.n_parameters, spec.layout.width}
    shapes: list[tuple[str, str, tuple[int, ...]]] = []
    asked = Host.answer

    def listening(host: Host, task: str, request: Request) -> Answer:
        answer = asked(host, task, request)
        sent = {**request.per_client, **{k: v for k, v in request.shared.items() if isinstance(v, torch.Tensor)}}
        shapes.extend((task, key, tuple(v.shape)) for key, v in {**sent, **answer.arrays}.items() if key != "model")
        return answer

    monkeypatch.setattr(Host, "answer", listening)
    result = contract.run(name, uneven_federation(), model=model, private=private, **{**OPTIONS, "rounds": 3})
    assert np.isfinite(result.rows).all()
    wide = [entry for entry in shapes if entry[2] and entry[2][-1] in full]
    assert not wide, wide[0]
    models = [result.models[client] for client in result.names]
    biases = torch.stack([getattr(model, "network", model).classifier.bias.detach() for model in models])
    own = {"fedproto": 1}.get(name, len(models))  # what it deploys reads the common prototypes
    assert len(torch.unique(biases, dim=0)) == own, "every client has its own"


@pytest.mark.parametrize("name", ["scaffold", "dfedu", "ifca", "kin", "fedfomo", "fedu", "pfedbayes"])
def test_sharding_does_not_matter(name: str) -> None:
    here, there = (
        contract.run(name, uneven_federation(), private="*.bias", engine=engine, **OPTIONS)
        for engine in ("in_process", SCATTERED)
    )
    assert np.allclose(here.rows, there.rows, rtol=0, atol=1e-9)


def test_resumes_with_what_is_at_home(tmp_path: Path) -> None:
    more: dict[str, Any] = {"private": "features.*", "checkpoint_every": 1}
    whole = trained("fedu", **more, out=tmp_path / "whole")
    trained("fedu", **{**more, "rounds": 2}, out=tmp_path / "part")
    resumed = fedkin.resume(tmp_path / "part", uneven_federation(), rounds=3)
    assert np.array_equal(resumed.rows, whole.rows)
    assert fedkin.load(tmp_path / "whole").config["run"]["private"] == ["features.*"]


def test_methods_for_which_it_has_no_meaning_say_so() -> None:
    with pytest.raises(FedkinError, match="nothing can be private"):
        trained("global", private="classifier")
    with pytest.raises(FedkinError, match="auto moves whole models between clients; leave private out"):
        fedkin.auto(uneven_federation(), "mlp:6", effort="quick", private="classifier")
