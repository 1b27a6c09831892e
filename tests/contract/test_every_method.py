"""One suite over every registered method: what a user may expect of any of them."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedkin
from fedkin import algorithms, engines
from fedkin.algorithm import Algorithm
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.result import Result


def _load(name: str) -> Any:
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"contract_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_federation = _load("conftest").make_federation
Scattered = _load("sharded").Scattered
METHODS = algorithms.names()

# How a method is run here, where its defaults do not fit a toy federation.
PARAMETERS: dict[str, dict[str, Any]] = {}
MODEL: dict[str, str] = {}
# Another valid value for a parameter, where doubling the default is not one or has no effect by definition.
OTHER: dict[tuple[str, str], Any] = {}
# Parameters that only act together with another one: that one is set too.
WITH: dict[tuple[str, str], dict[str, Any]] = {}
# Parameters without an effect on the numbers of this suite, and why.
SILENT: dict[tuple[str, str], str] = {}
# Methods that need all clients in one process, and how they refuse anything else.
TOGETHER: dict[str, str] = {}

for extra in sorted(Path(__file__).parent.glob("expect_*.py")):
    facts = _load(extra.stem)
    name = extra.stem.removeprefix("expect_")
    PARAMETERS[name] = getattr(facts, "PARAMETERS", {})
    MODEL.update({name: facts.MODEL} if hasattr(facts, "MODEL") else {})
    TOGETHER.update({name: facts.TOGETHER} if hasattr(facts, "TOGETHER") else {})
    OTHER.update({(name, key): value for key, value in getattr(facts, "OTHER", {}).items()})
    WITH.update({(name, key): value for key, value in getattr(facts, "WITH", {}).items()})
    SILENT.update({(name, key): value for key, value in getattr(facts, "SILENT", {}).items()})

COMMON_OTHER = {
    "steps": 3,
    "momentum": 0.5,
    "weight_decay": 0.1,
    "lr_decay": 0.5,
    "batch_size": 5,
    "epochs": 2,
    "optimiser": "adam",
    "moments": "keep",
    "clip": 0.01,
    "lr_schedule": "cosine:3",
    "server_optimiser": "adam",
    "server_momentum": 0.5,
}
COMMON_WITH: dict[str, dict[str, Any]] = {"lr_decay_every": {"lr_decay": 0.5}, "moments": {"momentum": 0.5}}


def make(name: str, **changes: Any) -> Algorithm:
    return algorithms.make(name, {"lr": 0.1, "batch_size": 8, **PARAMETERS.get(name, {}), **changes})


def run(name: str, federation: Federation, algorithm: Algorithm | None = None, **options: Any) -> Result:
    settings = {"rounds": 3, "seed": 1, "dtype": "float64", **options}
    return fedkin.train(
        federation, settings.pop("model", MODEL.get(name, "mlp:6")), algorithm or make(name), **settings
    )


@pytest.fixture(params=METHODS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_is_documented_and_named(name: str) -> None:
    method = algorithms.get(name)
    assert method.name == name == name.lower()
    assert method.title
    assert method.__doc__
    assert method.__doc__ != Algorithm.__doc__
    for field, info in method.model_fields.items():
        assert info.description, f"{name}.{field} has no description"


def test_parameters_validate_and_round_trip(name: str) -> None:
    method = make(name)
    assert type(method)(**method.model_dump()) == method
    with pytest.raises(FedkinError, match="did you mean 'lr'"):
        make(name, lrr=1)
    with pytest.raises(FedkinError, match="lr = -1 is not allowed"):
        make(name, lr=-1)
    with pytest.raises(Exception, match="frozen"):
        method.lr = 2.0  # type: ignore[misc]


def test_zero_rounds(name: str, federation: Federation) -> None:
    result = run(name, federation, rounds=0)
    assert len(result.history) == 0
    assert set(result.models) == set(federation.names)
    assert np.isfinite(result.summary("deployed")["mean"])


def test_trains_and_reports(name: str, federation: Federation) -> None:
    result = run(name, federation)
    assert len(result.history) == 3
    for when in ("pre", "post", "deployed"):
        values = np.array(result.metrics[when]["test_accuracy"], dtype=float)
        assert ((values >= 0) & (values <= 1)).sum() == (federation.test.sizes > 0).sum()
    assert result.influence is None or np.allclose(result.influence.sum(axis=1), 1)
    assert isinstance(repr(result), str)


def test_deployed_models_have_the_reported_accuracy(name: str, federation: Federation) -> None:
    result = run(name, federation)
    for k, client in enumerate(federation.names):
        x, y = federation.test[k]
        if len(x) and isinstance(result.models[client], nn.Module):
            with torch.no_grad():
                guess = result.models[client](torch.as_tensor(x)).argmax(dim=1).numpy()
            assert (guess == y).mean() == pytest.approx(result.metrics["deployed"]["test_accuracy"][k])


def test_same_seed_same_numbers_and_another_seed_others(name: str, federation: Federation) -> None:
    first, second, other = run(name, federation), run(name, federation), run(name, federation, seed=2)
    assert np.array_equal(first.rows, second.rows)
    assert not np.array_equal(first.rows, other.rows)


def test_saves_loads_and_resumes_bitwise(name: str, federation: Federation, tmp_path: Path) -> None:
    whole = run(name, federation, rounds=4, checkpoint_every=1, out=tmp_path / "whole")
    run(name, federation, rounds=2, checkpoint_every=1, out=tmp_path / "part")
    resumed = fedkin.resume(tmp_path / "part", federation, rounds=4)
    assert np.array_equal(resumed.rows, whole.rows)
    assert resumed.metrics == whole.metrics or repr(resumed.metrics) == repr(whole.metrics)
    loaded = fedkin.load(tmp_path / "whole")
    assert np.array_equal(loaded.rows, whole.rows)
    assert loaded.history[-1]["bytes"] == whole.history[-1]["bytes"] == resumed.history[-1]["bytes"]
    for client in federation.names:
        before, after = whole.models[client], loaded.models[client]
        if isinstance(before, nn.Module):
            for key, value in before.state_dict().items():
                assert torch.equal(value, after.state_dict()[key])


def test_partial_participation(name: str, federation: Federation) -> None:
    result = run(name, federation, cohort=2)
    assert [record["participants"] for record in result.history] == [2, 2, 2]
    assert np.isfinite(result.rows).all()


def test_one_client(name: str) -> None:
    result = run(name, make_federation((20,)))
    assert np.isfinite(result.rows).all()


def test_client_order_does_not_matter(name: str, federation: Federation) -> None:
    order = np.array([3, 1, 5, 0, 4, 2])
    straight, shuffled = run(name, federation, cohort=4), run(name, federation.take(order), cohort=4)
    assert np.allclose(shuffled.rows, straight.rows[order], atol=1e-9)
    for when in ("pre", "post"):
        mine = np.array(shuffled.metrics[when]["test_loss"], dtype=float)
        assert np.allclose(mine, np.array(straight.metrics[when]["test_loss"], dtype=float)[order], equal_nan=True)


@pytest.mark.parametrize("model", ["mlp:6", "bn-mlp:6"])
def test_sharding_does_not_matter(
    name: str, model: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODEL.get(name, model)
    together = run(name, federation, model=model)
    monkeypatch.setitem(engines.ENGINES, "sharded", Scattered)
    if name in TOGETHER:
        with pytest.raises(FedkinError, match=TOGETHER[name]):
            run(name, federation, model=model, engine="sharded")
        return
    apart = run(name, federation, model=model, engine="sharded")
    assert np.allclose(apart.rows, together.rows, atol=1e-9)
    for when in ("pre", "post"):
        mine = np.array(apart.metrics[when]["test_loss"], dtype=float)
        theirs = np.array(together.metrics[when]["test_loss"], dtype=float)
        assert np.allclose(mine, theirs, atol=1e-8, equal_nan=True)


LEARNING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "focal, AdamW": (
        {"loss": "focal:1", "class_weight": [1.0, 2.0, 1.0], "metrics": ["auroc", "f1"]},
        {"optimiser": "adamw", "moments": "keep", "clip": 1.0, "weight_decay": 0.01},
    ),
    "smoothed, RMSprop": (
        {"label_smoothing": 0.1, "metrics": ["balanced-accuracy", "ece"], "headline": "ece"},
        {"optimiser": "rmsprop", "lr_schedule": "warm-up:2"},
    ),
}
# Methods that have a loss or a step rule of their own: how they refuse another, and what they are run with.
OWN_LOSS: dict[str, str] = {
    "fedrelax": "drop loss, class_weight and label_smoothing",
    "fedska": "the loss of a mixed part",
}
OWN_STEPS: dict[str, dict[str, Any]] = {"scaffold": {"optimiser": "sgd"}, "fedrelax": {"moments": "keep", "clip": None}}


@pytest.mark.parametrize("what", LEARNING)
def test_any_loss_metric_and_optimiser_however_clients_are_sharded(
    name: str, what: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, how = LEARNING[what]
    if name in OWN_LOSS:
        with pytest.raises(FedkinError, match=OWN_LOSS[name]):
            run(name, federation, rounds=1, **asked)
        asked = {key: value for key, value in asked.items() if key in ("metrics", "headline")}
    steps = {**how, "lr": 0.01, **WITH.get((name, "optimiser"), {}), **OWN_STEPS.get(name, {})}
    if name == "fedrelax":
        steps["optimiser"] = "rmsprop"
    together = run(name, federation, make(name, **steps), **asked)
    key = f"test_{asked.get('headline', asked['metrics'][0]).replace('-', '_')}"
    assert together.metric == key
    assert np.isfinite(together.rows).all()
    assert np.isfinite(together.summary("deployed")["mean"])
    if name in TOGETHER:
        return
    monkeypatch.setitem(engines.ENGINES, "sharded", Scattered)
    apart = run(name, federation, make(name, **steps), engine="sharded", **asked)
    assert np.allclose(apart.rows, together.rows, atol=1e-8)
    mine, theirs = (np.array(each.metrics["post"][key], dtype=float) for each in (apart, together))
    assert np.allclose(mine, theirs, atol=1e-6, equal_nan=True)


def test_global_random_state_is_left_alone(name: str, federation: Federation) -> None:
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    run(name, federation)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


def test_inputs_are_not_changed(name: str, federation: Federation) -> None:
    kept = copy.deepcopy(federation)
    method = make(name)
    dumped = method.model_dump()
    run(name, federation, method)
    assert federation.fingerprint() == kept.fingerprint()
    assert method.model_dump() == dumped


def _parameters() -> list[tuple[str, str]]:
    return [(name, field) for name in METHODS for field in algorithms.get(name).model_fields]


def _another(name: str, field: str) -> Any:
    if (name, field) in OTHER:
        return OTHER[name, field]
    if field in COMMON_OTHER:
        return COMMON_OTHER[field]
    value = getattr(make(name), field)
    if isinstance(value, bool):
        return not value
    assert isinstance(value, int | float), f"give another value for {name}.{field} in expect_{name}.py"
    return value * 2 if value else 0.5


@pytest.mark.parametrize(("name", "field"), _parameters())
def test_every_parameter_changes_the_result(name: str, field: str, federation: Federation) -> None:
    if (name, field) in SILENT:
        assert SILENT[name, field], "a silent parameter needs a reason"
        return
    base = {**COMMON_WITH.get(field, {}), **WITH.get((name, field), {})}
    before = run(name, federation, make(name, **base), model=MODEL.get(name, "bn-mlp:6"))
    changed = {**base, field: _another(name, field)}
    after = run(name, federation, make(name, **changed), model=MODEL.get(name, "bn-mlp:6"))
    same = np.array_equal(before.rows, after.rows) and repr(before.metrics) == repr(after.metrics)
    assert not same, f"{name}.{field} has no effect"
