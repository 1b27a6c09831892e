"""DP-SGD in the stacked kernels: what is clipped, how much noise, whose, and what a reader of models learns less of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, kstest
from torch import Tensor, nn

from fedkin import algorithms, data, train
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.local.batches import Batch
from fedkin.local.kernels import choose_kernel
from fedkin.local.kernels.clipping import ClippingKernel, clipping_kernel
from fedkin.local.kernels.per_sample import PerSampleKernel
from fedkin.local.private import PrivateKernel, PrivateTraining
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.training import train_rows as train_clients
from fedkin.models import ModelSpec
from fedkin.privacy.noise import SecretStream
from fedkin.privacy.settings import Privacy
from fedkin.streams import Streams
from fedkin.task.losses import loss_of

PRIVACY = {"level": "sample", "epsilon": 6.0, "delta": 1e-5, "clip": 0.5}


class Shortcut(nn.Module):
    """No chain of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(5, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        return self.last(hidden + self.inner(hidden).tanh())


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Dropout(0.4), nn.Linear(6, 3))


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))


class Reader(nn.Module):
    """A recurrent network that reads its inputs one after the other."""

    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell, self.last = cell(1, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cell(x[:, :, None])[0][:, -1])


def gru() -> nn.Module:
    return Reader(nn.GRU)


def recurrent() -> nn.Module:
    return Reader(nn.RNN)


MODELS: dict[str, Any] = {
    "softmax": "mlr",
    "chain": "mlp:6,4",
    "shortcut": Shortcut,
    "dropout": dropping,
    "convolutions": convolutions,
    "gru": gru,
}


def federation(clients: int = 3, samples: int = 40, seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    parts = {
        f"c{k}": (3 * rng.normal(size=(samples + 7 * k, 5)), rng.integers(0, 3, samples + 7 * k))
        for k in range(clients)
    }
    return Federation.from_arrays(parts, test_fraction=0.2)


def shard_of(model: Any, workers: int = 1, **more: Any) -> Shard:
    held = federation(**more)
    return Shard(held, ModelSpec.of(model, held.task, torch.float64), Streams(0), workers)


def kernel_of(held: Shard) -> ClippingKernel:
    return clipping_kernel(held.choice, held.spec, held.task)()


def one_by_one(held: Shard, row: Tensor, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """The slow version: autograd for every sample, clipped and summed, (P,)."""
    module = held.spec.module(row)
    total = torch.zeros(held.spec.layout.n_parameters, dtype=row.dtype)
    for a, b in zip(x, y):
        loss = loss_of(held.task)(module(a[None]), b[None]).sum()
        slope = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])
        total += slope * min(1.0, clip / float(slope.norm()))
    return total


@pytest.mark.parametrize("model", [name for name in MODELS if name != "dropout"])
def test_clipped_gradients_are_those_of_the_slow_version(model: str) -> None:
    held = shard_of(MODELS[model])
    x, y = held.train.of(0)
    rows = held.spec.initial_row(Streams(3))[None]
    out = torch.zeros((1, held.spec.layout.n_parameters), dtype=torch.float64)
    weight = torch.zeros((1, len(x)), dtype=torch.float64)
    weight[0, :9] = 0.25
    kernel_of(held).clipped_gradient(rows, x[None], y[None], weight, out, 0.7)
    assert torch.allclose(out[0], 0.25 * one_by_one(held, rows[0], x[:9], y[:9], 0.7), atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    model=st.sampled_from(list(MODELS)),
    clip=st.floats(1e-4, 10),
    scale=st.floats(1e-3, 1e4),
    seed=st.integers(0, 10**6),
    single=st.booleans(),
)
def test_no_sample_moves_the_sum_by_more_than_the_bound(
    model: str, clip: float, scale: float, seed: int, single: bool
) -> None:
    held = KEPT[model]
    dtype = torch.float32 if single else torch.float64
    kernel = clipping_kernel(held.choice, ModelSpec.of(MODELS[model], held.task, dtype), held.task)()
    if model != "softmax" and model != "chain" and not single:
        kernel = KERNELS[model]
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(rng.normal(size=(1, held.spec.layout.width))).to(dtype)
    x = torch.from_numpy(scale * rng.normal(size=(1, 1, 5))).to(dtype)
    y = torch.from_numpy(rng.integers(0, 3, (1, 1)))
    out = torch.zeros((1, held.spec.layout.n_parameters), dtype=dtype)
    kernel.clipped_gradient(rows, x, y, torch.ones((1, 1), dtype=dtype), out, clip)
    assert float(out.double().norm()) <= clip * (1 + 1e-5)


KEPT = {name: shard_of(model) for name, model in MODELS.items()}
KERNELS = {name: kernel_of(held) for name, held in KEPT.items()}


def test_both_kernels_agree_and_dropped_entries_count() -> None:
    held = shard_of("mlp:6,4")
    other = PerSampleKernel(held.spec, loss_of(held.task))
    x, y = held.train.of(1)
    rows = held.spec.initial_row(Streams(1)).expand(2, -1)
    many = [t[None].expand(2, *t.shape) for t in (x[:8], y[:8])]
    weight = torch.full((2, 8), 0.1, dtype=torch.float64)
    found = [torch.zeros((2, held.spec.layout.n_parameters), dtype=torch.float64) for _ in range(2)]
    losses = [
        kernel.clipped_gradient(rows, *many, weight, out, 0.3) for kernel, out in zip((kernel_of(held), other), found)
    ]
    assert torch.allclose(*found, atol=1e-12)
    assert torch.allclose(*losses)


@pytest.mark.parametrize("model", ["mlp:6", "mlp:4000,6"])
def test_the_fused_chain_is_the_general_path_on_the_same_batches(model: str) -> None:
    """The same secret streams, momentum as good as none; large matrices are multiplied client by client, without padding."""
    held = shard_of(model)
    rows = held.spec.initial_row(Streams(0)).expand(3, -1)
    how = {**PRIVACY, "epsilon": 1e9, "noise": 0.3, "insecure_noise_seed": 4}
    both = []
    for momentum in (0.0, 1e-14):
        chosen = Sgd(batch_size=8, epochs=2, momentum=momentum, weight_decay=0.01, privacy=how)  # type: ignore[arg-type]
        both.append(train_clients(held, np.arange(3), rows, chosen, 1)[0])
    assert torch.allclose(*both, atol=1e-9)
    assert not torch.allclose(both[0], rows, atol=1e-2)


def private(held: Shard, **changes: Any) -> PrivateTraining:
    privacy = Privacy(**{**PRIVACY, **changes})
    return PrivateTraining(held, np.arange(len(held)), Sgd(batch_size=8, epochs=3), privacy, 1, "test")


def test_noise_has_the_size_that_is_accounted_for() -> None:
    held = shard_of("mlp:6")
    training = private(held, noise=1.5, epsilon=1e9)
    size = len(training.sizes) and int(training.sizes[1])
    kernel = training.kernel(np.array([1]))
    width, drawn = held.spec.layout.n_parameters, []
    x, y, none = torch.zeros((1, 1, 5)).double(), torch.zeros((1, 1), dtype=torch.int64), torch.zeros((1, 1)).double()
    while len(drawn) * width < 10_000:
        out = torch.zeros((1, width), dtype=torch.float64)
        kernel.gradient(held.spec.initial_row(Streams(0))[None], Batch(x, y, none), out)
        drawn.append(out[0])
    values = torch.cat(drawn).numpy()[:10_000]
    due = 1.5 * 0.5 / (training.rates[1] * size)  # σC / (q n)
    assert due == pytest.approx(1.5 * 0.5 / 8)
    low, high = chi2.ppf([1e-5, 1 - 1e-5], 10_000)
    assert low <= (values**2).sum() / due**2 <= high
    assert kstest(values / due, "norm").pvalue > 1e-6


@pytest.mark.parametrize("model", ["mlr", "mlp:3000"])
def test_no_noise_is_used_twice_however_many_clients_make_a_step(model: str) -> None:
    """Of a small model noise is drawn for many steps at once, of a large one for one client after the other."""
    held = shard_of(model)
    kernel = private(held, noise=1.0, epsilon=1e9).kernel(np.arange(3))
    rows, found = held.spec.initial_row(Streams(0)).expand(3, -1), []
    for active in (1, 3, 2) * max(2, kernel.ahead // 2):
        x, y = torch.zeros((active, 1, 5)).double(), torch.zeros((active, 1), dtype=torch.int64)
        out = torch.zeros((active, held.spec.layout.n_parameters), dtype=torch.float64)
        kernel.gradient(rows[:active], Batch(x, y, torch.zeros((active, 1)).double()), out)
        found.append(out)
    assert (kernel.ahead > 1) == (model == "mlr")
    steps = torch.cat(found)
    few = torch.unique(steps[:, :4], dim=0)  # of thousands of float32 numbers two may well be equal, but not four times
    assert len(few) == len(steps)
    sizes = torch.cat([torch.arange(len(out)) for out in found])
    for k in range(3):
        assert float(steps[sizes == k].std()) == pytest.approx(float(kernel.scale[k]), rel=0.05)


def test_samples_take_part_by_chance_each_on_its_own() -> None:
    held = shard_of("mlr", samples=60)
    steps = Sgd(batch_size=8, steps=2000)
    training = PrivateTraining(
        held, np.arange(3), steps, Privacy(**{**PRIVACY, "noise": 50.0, "epsilon": 1e9}), 1, "test"
    )
    plan = training.plan(np.array([2, 0]), torch.float64)
    for row, k in enumerate((2, 0)):
        n, rate = int(training.sizes[k]), float(training.rates[k])
        real = plan.weight[row] > 0
        assert float(plan.weight[row][real].max()) == pytest.approx(1 / (rate * n))
        counts = real.sum(dim=1).double()
        assert abs(float(counts.mean()) - 8) < 5 * np.sqrt(8 / 2000)
        assert float(counts.var()) == pytest.approx(n * rate * (1 - rate), rel=0.2)
        often = torch.bincount(plan.index[row][real] - held.train.offsets[k], minlength=n).double() / 2000
        assert float((often - rate).abs().max()) < 5 * np.sqrt(rate * (1 - rate) / 2000)
        assert not bool((real[:, :-1] < real[:, 1:]).any())  # padding comes last


def test_noise_is_secret_unless_a_test_asks_for_it_in_any_sharding() -> None:
    def trained(workers: int, order: list[int], **changes: Any) -> Tensor:
        held = shard_of("mlp:6", workers=workers)
        rows = held.spec.initial_row(Streams(0)).expand(3, -1)
        chosen = Sgd(batch_size=8, epochs=2, privacy={**PRIVACY, **changes})  # type: ignore[arg-type]
        return train_clients(held, np.array(order), rows, chosen, 1)[0][np.argsort(order)]

    one, two = (trained(w, order, insecure_noise_seed=5) for w, order in ((1, [0, 1, 2]), (2, [2, 0, 1])))
    assert torch.allclose(one, two, atol=1e-12)
    assert not torch.allclose(one, trained(1, [0, 1, 2], insecure_noise_seed=6), atol=1e-3)
    assert not torch.allclose(trained(1, [0, 1, 2]), trained(1, [0, 1, 2]), atol=1e-3)


def test_secret_streams_are_normal_and_do_not_repeat() -> None:
    stream, first, second = SecretStream(), torch.empty(40_001), torch.empty(40_001)
    stream.fill(first, 3.0)
    stream.fill(second, 3.0)
    assert kstest(first.numpy() / 3, "norm").pvalue > 1e-6
    assert abs(float((first * second).mean())) < 9 * 5 / 200
    assert not torch.equal(first, second)
    assert stream.chosen(2, 3, 1.0).all()


def methods(level: str) -> list[str]:
    return [name for name in algorithms.names() if level in algorithms.get(name).protects]


@pytest.mark.parametrize("name", methods("sample"))
def test_every_method_spends_its_budget_and_tells_no_loss(name: str) -> None:
    rng = np.random.default_rng(0)
    held = Federation.from_arrays({f"c{k}": (rng.normal(size=(40, 5)), rng.integers(0, 3, 40)) for k in range(4)})
    if name == "oracle":
        held = data.load("clusters", clients=4, seed=0, samples=40, dimension=3)
    model = {"oracle": "linear", "mocha": "mlr"}.get(name, "mlp:6")
    graph = "complete" if algorithms.get(name).graph_spec else None
    result = train(held, model, name, graph=graph, rounds=2, privacy=PRIVACY)
    assert np.all(result.extras["epsilon"].numpy() <= 6 * (1 + 1e-6))
    assert np.all(result.extras["epsilon"].numpy() >= 0.95 * 6)
    assert [record["log"]["train_loss"] for record in result.history] == [None, None]
    assert len(result.history[-1]["log"]["epsilon_of_clients"]) == 4
    assert result.facts["privacy"]["secret_noise"]


@pytest.mark.parametrize(
    ("model", "stays"),
    [("mlp:6", "classifier"), (lambda: nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 3)), "2")],
)
def test_with_tensors_that_stay_at_home(model: Any, stays: str) -> None:
    result = train(federation(), model, "fedavg", rounds=2, privacy=PRIVACY, private=stays)
    heads = [module.get_submodule(stays).weight for module in result.models.values()]
    assert not torch.equal(heads[0], heads[1])
    assert np.all(result.extras["epsilon"].numpy() <= 6 * (1 + 1e-6))


def norms() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 0.05}, r"client 'c2' has 4\d samples.*below 0.02"),
        ({"delta": 1.5}, "delta"),
        ({"clip": 0.0}, "clip"),
        ({"level": "silo"}, "level"),
        ({"budget": 3}, "budget"),
    ],
)
def test_bad_tables_are_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FedkinError, match=message) as refused:
        train(federation(), "mlr", "fedavg", rounds=1, privacy={**PRIVACY, **changes})
    assert "\n" not in str(refused.value)


def test_a_table_without_delta_says_so() -> None:
    with pytest.raises(FedkinError, match=r"privacy\.delta is missing$"):
        train(federation(), "mlr", "fedavg", rounds=1, privacy={"level": "sample", "epsilon": 6})


@pytest.mark.parametrize(
    ("model", "method", "parameters", "graph", "message"),
    [
        (norms, "fedavg", {}, None, "layer '1' .BatchNorm1d. mixes the samples.*GroupNorm"),
        (recurrent, "fedavg", {}, None, "one by one"),
        ("mlr", "fedavg", {"moments": "keep", "momentum": 0.9}, None, "moments at 'reset'"),
        ("mlr", "fedavg", {"robust": "evidence"}, None, "robust"),
        ("mlr", "fedproto", {}, None, "fedproto is not among the methods"),
        ("mlr", "fedpnp", {}, None, "graph 'statistics' is built from what clients tell"),
        ("mlr", "fedu", {}, "labels", "graph 'labels' is built from what clients tell"),
    ],
)
def test_what_cannot_be_private_is_refused_before_training(
    model: Any, method: str, parameters: dict[str, Any], graph: str | None, message: str
) -> None:
    with pytest.raises(FedkinError, match=message) as refused:
        train(federation(), model, algorithms.make(method, parameters), graph=graph, rounds=1, privacy=PRIVACY)
    assert "\n" not in str(refused.value)


def test_without_the_extra_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from fedkin.privacy.accounting import accountants

    accountants.cache_clear()
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    try:
        with pytest.raises(FedkinError, match=r"fedkin\[privacy\]"):
            train(federation(), "mlr", "fedavg", rounds=1, privacy=PRIVACY)
    finally:
        accountants.cache_clear()


def advantage(epsilon: float | None) -> float:
    """How well the loss tells members from others: the area under the ROC curve, 0.5 for a guess, mean over clients."""
    rng = np.random.default_rng(1)
    parts = {f"c{k}": (rng.normal(size=(60, 60)), rng.integers(0, 2, 60)) for k in range(8)}
    held = Federation.from_arrays(parts, test_fraction=0.5)
    privacy = (
        None
        if epsilon is None
        else {**PRIVACY, "epsilon": epsilon, "clip": 1.0, "delta": 1e-3, "insecure_noise_seed": 1}
    )
    method = algorithms.make("local", {"lr": 0.5, "epochs": 5, "batch_size": 10})
    result = train(held, "mlr", method, rounds=4, privacy=privacy)
    found = []
    for k, name in enumerate(held.names):
        losses = []
        for part in (held.train, held.test):
            x, y = (torch.as_tensor(values) for values in part[k])
            losses.append(loss_of(held.task)(result.models[name](x.float()), y).detach().numpy())
        found.append((losses[0][:, None] < losses[1][None, :]).mean())
    return float(np.mean(found))


def test_membership_is_harder_to_tell_with_a_smaller_epsilon() -> None:
    plain, loose, tight = (advantage(epsilon) for epsilon in (None, 30.0, 1.0))
    assert plain > 0.85
    assert plain > loose + 0.05
    assert loose > tight + 0.03
    assert tight < 0.62


def test_choice_of_the_private_kernel() -> None:
    held = shard_of("mlp:6")
    training = private(held)
    assert isinstance(training.kernel(np.array([0])), PrivateKernel)
    assert training.kernel(np.array([0])).fuses
    assert choose_kernel(held.spec, held.task).name == "linear"


@pytest.mark.parametrize("option", [{"augment": "mixup:0.2"}, {"precision": "bfloat16-mixed"}])
def test_augmentation_and_other_precisions_are_refused(option: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    sites = {f"c{k}": (rng.normal(size=(20, 3)), rng.integers(0, 2, 20)) for k in range(3)}
    with pytest.raises(FedkinError, match="private training"):
        train(Federation.from_arrays(sites), "mlr", "fedavg", rounds=1, privacy={"epsilon": 4, "delta": 1e-5}, **option)
