"""Every optimiser and loss against a plain nn.Module and torch.optim, and what step rules, terms and dropout promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import fedkin
from fedkin.algorithms import FedAvg
from fedkin.compute.steps import step_rule
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.local.kernels import NARROW
from fedkin.local.kernels.recurrent import StackedGru
from fedkin.local.noise import Noise, drops_of, masked
from fedkin.local.oracle import torchs, train_by_loop
from fedkin.local.schedules import schedule
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.terms import Clip, Mask, Pull
from fedkin.local.training import train_rows
from fedkin.models import ModelSpec
from fedkin.streams import Streams
from fedkin.task.choice import chosen
from fedkin.task.losses import loss_of

SIZES = (1, 7, 23, 16)
OPTIMISERS = ("sgd", "adam", "adamw", "rmsprop")
LOSSES: dict[str, list[Any]] = {
    "classification": ["cross-entropy", "focal:2", "focal:0.5"],
    "regression": ["mse", "mae", "huber:0.5", "quantile:0.9", "poisson"],
    "multilabel": ["bce"],
}


def cubic(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets.reshape(outputs.shape)).abs().pow(3).sum(dim=1)


def federation(kind: str) -> Federation:
    rng = np.random.default_rng(0)
    draw: dict[str, Callable[[int], np.ndarray]] = {
        "classification": lambda n: rng.integers(0, 3, n),
        "regression": lambda n: rng.poisson(2.0, size=(n, 3)).astype(float),
        "multilabel": lambda n: rng.integers(0, 2, (n, 3)),
    }
    clients = {f"c{k}": (rng.normal(size=(n, 6)), draw[kind](n)) for k, n in enumerate(SIZES)}
    classes = [0, 1, 2] if kind == "classification" else None
    return Federation.from_arrays(clients, task=kind, classes=classes, test_fraction=0)  # type: ignore[arg-type]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.first(x).tanh())


def normed() -> nn.Module:
    """Without a bias before the norm: its gradient is rounding alone, which Adam would blow up."""
    return nn.Sequential(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


class Long(nn.Module):
    """The same by an LSTM, which stays with torch's own program."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.cell, self.last = nn.LSTM(2, size, batch_first=True), nn.Linear(size, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cell(x.unflatten(1, (3, 2)))[0][:, -1])


class Sequence(nn.Module):
    """Six inputs as three steps of two, read by a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cell(x.unflatten(1, (3, 2)))[0][:, -1])


def layer_normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 3))


MODELS: dict[str, tuple[Any, str]] = {
    "chain": ("mlp:5", "linear"),
    "wide chain": ("mlp:40", "linear"),
    "batch norm": (normed, "grouped"),
    "shortcut": (Residual, "vmap"),
    "layer norm": (layer_normed, "vmap"),
    "GRU": (Sequence, "vmap"),
    "LSTM": (partial(Long, 4), "loop"),
}


def shard_of(data: Federation, model: Any, workers: int = 1) -> Shard:
    return Shard(data, ModelSpec.of(model, data.task, torch.float64), Streams(3), workers)


def start(shard: Shard) -> Tensor:
    return torch.stack([shard.spec.initial_row(Streams(3), k) for k in range(len(shard))])


PAIRS = st.sampled_from([(kind, loss) for kind, losses in LOSSES.items() for loss in losses] + [("regression", cubic)])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    pair=PAIRS,
    optimiser=st.sampled_from(OPTIMISERS),
    model=st.sampled_from(sorted(MODELS)),
    decay=st.sampled_from([0.0, 0.1]),
    clip=st.sampled_from([None, 0.3]),
    momentum=st.sampled_from([0.0, 0.5]),
    weighted=st.booleans(),
    smooth=st.sampled_from([0.0, 0.1]),
    paced=st.sampled_from(["constant", "step:1,0.5", "warm-up:4", "cosine:5+warm-up:2"]),
    round=st.integers(1, 4),
)
def test_every_optimiser_and_loss_agrees_with_torch(
    pair: tuple[str, Any],
    optimiser: Any,
    model: str,
    decay: float,
    clip: float | None,
    momentum: float,
    weighted: bool,
    smooth: float,
    paced: str,
    round: int,
) -> None:
    kind, loss = pair
    data = federation(kind)
    extras: dict[str, Any] = {}
    if kind != "regression":
        extras = {"class_weight": [0.5, 1.0, 2.0] if weighted else None, "label_smoothing": smooth}
    data = replace(data, task=chosen(data.task, loss, **extras))
    factory, kernel = MODELS[model]
    shard = shard_of(data, factory)
    assert shard.choice.name == kernel, shard.choice.reason
    how = Sgd(
        lr=0.02,
        epochs=2,
        batch_size=8,
        optimiser=optimiser,
        momentum=momentum if optimiser in ("sgd", "rmsprop") else 0.0,
        weight_decay=decay,
        clip=clip,
        lr_schedule=paced,
    )
    ids, rows = np.arange(len(shard)), start(shard)
    trained, losses = train_rows(shard, ids, rows, how, round)
    assert torch.allclose(trained, train_by_loop(shard, ids, rows, how, round), rtol=0, atol=1e-10)
    assert torch.isfinite(losses).all()


@pytest.mark.parametrize("width", [4, 300])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_clients_with_different_numbers_of_steps_have_moments_of_their_own(optimiser: Any, width: int) -> None:
    """Two clients side by side, of which one makes steps 1 and 2 and the other comes later: each is torch's optimiser."""
    torch.manual_seed(0)
    weights = torch.randn((2, width), dtype=torch.float64)
    rule = step_rule(optimiser, weights, 0.1, 0.5 if optimiser in ("sgd", "rmsprop") else 0.0, 0.01)
    slopes = [torch.randn((2, width), dtype=torch.float64) for _ in range(3)]
    modules = [nn.Linear(width, 1, bias=False).double() for _ in range(2)]
    for module, row in zip(modules, weights):
        module.weight.data[0] = row
    how = Sgd(lr=0.1, optimiser=optimiser, momentum=0.5 if optimiser in ("sgd", "rmsprop") else 0.0, weight_decay=0.01)
    if optimiser != "adamw":
        how = how.model_copy(update={"weight_decay": 0.0})
    theirs = [torchs(how, 1, module) for module in modules]
    for active, slope in zip((1, 2, 2), slopes):
        rule.step(weights[:active], slope[:active].clone())
        for k in range(active):
            modules[k].weight.grad = slope[k][None].clone()
            theirs[k].step()
    for k, module in enumerate(modules):
        assert torch.allclose(weights[k], module.weight[0], atol=1e-12)


@pytest.mark.parametrize("width", [5, 301])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_who_steps_beside_a_client_does_not_change_a_bit(
    optimiser: Any, momentum: float, dtype: torch.dtype, width: int
) -> None:
    """Three clients, one of which comes a step late, together and each alone; few and many parameters, odd numbers of both."""
    torch.manual_seed(0)
    how = 0.1, momentum if optimiser in ("sgd", "rmsprop") else 0.0, 0.01
    begin, slopes = torch.randn((3, width), dtype=dtype), torch.randn((6, 3, width), dtype=dtype)
    together, rule = begin.clone(), step_rule(optimiser, begin, *how)
    for t, slope in enumerate(slopes):
        active = 2 if t == 0 else 3
        rule.step(together[:active], slope[:active].clone())
    for k in range(3):
        alone, own = begin[k : k + 1].clone(), step_rule(optimiser, begin[:1], *how)
        for slope in slopes[k == 2 :]:
            own.step(alone, slope[k : k + 1].clone())
        assert torch.equal(alone[0], together[k])
        assert all(torch.equal(moment[0], rule.state[name][k]) for name, moment in own.state.items())


def test_clipping_bounds_the_norm_of_every_client_alone() -> None:
    slopes = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    Clip(1.0).add(slopes, slopes)
    assert torch.allclose(slopes, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))


def test_a_masked_column_does_not_move() -> None:
    shard = shard_of(federation("classification"), "mlp:5")
    rows, columns = start(shard), torch.zeros(shard.spec.layout.n_parameters, dtype=torch.float64)
    columns[::2] = 1
    trained, _ = train_rows(shard, np.arange(4), rows, Sgd(lr=0.1, batch_size=8), 1, [Mask(columns)])
    assert torch.equal(trained[:, 1::2], rows[:, 1::2])
    assert not torch.equal(trained[:, ::2], rows[:, ::2])


def test_terms_fused_into_the_linear_kernel_are_those_applied_one_by_one() -> None:
    shard = shard_of(federation("classification"), "mlp:5")
    rows, how = start(shard), Sgd(lr=0.1, batch_size=8, weight_decay=0.1)
    pull = Pull(0.5, rows + 1)
    fused, _ = train_rows(shard, np.arange(4), rows, how, 1, [pull])
    everything = Mask(torch.ones(rows.shape[1], dtype=torch.float64))
    apart, _ = train_rows(shard, np.arange(4), rows, how, 1, [pull, everything])
    assert torch.allclose(fused, apart, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("first", [False, True])
def test_a_stacked_gru_is_torchs(bias: bool, both: bool, layers: int, first: bool) -> None:
    """Three clients under vmap, each with weights, inputs and a first state of its own: states and all gradients."""
    torch.manual_seed(0)
    how: dict[str, Any] = {"bias": bias, "bidirectional": both, "num_layers": layers, "batch_first": first}
    theirs = [nn.GRU(3, 4, **how).double() for _ in range(3)]
    stand_in = StackedGru(theirs[0])
    x = torch.randn((3, 5, 6, 3), dtype=torch.float64, requires_grad=True)
    begin = torch.randn((3, layers * (1 + both), 5 if first else 6, 4), dtype=torch.float64, requires_grad=True)
    own = {
        name: torch.stack([dict(t.named_parameters())[name].detach() for t in theirs])
        for name, _ in theirs[0].named_parameters()
    }

    def total(tensors: dict[str, Tensor], x: Tensor, begin: Tensor) -> Tensor:
        states, last = functional_call(stand_in, tensors, (x, begin))
        return (states * states.cos()).sum() + (last**3).sum()

    slopes = vmap(grad(total, argnums=(0, 1, 2)))(own, x.detach(), begin.detach())
    for k, gru in enumerate(theirs):
        states, last = gru(x[k], begin[k])
        (by_hand, *rest) = torch.autograd.grad(
            (states * states.cos()).sum() + (last**3).sum(), [x, begin, *gru.parameters()]
        )
        assert torch.allclose(slopes[1][k], by_hand[k], atol=1e-10)
        assert torch.allclose(slopes[2][k], rest[0][k], atol=1e-10)
        for (name, _), slope in zip(gru.named_parameters(), rest[1:]):
            assert torch.allclose(slopes[0][name][k], slope, atol=1e-10)


def test_wide_grus_and_those_with_dropout_are_trained_one_by_one() -> None:
    data = federation("classification")

    def kernel(size: int, **how: Any) -> str:
        def made() -> nn.Module:
            module = Sequence()
            module.cell, module.last = nn.GRU(2, size, batch_first=True, **how), nn.Linear(size, 3)
            return module

        return shard_of(data, made).choice.name

    assert [kernel(NARROW, num_layers=2), kernel(NARROW + 1), kernel(4, num_layers=2, dropout=0.1)] == [
        "vmap",
        "loop",
        "loop",
    ]


# --- schedules --------------------------------------------------------------------------------------------------------


def test_schedules_multiply_the_rate() -> None:
    assert [schedule("step:2,0.5")(t) for t in (1, 2, 3, 5)] == [1, 1, 0.5, 0.25]
    assert schedule("cosine:10,0.1")(11) == pytest.approx(0.1)
    assert [Sgd(lr=2.0, lr_schedule="warm-up:4").rate(t) for t in (1, 4, 9)] == [0.5, 2, 2]
    assert Sgd(lr=2.0, lr_schedule=lambda t: 1 / t).rate(4) == 0.5


def test_a_function_of_the_round_stays_on_the_server() -> None:
    told = Sgd(lr=2.0, lr_decay=0.5, lr_schedule=lambda t: 1 / t).told(round=2)
    assert Sgd(**told).rate(2) == told["lr"] == 0.5


@pytest.mark.parametrize("text", ["cosin:3", "step:x", "cosine:0", "warm-up:1,2,3"])
def test_a_wrong_schedule_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(FedkinError, match="schedule") as refused:
        FedAvg(lr_schedule=text)
    assert "\n" not in str(refused.value)


def test_momentum_of_adam_is_refused() -> None:
    with pytest.raises(FedkinError, match="momentum of its own"):
        FedAvg(optimiser="adam", momentum=0.5)


# --- moments ----------------------------------------------------------------------------------------------------------


def runs(**how: Any) -> Any:
    method = FedAvg(lr=0.01, batch_size=8, **how)
    return fedkin.train(federation("classification"), "mlp:4", method, rounds=3, dtype="float64", cohort=3)


def test_moments_are_kept_or_reset() -> None:
    kept, reset = runs(optimiser="adam", moments="keep"), runs(optimiser="adam")
    assert not np.array_equal(kept.rows, reset.rows)
    assert np.array_equal(runs(moments="keep").rows, runs().rows), "plain SGD has nothing to keep"


def test_one_client_that_keeps_its_moments_is_one_long_run_of_adam() -> None:
    data = federation("classification").take([2])
    method = FedAvg(lr=0.01, epochs=1, batch_size=100, optimiser="adam", moments="keep")
    found = fedkin.train(data, "mlp:4", method, rounds=5, dtype="float64").rows
    method = FedAvg(lr=0.01, batch_size=100, optimiser="adam", epochs=5)
    assert np.allclose(found, fedkin.train(data, "mlp:4", method, rounds=1, dtype="float64").rows, atol=1e-10)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    pair=PAIRS,
    optimiser=st.sampled_from(OPTIMISERS),
    decay=st.sampled_from([0.0, 0.1]),
    clip=st.sampled_from([None, 0.3]),
    paced=st.sampled_from(["constant", "step:2,0.5", "warm-up:3"]),
)
def test_kept_moments_are_one_torch_optimiser_over_all_rounds(
    pair: tuple[str, Any], optimiser: Any, decay: float, clip: float | None, paced: str
) -> None:
    """One client with all samples in a batch: the rounds of fedkin are the steps of a single optimiser of torch."""
    kind, loss = pair
    data = federation(kind).take([2])
    momentum = 0.5 if optimiser in ("sgd", "rmsprop") else 0.0
    how: dict[str, Any] = {"optimiser": optimiser, "momentum": momentum, "weight_decay": decay, "clip": clip}
    method = FedAvg(lr=0.02, epochs=2, batch_size=100, moments="keep", lr_schedule=paced, **how)
    found = fedkin.train(data, "mlp:4", method, rounds=3, dtype="float64", loss=loss).rows[0]
    task = chosen(data.task, loss)
    spec = ModelSpec.of("mlp:4", task, torch.float64)
    module = spec.module(spec.initial_row(Streams(0)))
    theirs = torchs(method, 1, module)
    x, y = Shard(data, spec, Streams(0), 1).train.of(0)
    for round in (1, 2, 3):
        theirs.param_groups[0]["lr"] = method.rate(round)
        for _ in range(2):
            theirs.zero_grad()
            loss_of(task)(module(x), y).mean().backward()
            if clip:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            theirs.step()
    assert np.allclose(found, spec.layout.pack(module, torch.float64).numpy(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("optimiser", ["adam", "rmsprop"])
def test_kept_moments_are_in_the_checkpoint(optimiser: Any, tmp_path: Path) -> None:
    data, how = federation("classification"), {"dtype": "float64", "cohort": 3, "checkpoint_every": 1}
    method = FedAvg(lr=0.01, batch_size=8, optimiser=optimiser, moments="keep")
    whole = fedkin.train(data, "mlp:4", method, rounds=4, **how)
    fedkin.train(data, "mlp:4", method, rounds=2, out=tmp_path / "run", **how)
    assert np.array_equal(fedkin.resume(tmp_path / "run", data, rounds=4).rows, whole.rows)


def test_adam_counts_its_steps_per_client() -> None:
    rule = step_rule("adam", torch.zeros((2, 1)), 0.1)
    for active in (2, 1, 1):
        rule.step(torch.zeros((active, 1)), torch.ones((active, 1)))
    assert rule.state["count"].tolist() == [3, 1]


# --- dropout ----------------------------------------------------------------------------------------------------------


def chain() -> nn.Module:
    first = [nn.Dropout(0.2), nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5)]
    return nn.Sequential(*first, nn.Linear(8, 7), nn.ReLU(), nn.Dropout(0.3), nn.Linear(7, 3))


class Dropped(nn.Module):
    """No chain: a shortcut and two dropouts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.one, self.two = nn.Dropout(0.5), nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.two(x + self.one(self.first(x).relu())))


DROPPED: dict[str, Callable[[], nn.Module]] = {"linear": chain, "vmap": Dropped}


@pytest.mark.parametrize("name", DROPPED)
def test_dropout_does_not_depend_on_chunks_order_or_workers(name: str) -> None:
    data, how = federation("classification"), Sgd(lr=0.1, epochs=2, batch_size=8)
    one, two = shard_of(data, DROPPED[name], 1), shard_of(data, DROPPED[name], 2)
    assert (one.choice.name, one.choice.dropout, one.choice.stochastic) == (name, True, False)
    ids, rows = np.arange(4), start(one)
    together, _ = train_rows(one, ids, rows, how, round=1)
    assert torch.allclose(
        train_rows(two, ids[::-1].copy(), rows.flip(0), how, round=1)[0].flip(0), together, atol=1e-12
    )
    for k in ids:
        alone, _ = train_rows(one, ids[k : k + 1], rows[k : k + 1], how, round=1)
        assert torch.allclose(alone[0], together[k], atol=1e-12)
    assert not torch.allclose(train_rows(one, ids, rows, how, round=2)[0], together, atol=1e-3)


@pytest.mark.parametrize("name", DROPPED)
def test_dropout_is_the_module_with_the_clients_own_masks(name: str) -> None:
    """One full batch: autograd through the module, its dropout layers replaced by the masks of the client's stream."""
    data, how = federation("classification"), Sgd(lr=0.1, epochs=1, batch_size=100)
    shard = shard_of(data, DROPPED[name])
    ids, rows = np.arange(4), start(shard)
    trained, _ = train_rows(shard, ids, rows, how, round=1)
    drops = drops_of(DROPPED[name]().double(), torch.zeros((2, 6), dtype=torch.float64))
    words = shard.streams.words("batches dropout", 1, shard.keys)
    for k in ids:
        x, y = shard.train.of(k)
        order = batch_order(shard, int(k))
        masks = Noise(words[k : k + 1]).masks(torch.ones((1, len(x))), drops)
        module = masked(shard.spec.layout.unpack(rows[k], shard.spec.template())).train()
        for drop, mask in zip(drops, masks):
            module.get_submodule(drop.name).mask = mask[0].double()
        nn.functional.cross_entropy(module(x[order]), y[order]).backward()
        stepped = torch.cat([(p - 0.1 * p.grad).reshape(-1) for p in module.parameters() if p.grad is not None])
        assert torch.allclose(trained[k], stepped, atol=1e-12)


def batch_order(shard: Shard, k: int) -> Tensor:
    from fedkin.local.batches import plan_batches

    words = shard.streams.words("batches", 1, shard.keys)[k : k + 1]
    sizes, offsets = shard.train.sizes[k : k + 1], shard.train.offsets[k : k + 1]
    return plan_batches(words, sizes, offsets, 100, 1, None, torch.float64).index[0, 0] - int(offsets[0])


def test_masks_keep_the_mean() -> None:
    drops = drops_of(nn.Sequential(nn.Dropout(0.3), nn.Linear(50, 1)), torch.zeros((2, 50)))
    (mask,) = Noise(np.array([1, 2], dtype=np.uint64)).masks(torch.ones((2, 400)), drops)
    assert mask.shape == (2, 400, 50)
    assert float(mask.mean()) == pytest.approx(1, abs=0.02)
    assert float((mask == 0).double().mean()) == pytest.approx(0.3, abs=0.01)
