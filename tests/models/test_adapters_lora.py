"""LoRA: adapters alone are rows; with peft's modules, too."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedkin
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.models import Layout, ModelSpec, lora
from fedkin.models.adapted import LowRank
from fedkin.models.networks import build_network
from fedkin.testing import uneven_federation

SGD = {"lr": 0.1, "epochs": 1, "batch_size": 8}


def body() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


def text(clients: int = 4, length: int = 6) -> Federation:
    """Made-up texts of eight characters, in which each client prefers some."""
    rng = np.random.default_rng(0)
    arrays = {}
    for k in range(clients):
        chances = rng.dirichlet(np.full(8, 0.5))
        y = np.append(rng.choice(8, 40, p=chances), np.arange(8))
        arrays[f"role-{k}"] = (rng.choice(8, (48, length), p=chances), y)
    return Federation.from_arrays(arrays, classes=list(range(8)), tokens=True)


def test_an_adapter_starts_as_nothing_and_adds_a_product_of_low_rank() -> None:
    base = nn.Linear(7, 5)
    layer, x = LowRank(base, 2, alpha=6.0), torch.randn(4, 7)
    torch.testing.assert_close(layer(x), base(x), rtol=0, atol=0)
    nn.init.normal_(layer.lora_B)
    merged = base.weight + 3.0 * layer.lora_B @ layer.lora_A
    torch.testing.assert_close(layer(x), x @ merged.T + base.bias)


def test_targets_and_what_is_trained_beside() -> None:
    def names(**how: Any) -> set[str]:
        return {slot.name for slot in Layout.of(lora(body, rank=2, **how)()).slots}

    assert names() == {f"{k}.lora_{ab}" for k in (0, 2) for ab in "AB"}
    assert names(targets="0") == {"0.lora_A", "0.lora_B"}
    assert names(targets=["0"], train="2") == {"0.lora_A", "0.lora_B", "2.weight", "2.bias"}
    assert names(train="2.bias") == {"0.lora_A", "0.lora_B", "2.bias"}
    with pytest.raises(FedkinError, match="unknown tensor or module of the model for targets 'q_proj'"):
        lora(body, targets="q_proj")()
    with pytest.raises(FedkinError, match="rank = 0 is not allowed"):
        lora(body, rank=0)
    with pytest.raises(FedkinError, match="'mlp:4' has no weights to adapt; give a trained module"):
        lora("mlp:4")  # type: ignore[arg-type]


def test_torchs_own_encoder_does_not_read_past_its_adapters() -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    module = lora(encoder, rank=2, targets="linear*")().eval()
    for name, parameter in module.named_parameters():
        if name.endswith("lora_B"):
            nn.init.normal_(parameter)
    x = torch.randn(3, 4, 8)
    with torch.no_grad():
        torch.testing.assert_close(module(x), module.train()(x))


@pytest.mark.parametrize("method", ["fedavg", "fedu", "fedpnp", "fedcedar", "fedper"])
def test_methods_work_on_adapters_unchanged(method: str) -> None:
    """Their rows are adapters and nothing else; the rest stays as it was given."""
    federation, made = uneven_federation(), fedkin.algorithms.make(method, SGD)
    options: dict[str, Any] = {"rounds": 2, "dtype": "float64", "seed": 1}
    result = fedkin.train(federation, lora(body, rank=2), made, **options)
    assert result.rows.shape == (6, 2 * (5 + 6) + 2 * (6 + 3))
    first = torch.stack([result.models[name][0].base.weight for name in result.names])
    torch.testing.assert_close(first, body()[0].weight.double().expand_as(first), rtol=0, atol=0)
    assert not np.allclose(
        result.rows[0], fedkin.train(federation, lora(body, rank=2), made, **{**options, "rounds": 0}).rows[0]
    )


def test_share_a_keep_b() -> None:
    federation = uneven_federation()
    options: dict[str, Any] = {"rounds": 3, "dtype": "float64", "seed": 1}
    result = fedkin.train(
        federation, lora(body, rank=2), fedkin.algorithms.make("fedavg", SGD), private="*.lora_B", **options
    )
    whole = fedkin.train(federation, lora(body, rank=2), fedkin.algorithms.make("fedavg", SGD), **options)
    layout = ModelSpec.of(lora(body, rank=2), federation.task).layout
    b = layout.mask(tuple(slot.name for slot in layout.slots if slot.name.endswith("lora_B"))).numpy()
    assert np.allclose(result.rows[:, ~b], result.rows[:1, ~b], rtol=0, atol=0)
    assert len(np.unique(result.rows[:, b], axis=0)) == 6
    assert whole.facts["bytes"] - result.facts["bytes"] == 3 * 6 * 2 * 8 * b.sum()


def test_a_second_set_of_initial_weights_keeps_what_is_frozen() -> None:
    result = fedkin.train(uneven_federation(), lora(body, rank=2)(), "ifca", rounds=1, seed=1)
    assert torch.equal(result.models["site-a"][0].base.weight, body()[0].weight)


def test_the_transformer_trains_stacked_and_refuses_odd_settings() -> None:
    federation = text()
    adapted = lora(
        lambda: build_network("transformer-text:1,8,2", federation.task), rank=2, targets="features.0.blocks"
    )
    result = fedkin.train(federation, adapted, fedkin.algorithms.make("fedu", SGD), rounds=2, seed=0)
    assert result.rows.shape[1] == 4 * 2 * 16 + 2 * (8 + 32) * 2
    width, tokens = 64, 8
    block = 4 * (width * width + width) + 2 * 2 * width + 2 * 4 * width * width + 5 * width
    assert Layout.of(build_network("transformer-text", federation.task)).n_parameters == (
        tokens * width + 6 * width + 2 * block + 2 * width + width * tokens + tokens
    )
    with pytest.raises(FedkinError, match="its width 8 must be a multiple of its 3 heads"):
        build_network("transformer-text:1,8,3", federation.task)
    with pytest.raises(FedkinError, match="takes texts"):
        build_network("transformer-text", uneven_federation().task)


def test_the_example_of_roles_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "shakespeare_adapters.py"))
    monkeypatch.setattr(fedkin.data, "load", lambda *_, **__: text())
    lines = example["study"](text(), rounds=2, pretrain=2, rank=1, model="transformer-text:1,8,2")
    whole, alone, adapters, private = (size for _, _, size, _ in lines[:4])
    assert alone == 0
    assert private < adapters < whole / 3
    assert all(0 <= accuracy <= 1 for _, accuracy, _, _ in lines)


def test_peft_modules_have_their_adapters_as_rows() -> None:
    peft = pytest.importorskip("peft", reason="pip install 'fedkin[peft]'")

    def wrapped() -> nn.Module:
        torch.manual_seed(3)
        return peft.get_peft_model(body(), peft.LoraConfig(r=2, target_modules=["0", "2"]))  # type: ignore[no-any-return]

    federation, options = uneven_federation(), {"rounds": 3, "dtype": "float64", "seed": 1}
    layout = ModelSpec.of(wrapped, federation.task).layout
    assert layout.width == 2 * (5 + 6) + 2 * (6 + 3)
    assert all("lora_" in slot.name for slot in layout.slots)
    result = fedkin.train(federation, wrapped, fedkin.algorithms.make("fedavg", SGD), private="*.lora_B", **options)
    assert len(np.unique(result.rows, axis=0)) == 6
    ours = fedkin.train(
        federation, _like(wrapped), fedkin.algorithms.make("fedavg", SGD), private="*.lora_B", **options
    )
    for when in ("pre", "post"):
        assert result.metrics[when]["test_loss"] == pytest.approx(
            ours.metrics[when]["test_loss"], nan_ok=True, rel=1e-9
        )


def _like(wrapped: Any) -> Any:
    """Our adapters with the initial values of peft's (its scale is lora_alpha/r = 8/2)."""

    def ours() -> nn.Module:
        theirs, mine = wrapped(), lora(body, rank=2, alpha=8.0)()
        values = {name: value for name, value in theirs.named_parameters() if "lora_A" in name}
        for name, parameter in mine.named_parameters():
            if name.endswith("lora_A"):
                layer = name.partition(".")[0]
                parameter.data.copy_(next(v for key, v in values.items() if f".{layer}.lora_A" in key))
        return mine

    return ours
