from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedkin
from fedkin.errors import FedkinError
from fedkin.result.export import file_stems


@pytest.fixture(scope="module")
def result():
    return fedkin.train(fedkin.data.load("digits", clients=2), "mlp", "fedavgft", rounds=2)


def test_weights_and_card(result, tmp_path):
    out = result.export(tmp_path / "models")
    name = result.names[1]
    module = result.models[name]
    stored = load_file(out / f"{name}.safetensors")
    assert stored.keys() == module.state_dict().keys()
    assert all(torch.equal(stored[key], value) for key, value in module.state_dict().items())
    card = json.loads((out / f"{name}.json").read_text())
    assert (card["client"], card["round"], card["method"]["name"]) == (name, 2, "fedavgft")
    assert card["data"]["train_samples"] == result.sizes[1]
    assert card["metrics"]["deployed"]["test_accuracy"] == result.metrics["deployed"]["test_accuracy"][1]
    shares = {entry["client"]: entry["share"] for entry in card["influenced_by"]}
    assert shares == pytest.approx(dict(zip(result.names, result.influence[1])), abs=1e-6)
    assert json.loads((out / "index.json").read_text())[name] == [f"{name}.safetensors", f"{name}.json"]


def test_torch_program_takes_any_batch(result, tmp_path):
    out = result.export(tmp_path, "torch")
    name = result.names[0]
    x = torch.randn(5, *result.task.input_shape)
    program = torch.export.load(out / f"{name}.pt2").module()
    assert torch.allclose(program(x), result.models[name](x), atol=1e-6)


def test_onnx_gives_the_same_numbers(result, tmp_path):
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    out = result.export(tmp_path, "onnx")
    name = result.names[1]
    x = torch.randn(4, *result.task.input_shape)
    found = ReferenceEvaluator(str(out / f"{name}.onnx")).run(None, {"input": x.numpy()})[0]
    assert np.allclose(found, result.models[name](x).detach().numpy(), atol=1e-5)


def test_missing_packages_and_unknown_formats(result, tmp_path, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == "onnxscript" else real(n, *a))
    with pytest.raises(FedkinError, match="pip install onnxscript"):
        result.export(tmp_path, "onnx")
    with pytest.raises(FedkinError, match="did you mean 'onnx'"):
        result.export(tmp_path, "onxx")


def test_hostile_names_stay_inside_the_folder(tmp_path):
    names = ["../../etc/passwd", "a/b", "a\\b", "", "INDEX", "ok", "OK", ".", "x" * 300]
    stems = file_stems(names)
    assert len({stem.lower() for stem in stems}) == len(names)
    assert all(stem and len(stem) < 90 and (tmp_path / f"{stem}.json").resolve().parent == tmp_path for stem in stems)
