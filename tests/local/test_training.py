"""Every kernel against the plain nn.Module + torch.optim loop, in float64."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from fedkin.federation import Federation
from fedkin.local.kernels.looped import in_best_order
from fedkin.local.oracle import train_by_loop
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.terms import Pull, Shift
from fedkin.local.training import evaluate_rows, train_rows
from fedkin.models import ModelSpec
from fedkin.streams import Streams


class Residual(nn.Module):
    """A module no special kernel knows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x))
        return self.last(h + self.norm(h))


def frozen_first_layer() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    net[0].weight.requires_grad_(False)
    return net


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )


def with_one_activation() -> nn.Module:
    bend = nn.Tanh()
    return nn.Sequential(nn.Linear(6, 5), bend, nn.Linear(5, 4), bend, nn.Linear(4, 3))


def with_a_hook() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    net[0].register_forward_hook(lambda _, __, output: 2 * output)
    return net


def with_one_layer_twice() -> nn.Module:
    square = nn.Linear(6, 6)
    return nn.Sequential(square, nn.ReLU(), square, nn.ReLU(), nn.Linear(6, 3))


MODELS = {
    "linear": "mlr",
    "no-bias": "linear",
    "perceptron": "mlp:5,4",
    "tanh": lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
    "two linear": lambda: nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)),
    "one activation": with_one_activation,
    "one layer twice": with_one_layer_twice,
    "hook": with_a_hook,
    "batch norm": "bn-mlp:5",
    "residual": Residual,
    "frozen": frozen_first_layer,
    "convolution": convolutional,
}
KERNELS = {
    **dict.fromkeys(("linear", "no-bias", "perceptron", "tanh", "two linear", "one activation"), "linear"),
    "batch norm": "grouped",
    "convolution": "loop",
    **dict.fromkeys(("residual", "frozen", "one layer twice", "hook"), "vmap"),
}
SIZES = (1, 7, 23, 40, 16, 2, 31)


def federation(kind: str = "classification", sizes: tuple[int, ...] = SIZES) -> Federation:
    rng = np.random.default_rng(0)
    clients = {}
    for k, n in enumerate(sizes):
        y = rng.integers(0, 3, n) if kind == "classification" else rng.normal(size=(n, 3))
        clients[f"c{k}"] = (rng.normal(size=(n, 6)), y)
    classes = [0, 1, 2] if kind == "classification" else None
    return Federation.from_arrays(clients, classes=classes, test_fraction=0.2)


def shard_of(model: str | Callable[[], nn.Module], kind: str = "classification", workers: int = 2) -> Shard:
    data = federation(kind)
    return Shard(data, ModelSpec.of(model, data.task, torch.float64), Streams(3), workers)


def start(shard: Shard) -> torch.Tensor:
    return torch.stack([shard.spec.initial_row(Streams(3), k) for k in range(len(shard))])


@pytest.mark.parametrize("kind", ["classification", "regression"])
@pytest.mark.parametrize("label", MODELS)
@pytest.mark.parametrize(
    "settings",
    [Sgd(lr=0.1, epochs=2, batch_size=8), Sgd(lr=0.05, steps=5, batch_size=8, momentum=0.9, weight_decay=0.1)],
)
def test_every_kernel_agrees_with_the_plain_loop(label: str, kind: str, settings: Sgd) -> None:
    shard = shard_of(MODELS[label], kind)
    assert shard.choice.name == KERNELS[label], shard.choice.reason
    ids = np.arange(len(shard))
    rows = start(shard)
    trained, losses = train_rows(
        shard, ids, rows, settings, round=2, terms=[Pull(0.3, rows[:, : shard.spec.layout.n_parameters])]
    )
    assert torch.allclose(trained, train_by_loop(shard, ids, rows, settings, round=2, mu=0.3), atol=1e-10)
    assert torch.isfinite(losses).all()
    assert torch.equal(rows, start(shard)), "the input rows were changed"


def images(normed: bool) -> nn.Module:
    norm: list[nn.Module] = [nn.BatchNorm2d(4)] if normed else []
    first = [nn.Conv2d(2, 4, 3, padding=1), *norm, nn.Tanh(), nn.MaxPool2d(2, stride=1)]
    return nn.Sequential(
        *first, nn.Conv2d(4, 6, 2, stride=2, groups=2, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)
    )


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_clients_grouped_into_one_network_agree_with_the_plain_loop(normed: bool, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(1)
    clients = {
        f"c{k}": (rng.normal(size=(n, 2, 5, 5)), rng.integers(0, 3, n)) for k, n in enumerate((9, 1, 24, 16, 17))
    }
    data = Federation.from_arrays(clients, classes=[0, 1, 2], test_fraction=0)
    shard = Shard(data, ModelSpec.of(lambda: images(normed), data.task, dtype), Streams(3), workers=1)
    assert shard.choice.name == "grouped", shard.choice.reason
    ids, rows, settings = np.arange(len(shard)), start(shard), Sgd(lr=0.1, epochs=2, batch_size=8, momentum=0.5)
    trained, _ = train_rows(
        shard, ids, rows, settings, round=1, terms=[Pull(0.2, rows[:, : shard.spec.layout.n_parameters])]
    )
    wanted = train_by_loop(shard, ids, rows, settings, round=1, mu=0.2)
    assert torch.allclose(trained, wanted, atol=1e-10 if dtype is torch.float64 else 1e-4)
    assert not torch.allclose(trained, rows, atol=1e-2)


def test_workers_get_as_many_clients_each() -> None:
    shard, cost = shard_of("mlr"), np.arange(100)
    assert [len(chunk) for chunk in shard.chunks(cost, cost, 41)] == [25] * 4
    assert [len(chunk) for chunk in shard.chunks(cost[:3], cost[:3], 1)] == [1] * 3
    assert [len(chunk) for chunk in shard.chunks(cost[:5], cost[:5], 50)] == [3, 2]
    assert shard.chunks(cost[:0], cost[:0], 50) == []
    assert sorted(np.concatenate(shard.chunks(cost, cost, 7))) == list(range(100))


def test_one_number_per_row_however_the_rows_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, rows = shard_of("mlr"), torch.randn(7, 21, dtype=torch.float64)
    monkeypatch.setattr("fedkin.local.shard.PASS", 50)  # two rows at a time
    found = shard.per_row(lambda a, b: (a - b).norm(dim=1), rows, rows.flip(0))
    assert torch.equal(found, (rows - rows.flip(0)).norm(dim=1))
    assert shard.per_row(lambda a: a.sum(dim=1), rows[:0]).shape == (0,)


def pooled(channels: int, one_convolution: bool) -> nn.Module:
    bend, pool = nn.ReLU(), nn.MaxPool2d(2)
    first = nn.Conv2d(2, channels, 3, padding=1)
    second = nn.Conv2d(channels, channels, 3, padding=1)
    again = second if one_convolution else nn.Conv2d(channels, channels, 3, padding=1)
    layers = [
        first,
        bend,
        pool,
        second,
        bend,
        nn.Sequential(pool, again),
        bend,
        nn.Flatten(),
        nn.Linear(4 * channels, 3),
    ]
    return nn.Sequential(*layers)


@pytest.mark.parametrize(
    ("channels", "one_convolution", "kernel"), [(4, False, "grouped"), (4, True, "loop"), (36, False, "loop")]
)
def test_layers_that_stand_at_several_places_agree_with_the_plain_loop(
    channels: int, one_convolution: bool, kernel: str
) -> None:
    rng = np.random.default_rng(1)
    clients = {f"c{k}": (rng.normal(size=(n, 2, 8, 8)), rng.integers(0, 3, n)) for k, n in enumerate((9, 16, 17))}
    data = Federation.from_arrays(clients, classes=[0, 1, 2], test_fraction=0)
    model = ModelSpec.of(lambda: pooled(channels, one_convolution), data.task, torch.float64)
    shard = Shard(data, model, Streams(3), workers=1)
    assert shard.choice.name == kernel, shard.choice.reason
    ids, rows, settings = np.arange(len(shard)), start(shard), Sgd(lr=0.1, epochs=2, batch_size=8)
    trained, _ = train_rows(shard, ids, rows, settings, round=1)
    assert torch.allclose(trained, train_by_loop(shard, ids, rows, settings, round=1), atol=1e-10)


def test_pooling_before_relu_changes_no_bit() -> None:
    torch.manual_seed(0)
    plain = pooled(5, one_convolution=False)
    other = in_best_order(plain)
    assert [type(layer).__name__ for layer in other][1:6] == ["MaxPool2d", "ReLU", "Conv2d", "MaxPool2d", "ReLU"]
    images, slopes = torch.randn(6, 2, 8, 8).round(decimals=1), []
    images[0] = -3  # windows without a positive entry, and with several of the same
    for net in (plain, other):
        net.zero_grad()
        net(images).square().sum().backward()
        slopes.append([parameter.grad.clone() for parameter in plain.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*slopes))
    assert torch.equal(plain(images), other(images))


def test_layers_that_somebody_listens_to_keep_their_order() -> None:
    net = pooled(5, one_convolution=False)
    assert in_best_order(net) is not net
    net[1].register_forward_hook(lambda *_: None)
    assert in_best_order(net) is net


class Attention(nn.Module):
    """Two tokens of three numbers, attending to each other, once as a layer of torch's and once as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, batch_first=True)
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.block(self.first(x.view(-1, 2, 3)))
        mask = torch.ones(2, 2, dtype=torch.bool).tril()
        masked = nn.functional.scaled_dot_product_attention(h, h, h, attn_mask=mask)
        return self.last(masked + nn.functional.scaled_dot_product_attention(h, h, h, is_causal=True, scale=0.3)).mean(
            1
        )


def test_attention_is_stacked_without_torchs_fused_program() -> None:
    shard = shard_of(Attention)
    assert shard.choice.name == "vmap", shard.choice.reason
    ids, rows, settings = np.arange(len(shard)), start(shard), Sgd(lr=0.1, epochs=2, batch_size=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch tells that vmap has no rule for it, and calls it client by client
        trained, _ = train_rows(shard, ids, rows, settings, round=1)
    assert torch.allclose(trained, train_by_loop(shard, ids, rows, settings, round=1), atol=1e-10)


@pytest.mark.parametrize("label", ["perceptron", "batch norm", "residual"])
def test_a_client_alone_gets_the_same_numbers(label: str) -> None:
    shard, settings = shard_of(MODELS[label]), Sgd(lr=0.1, epochs=2, batch_size=8, momentum=0.5)
    ids, rows = np.arange(len(shard)), start(shard)
    together, _ = train_rows(shard, ids, rows, settings, round=1)
    for k in ids:
        alone, _ = train_rows(shard, ids[k : k + 1], rows[k : k + 1], settings, round=1)
        assert torch.allclose(alone[0], together[k], atol=1e-12)


def test_dropout_is_repeatable_per_client_and_leaves_the_global_generator_alone() -> None:
    shard = shard_of(with_dropout)
    assert shard.choice.dropout
    ids, rows, settings = np.arange(len(shard)), start(shard), Sgd(lr=0.1, epochs=2, batch_size=8)
    before = torch.get_rng_state()
    together, _ = train_rows(shard, ids, rows, settings, round=1)
    backwards, _ = train_rows(shard, ids[::-1].copy(), rows.flip(0), settings, round=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(together, backwards.flip(0))
    other, _ = train_rows(shard, ids, rows, settings, round=2)
    assert not torch.equal(together, other)


def test_proximal_gradient_is_mu_times_the_distance() -> None:
    """∇(μ/2)‖w − a‖² = μ(w − a): with a constant loss, one step of rate γ contracts w − a by 1 − γμ."""
    shard = shard_of("linear", "regression")
    ids, rows = np.arange(len(shard)), start(shard)
    anchor = rows + torch.randn(rows.shape, dtype=rows.dtype, generator=torch.Generator().manual_seed(0))
    settings = Sgd(lr=0.1, steps=1, batch_size=100)
    plain, _ = train_rows(shard, ids, rows, settings, round=1)
    pulled, _ = train_rows(shard, ids, rows, settings, round=1, terms=[Pull(0.7, anchor)])
    assert torch.allclose(pulled - plain, -0.1 * 0.7 * (rows - anchor), atol=1e-12)


def test_shift_is_added_to_every_gradient() -> None:
    shard = shard_of("linear", "regression")
    ids, rows = np.arange(len(shard)), start(shard)
    settings, shift = Sgd(lr=0.1, steps=1, batch_size=100), torch.ones_like(rows)
    plain, _ = train_rows(shard, ids, rows, settings, round=1)
    shifted, _ = train_rows(shard, ids, rows, settings, round=1, terms=[Shift(shift)])
    assert torch.allclose(shifted - plain, -0.1 * shift, atol=1e-12)


def test_learning_rate_decays_by_steps_of_rounds() -> None:
    settings = Sgd(lr=1.0, lr_decay=0.5, lr_decay_every=2)
    assert [settings.rate(t) for t in (1, 2, 3, 4, 5)] == [1, 1, 0.5, 0.5, 0.25]


def test_counters_count_batches_per_client() -> None:
    shard = shard_of("bn-mlp:5")
    ids, rows = np.arange(len(shard)), start(shard)
    counters = torch.zeros((len(shard), 1), dtype=torch.int64)
    train_rows(shard, ids, rows, Sgd(epochs=2, batch_size=8), round=1, counters=counters)
    sizes = shard.train.sizes
    whole, rest = sizes // 8, sizes % 8
    assert counters[:, 0].tolist() == (2 * (whole + (rest > 1))).tolist()  # a lone sample does not move the statistics


@pytest.mark.parametrize("label", ["perceptron", "batch norm", "residual"])
def test_evaluation_equals_the_module(label: str) -> None:
    shard = shard_of(MODELS[label])
    ids, rows = np.arange(len(shard)), start(shard)
    found = evaluate_rows(shard, ids, rows, "test")
    for k in ids:
        x, y = shard.test.of(k)
        assert found["count"][k] == len(x)
        if len(x):
            module = shard.spec.module(rows[k])
            with torch.no_grad():
                outputs = module(x)
            assert found["accuracy"][k] == pytest.approx((outputs.argmax(1) == y).double().mean().item())
            assert found["loss"][k] == pytest.approx(nn.functional.cross_entropy(outputs, y).item())


def test_float32_follows_float64() -> None:
    data = federation()
    settings = Sgd(lr=0.1, epochs=2, batch_size=8)
    trained = []
    for dtype in (torch.float32, torch.float64):
        shard = Shard(data, ModelSpec.of("mlp:5,4", data.task, dtype), Streams(3))
        rows = start(shard_of("mlp:5,4")).to(dtype)
        trained.append(train_rows(shard, np.arange(len(data)), rows, settings, round=1)[0].double())
    assert torch.allclose(*trained, atol=1e-4)
