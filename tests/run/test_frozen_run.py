"""Runs with a frozen part: the numbers of rows that carry it, in every way a run can go on, be saved and be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import fedkin
from fedkin import algorithms
from fedkin.engines import connect
from fedkin.errors import FedkinError
from fedkin.files import read_tensors
from fedkin.models.frozen import carrying
from fedkin.result import Result
from fedkin.run import Run
from fedkin.run.model import model_of_run
from fedkin.run.options import make_options
from fedkin.streams import Streams
from fedkin.testing import uneven_federation

MODEL = "mlp:6,4"
SGD = {"lr": 0.1, "epochs": 2, "batch_size": 8}
OPTIONS: dict[str, Any] = {
    "rounds": 3,
    "seed": 1,
    "dtype": "float64",
    "frozen": "features.1",
    "validation": "given",  # `carried` has no federation to hold out a fold of
}


def shared(method: str = "fedavg", model: Any = MODEL, **more: Any) -> Result:
    return fedkin.train(uneven_federation(), model, algorithms.make(method, SGD), **{**OPTIONS, **more})


def carried(method: str = "fedavg", model: Any = MODEL, out: Path | None = None, **more: Any) -> Result:
    """The same run with rows that carry the frozen part, as earlier versions had them."""
    federation, algorithm = uneven_federation(), algorithms.make(method, SGD)
    options = make_options(**{**OPTIONS, **more})
    spec = carrying(model_of_run(algorithm, model, federation.names, federation.task, options))
    clients = connect("in_process", federation, spec, Streams(options.seed), options.workers)
    return Run(federation.roster(), clients, spec, algorithm, options, out=out).run()


def same(one: Result, other: Result, atol: float = 1e-12) -> None:
    """The same models, tensor by tensor, and the same metrics."""
    for name in one.names:
        ours, old = one.models[name].state_dict(), other.models[name].state_dict()
        assert ours.keys() == old.keys()
        for key, value in ours.items():
            torch.testing.assert_close(value, old[key], rtol=0, atol=atol)
    for when, table in one.metrics.items():
        for key, values in table.items():
            mine, theirs = (np.array(column, dtype=float) for column in (values, other.metrics[when][key]))
            assert np.allclose(mine, theirs, rtol=0, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("cache", ["auto", "off"])
@pytest.mark.parametrize("method", ["fedavg", "fedu", "fedpnp", "fedcedar", "fedper", "ditto", "scaffold", "knnper"])
def test_same_numbers_as_rows_that_carry_it(method: str, cache: str) -> None:
    one, other = shared(method, cache_features=cache), carried(method)
    same(one, other, 1e-11 if method == "fedpnp" else 1e-12)
    frozen = 6 * 5 + 6
    assert one.rows.shape[1] == other.rows.shape[1] - frozen
    if method == "fedavg":
        assert one.facts["bytes"] == other.facts["bytes"] - OPTIONS["rounds"] * 6 * 2 * 8 * frozen


@pytest.mark.parametrize(("model", "frozen"), [("bn-mlp:6", "features.1"), ("bn-mlp:6", "*.bias")])
def test_same_numbers_beside_batch_norm(model: str, frozen: str) -> None:
    """Batch norm whose weights are frozen and whose statistics move, in stacked and in single training."""
    same(shared(model=model, frozen=frozen), carried(model=model, frozen=frozen))


def test_features_are_kept_where_frozen_layers_come_first() -> None:
    federation, method = uneven_federation(), algorithms.make("fedavg", SGD)

    def shard(**more: Any) -> Any:
        options = make_options(**{**OPTIONS, **more})
        spec = model_of_run(method, MODEL, federation.names, federation.task, options)
        return connect("in_process", federation, spec, Streams(1), 2).shard  # type: ignore[attr-defined]

    kept, plain = shard(), shard(cache_features="off")
    assert (kept.choice.name, plain.choice.name) == ("linear", "vmap")
    assert kept.train.x.shape == (len(federation.train.x), 6)
    assert plain.train.x.shape == federation.train.x.shape
    assert torch.equal(kept.given.x, plain.train.x), "statistics are of the inputs"


def test_a_feature_does_not_depend_on_who_else_is_there() -> None:
    federation, options = uneven_federation(), make_options(**OPTIONS)
    spec = model_of_run(algorithms.make("fedavg"), MODEL, federation.names, federation.task, options)
    everyone, one = (connect("in_process", f, spec, Streams(1), 2).shard for f in (federation, federation.take([3])))  # type: ignore[attr-defined]
    assert torch.equal(everyone.train.of(3)[0], one.train.of(0)[0])


# --- saved, resumed, exported -----------------------------------------------------------------------------------------


def test_saved_once_and_referred_to_by_hash(tmp_path: Path) -> None:
    result = shared(out=tmp_path / "run")
    tensors, facts = read_tensors(tmp_path / "run" / "frozen.safetensors")
    assert set(tensors) == {"features.1.weight", "features.1.bias"}
    assert facts["frozen_sha256"] == result.config["model"]["frozen_sha256"]
    stored = load_file(tmp_path / "run" / "result.safetensors")
    assert stored["models"].shape[1] == result.rows.shape[1] == 6 * 4 + 4 + 4 * 3 + 3
    again = fedkin.load(tmp_path / "run")
    same(again, result, 0)
    pointers = {again.models[name].features[1].weight.data_ptr() for name in again.names}
    assert len(pointers) == 1, "one memory for all clients"


def test_a_changed_or_missing_frozen_part_is_refused(tmp_path: Path) -> None:
    shared(out=tmp_path / "run", rounds=1)
    path = tmp_path / "run" / "frozen.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(FedkinError, match="damaged"):
        fedkin.load(tmp_path / "run")
    path.unlink()
    with pytest.raises(FedkinError, match="frozen part of every client's model; put it back"):
        fedkin.load(tmp_path / "run")
    facts = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps({**facts, "frozen_sha256": "0"}))
    with pytest.raises(FedkinError, match=r"frozen.json was changed"):
        fedkin.load(tmp_path / "run")


def test_a_resumed_run_keeps_the_frozen_part_it_began_with(tmp_path: Path) -> None:
    whole = shared(out=tmp_path / "whole", checkpoint_every=1)
    shared(out=tmp_path / "part", rounds=2, checkpoint_every=1)
    resumed = fedkin.resume(tmp_path / "part", uneven_federation(), rounds=3)
    same(resumed, whole, 0)


def test_an_old_directory_whose_rows_hold_the_frozen_part_loads_and_goes_on(tmp_path: Path) -> None:
    def old_backbone() -> torch.nn.Module:
        torch.manual_seed(5)
        net = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
        net[0].requires_grad_(False)
        return net

    more: dict[str, Any] = {"frozen": (), "checkpoint_every": 1}
    whole = carried(model=old_backbone, out=tmp_path / "whole", **more)
    assert "frozen_sha256" not in whole.config["model"]
    assert not (tmp_path / "whole" / "frozen.safetensors").exists()
    loaded = fedkin.load(tmp_path / "whole", old_backbone)
    same(loaded, whole, 0)
    assert np.allclose(loaded.rows, whole.rows)
    carried(model=old_backbone, out=tmp_path / "part", **{**more, "rounds": 2})
    resumed = fedkin.resume(tmp_path / "part", uneven_federation(), old_backbone, rounds=3)
    same(resumed, whole, 0)
    same(shared(model=old_backbone, **more), whole)


def test_export_and_predict_have_the_whole_model(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    result, other = shared(out=tmp_path / "run", rounds=1), carried(rounds=1)
    result.export(tmp_path / "models", format="onnx")
    name = result.names[0]
    exported = load_file(tmp_path / "models" / f"{name}.safetensors")
    assert exported.keys() == other.models[name].state_dict().keys()
    graph = onnx.load(tmp_path / "models" / f"{name}.onnx")
    x = np.random.default_rng(0).normal(size=(7, 5))
    ran = onnx.reference.ReferenceEvaluator(graph).run(None, {"input": x})[0]
    assert np.allclose(ran, other.models[name](torch.from_numpy(x)).detach().numpy(), atol=1e-9)
    told = [fedkin.predict(r, name, pd.DataFrame(x)) for r in (fedkin.load(tmp_path / "run"), other)]
    assert np.allclose(told[0].filter(like="probability"), told[1].filter(like="probability"), atol=1e-12)


def test_comparisons_and_repeated_settings_take_it(tmp_path: Path) -> None:
    from fedkin.config import read_toml, settle

    result = fedkin.compare(
        uneven_federation(), MODEL, ["local", "fedavg"], rounds=2, seeds=[0], dtype="float64", frozen="features.1"
    )
    assert all("features.1" in r.config["run"]["frozen"] for r in result.results)
    fedkin.train(
        fedkin.data.load("digits", clients=3), "mlp:4", "fedavg", rounds=1, frozen="features.1", out=tmp_path / "d"
    )
    experiment = settle([read_toml(tmp_path / "d" / "config.toml")])
    assert experiment.options[0].frozen == ("features.1",)


def test_bad_patterns_are_refused_before_training() -> None:
    with pytest.raises(
        FedkinError, match=r"unknown tensor or module of the model for frozen 'fetures.1'; did you mean"
    ):
        shared(frozen="fetures.1")
    with pytest.raises(FedkinError, match="every parameter of the model is frozen, so that nothing is left to train"):
        shared(frozen=["features.*", "classifier"])
    with pytest.raises(FedkinError, match=r"unknown tensor or module of the model for private '\*.lora_B'"):
        shared(private="*.lora_B")
    with pytest.raises(FedkinError, match="private: every tensor of the model would stay at home"):
        shared(private="*")
    with pytest.raises(FedkinError, match="frozen: these clients bring models of their own"):
        shared("fedrelax", model="tree:3")
    with pytest.raises(FedkinError, match="cache_features = 'on' is not allowed"):
        shared(cache_features="on")


def test_explain_says_what_is_shared_private_and_frozen() -> None:
    from fedkin.commands.parts import explained_model

    options = make_options(**{**OPTIONS, "private": "classifier.bias", "fraction": 0.5})
    lines = explained_model(uneven_federation(), MODEL, algorithms.make("fedavg"), options)
    said = "\n".join(lines)
    assert "linear kernel" in said
    assert "shared: 40 numbers in 3 tensors (features.3.weight, features.3.bias, classifier.weight)" in said
    assert "private: 3 numbers in 1 tensors (classifier.bias)" in said
    assert "frozen: 36 numbers in 2 tensors (features.1.weight, features.1.bias); kept once, 288 B to each site" in said
    assert "features of the frozen part: kept, (6,) per sample" in said
    assert "a round: 1.9 kB of rows, 320 B to and from each of 3 clients" in said
    off = explained_model(
        uneven_federation(), MODEL, algorithms.make("fedavg"), make_options(**OPTIONS, cache_features="off")
    )
    assert "features of the frozen part: not kept: cache_features is off" in off


@pytest.mark.slow
def test_a_thousand_clients_with_ten_million_frozen_numbers_fit() -> None:
    """Within 2 GiB beyond the data, in a process of its own."""
    import subprocess
    import sys

    root = Path(__file__).parents[2]
    program = (
        "import sys; sys.path.insert(0, 'benchmarks'); import frozen; "
        "found = frozen.one(1000, 'kept', frozen.WHOLE); assert found['frozen'] > 9.9e6; print(found['peak'])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2 * 2**30
