"""FedSKA: split learning, the cosine term, what travels, the graph, limits and refusals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import fedkin
from fedkin.algorithms import FedAvg, FedAvgFT, FedSKA, FedU
from fedkin.engines.in_process import InProcess
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.graphs import ClientGraph
from fedkin.graphs.learned import GraphEncoder, StructureLearner, normalise
from fedkin.local.features import Granularity, misalignment, split_gradient, taps, train_guided
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.models import ModelSpec
from fedkin.run import Run
from fedkin.streams import Streams
from fedkin.task.choice import chosen
from fedkin.task.losses import cross_entropy, loss_of

GRANULARITIES = ["client", "class", "aligned"]


def equal_federation(clients: int = 4, n: int = 12) -> Federation:
    rng = np.random.default_rng(2)
    made = {}
    for k in range(clients):
        y = np.concatenate([np.arange(3), rng.integers(0, 3, n - 3)]) if k % 2 else rng.integers(0, 2, n)
        made[f"site-{k}"] = (rng.normal(size=(n, 5)) + np.eye(3, 5)[y], y)
    return Federation.from_arrays(made, classes=[0, 1, 2], test_fraction=0.25)


def split_task(federation: Federation, model: str, granularity: str) -> tuple[InProcess, Any, Tensor]:
    """Clients that have trained one round, and features for them."""
    spec = ModelSpec.of(model, federation.task, torch.float64)
    clients = InProcess(federation, spec, Streams(0), 1)
    ids = np.arange(len(federation))
    rows = spec.initial_row(Streams(0)).expand(len(ids), -1)
    how = {"layer": "features", "cosine": 1.0, "granularity": granularity}
    shared = {"sgd": Sgd(batch_size=4).model_dump(), "round": 1, **how}
    replies = clients.ask("fedkin.algorithms.fedska:fedska", ids, {"rows": rows}, shared)
    parts = replies.arrays.get("parts", replies["features"][:, None])
    return clients, replies, parts


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("model", ["mlp:6", "bn-mlp:6"])
def test_split_learning_has_the_gradient_of_joint_autograd(model: str, granularity: str) -> None:
    federation = equal_federation()
    clients, replies, parts = split_task(federation, model, granularity)
    held = replies.arrays.get("held", torch.ones(parts.shape[:2], dtype=torch.bool))
    graph = normalise(torch.ones((4, 4), dtype=torch.float64) + torch.eye(4))
    encoder = GraphEncoder(6)
    theta = (encoder.initial() + 0.1).requires_grad_()

    guides = encoder.encode(theta, graph, parts, held)
    how = {"layer": "features", "cosine": 1.0, "granularity": granularity}
    told = clients.ask("fedkin.algorithms.fedska:fedska gradient", np.arange(4), {"guides": guides.detach()}, how)
    ours = torch.autograd.grad(guides, theta, told["gradient"])[0]
    assert set(told.arrays) == {"gradient", "loss"}
    assert told["gradient"].shape == guides.shape

    def joint() -> Tensor:
        """The paper's loss in one place: every client's classifier on its own mixed features, with its own labels."""
        mixed, total = encoder.encode(theta, graph, parts, held), torch.zeros((), dtype=torch.float64)
        spec = ModelSpec.of(model, federation.task, torch.float64)
        for k, (_, y) in enumerate(federation.train):
            head: nn.Module = spec.module(replies["rows"][k]).classifier
            chosen = {"client": np.zeros_like(y), "class": y, "aligned": np.arange(len(y))}[granularity]
            total = total + nn.functional.cross_entropy(head(mixed[k][chosen]), torch.from_numpy(y))
        return total

    theirs = torch.autograd.grad(joint(), theta)[0]
    assert torch.allclose(ours, theirs, atol=1e-10)
    assert float(told["loss"].sum()) == pytest.approx(float(joint().detach()))
    assert float(ours.norm()) > 1e-3


@pytest.mark.parametrize("granularity", ["client", "class"])
def test_the_classifier_may_be_that_of_the_averaged_model(granularity: str, run: Callable[..., Run]) -> None:
    """Algorithm 1: w_k ← w_t, then split learning. The loss of the one encoder step, client by client, with FedAvg's classifier."""
    federation, loss = equal_federation(), {}
    common: dict[str, Any] = {"lr": 0.3, "epochs": 2, "batch_size": 5, "k": 2, "granularity": granularity}
    steps: dict[str, Any] = {"structure_steps": 0, "encoder_steps": 1}
    for head in ("trained", "received"):
        done = run(federation, "mlp:6", FedSKA(**common, **steps, classifier=head), rounds=1)
        loss[head] = done.history[-1]["log"]["encoder_loss"]
        arrays = done.state.arrays
    assert loss["trained"] != pytest.approx(loss["received"], rel=1e-3)
    learner = StructureLearner(6, 2)
    parts, held = arrays["parts"], arrays["held"]
    graph = learner.graph(learner.initial(np.random.default_rng(0)), arrays["features"])  # G starts as the identity
    guides = GraphEncoder(6).encode(GraphEncoder(6).initial(), graph, parts, held)
    spec = ModelSpec.of("mlp:6", federation.task, torch.float64)
    averaged = run(federation, "mlp:6", FedAvg(lr=0.3, epochs=2, batch_size=5), rounds=1).state.rows[0]
    by_hand = []
    for k, (_, y) in enumerate(federation.train):
        chosen = guides[k][torch.from_numpy(y if granularity == "class" else np.zeros_like(y))]
        by_hand.append(float(cross_entropy(spec.module(averaged).classifier(chosen), torch.from_numpy(y)).mean()))
    assert loss["received"] == pytest.approx(np.mean(by_hand), rel=1e-9)
    alone = [run(federation, "mlp:6", FedSKA(**common, average=False, classifier=h)) for h in ("trained", "received")]
    assert torch.equal(alone[0].state.rows, alone[1].state.rows)


@pytest.mark.parametrize("granularity", ["client", "aligned"])
def test_split_learning_of_a_regression(granularity: str) -> None:
    rng = np.random.default_rng(0)
    federation = Federation.from_arrays({f"s{k}": (rng.normal(size=(8, 5)), rng.normal(size=8)) for k in range(3)})
    clients, replies, parts = split_task(federation, "mlp:6", granularity)
    guides = parts.clone().requires_grad_()
    how = {"layer": "features", "cosine": 1.0, "granularity": granularity}
    told = clients.ask("fedkin.algorithms.fedska:fedska gradient", np.arange(3), {"guides": guides.detach()}, how)
    spec = ModelSpec.of("mlp:6", federation.task, torch.float64)
    for k, (_, y) in enumerate(federation.train):
        outputs = spec.module(replies["rows"][k]).classifier(guides[k].expand(len(y), -1))
        loss = (outputs[:, 0] - torch.from_numpy(y)).square().mean()
        assert torch.allclose(torch.autograd.grad(loss, guides)[0][k], told["gradient"][k])


def test_cosine_term_by_hand_and_its_gradient() -> None:
    h = torch.tensor([[1.0, 0.0], [1.0, 1.0], [-2.0, 0.0], [0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    g = torch.tensor([[5.0, 0.0], [1.0, 0.0], [3.0, 0.0], [1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(misalignment(h, g), torch.tensor([0, 1 - 0.5**0.5, 2, 0, 0], dtype=torch.float64))
    h.requires_grad_()
    slope = torch.autograd.grad(misalignment(h, g).sum(), h)[0]
    assert not slope[3:].any(), "a vector without direction pulls nothing and is not pulled"
    point = torch.randn((3, 4), dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: misalignment(a, torch.ones_like(a)), point)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("model", ["mlp:6", "bn-mlp:6"])
def test_guided_training_equals_a_plain_loop(model: str, granularity: str) -> None:
    """One nn.Module and torch.optim.SGD per client, cross entropy plus the cosine term, as a reader would write it."""
    federation = equal_federation()
    spec = ModelSpec.of(model, federation.task, torch.float64)
    shard = Shard(federation, spec, Streams(3), 2)
    ids, n = np.array([2, 0, 3]), int(federation.train.sizes[0])
    m = {"client": 1, "class": 3, "aligned": n}[granularity]
    guides = torch.randn((3, m, 6), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    start = spec.initial_row(Streams(3)).expand(3, -1)
    settings = Sgd(lr=0.1, batch_size=5, epochs=2, momentum=0.5, weight_decay=0.01)
    tap = taps(shard, "features", 0.7)
    counters = spec.initial_counters().expand(3, -1).clone()
    trained, _ = train_guided(shard, ids, start, settings, 1, tap, guides, granularity, counters)

    from fedkin.local.batches import plan_batches

    for row, k in enumerate(ids):
        x, y = (torch.from_numpy(a) for a in federation.train[int(k)])
        words = shard.streams.words("batches", 1, shard.keys[k : k + 1])
        plan = plan_batches(words, np.array([n]), np.zeros(1, dtype=int), 5, 2, None, torch.float64)
        module = spec.module(start[row]).train()
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5, weight_decay=0.01)
        for step in range(int(plan.steps[0])):
            chosen = plan.index[0, step][plan.weight[0, step] > 0]
            h = module.features(x[chosen])
            goal = guides[row][{"client": torch.zeros_like(chosen), "class": y[chosen], "aligned": chosen}[granularity]]
            away = 1 - nn.functional.cosine_similarity(h, goal, dim=1)
            loss = (cross_entropy(module.classifier(h), y[chosen]) + 0.7 * away).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        assert torch.allclose(trained[row], spec.layout.pack(module, torch.float64), atol=1e-10)


def test_without_the_cosine_term_it_is_fedavg_with_fine_tuning(
    federation: Federation, run: Callable[..., Run], models: Callable[..., Tensor]
) -> None:
    ours = run(federation, "mlp:6", FedSKA(cosine=0, lr=0.1), rounds=3)
    theirs = run(federation, "mlp:6", FedAvgFT(lr=0.1), rounds=3)
    assert torch.equal(ours.state.rows, theirs.state.rows)
    assert torch.equal(models(ours, "post"), models(theirs, "post"))
    apart = run(federation, "mlp:6", FedSKA(cosine=0, average=False, lr=0.1), rounds=3)
    alone = run(federation, "mlp:6", fedkin.algorithms.Local(lr=0.1), rounds=3)
    assert torch.equal(apart.state.rows, models(alone, "pre"))


def test_the_term_pulls_features_towards_the_guides(federation: Federation, run: Callable[..., Run]) -> None:
    def distance(cosine: float) -> float:
        done = run(federation, "mlp:6", FedSKA(cosine=cosine, lr=0.1, encoder_steps=0, average=False), rounds=15)
        features, guides = done.state.arrays["features"], done.state.arrays["guides"][:, 0]
        return float(misalignment(features, guides).mean())

    assert distance(5.0) < 0.5 * distance(0.0)


def test_the_server_sees_features_and_gradients_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever clients answer during training: no array has a row per sample, none is a sample, none a label."""
    seen: dict[str, set[str]] = {}
    sizes: dict[str, tuple[int, ...]] = {}
    ask = InProcess.ask

    def watch(self: InProcess, task: str, *args: Any, **options: Any) -> Any:
        replies = ask(self, task, *args, **options)
        seen.setdefault(task, set()).update(replies.arrays)
        sizes.update({f"{task} {key}": tuple(value.shape[1:]) for key, value in replies.arrays.items()})
        return replies

    monkeypatch.setattr(InProcess, "ask", watch)
    federation = equal_federation(4, 40)
    fedkin.train(federation, "mlp:6", FedSKA(granularity="client"), rounds=2, eval_every=9)
    training, gradient = "fedkin.algorithms.fedska:fedska", "fedkin.algorithms.fedska:fedska gradient"
    told = {"rows", "loss", "moved", "features"}
    looking = {"model", "counters", "test_loss", "test_accuracy", "test_count", "test_distinct_count"}
    looking |= {"roc", "calibration", "halvings", "halved_in"}
    assert told <= seen[training] <= told | looking
    assert seen[gradient] == {"gradient", "loss"}
    assert set(seen) == {training, gradient, "evaluate"}
    assert sizes[f"{training} features"] == (6,)
    assert sizes[f"{gradient} gradient"] == (1, 6)


def test_test_samples_have_no_part_in_training(run: Callable[..., Run]) -> None:
    federation = equal_federation()
    changed = Federation(
        federation.names,
        federation.task,
        federation.train,
        federation.validation,
        type(federation.test)(federation.test.x + 7, federation.test.y[::-1].copy(), federation.test.offsets),
    )
    for granularity in GRANULARITIES:
        method = FedSKA(granularity=granularity, lr=0.1)
        one, two = run(federation, "mlp:6", method), run(changed, "mlp:6", method)
        for name, value in one.state.arrays.items():
            assert torch.equal(value, two.state.arrays[name]), name


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_client_order_does_not_matter_to_the_graph(granularity: str, run: Callable[..., Run]) -> None:
    federation, order = equal_federation(6), np.array([4, 1, 5, 0, 3, 2])
    method = FedSKA(granularity=granularity, lr=0.1, k=2, mask=0.3)
    one, two = run(federation, "mlp:6", method), run(federation.take(order), "mlp:6", method)
    graph = one.state.arrays["learned_graphs"][-1][order][:, order]
    assert torch.allclose(two.state.arrays["learned_graphs"][-1], graph, atol=1e-6)
    assert torch.allclose(two.state.arrays["guides"], one.state.arrays["guides"][order])
    assert torch.allclose(two.state.rows, one.state.rows[order])


def test_a_client_that_never_came_is_not_in_the_graph(federation: Federation, run: Callable[..., Run]) -> None:
    done = run(federation, "mlp:6", FedSKA(lr=0.1, granularity="client"), rounds=1, cohort=2)
    known = done.state.arrays["held"].any(dim=1)
    assert int(known.sum()) == 2
    graph = done.state.arrays["learned_graphs"][-1]
    assert not graph[~known].any()
    assert not done.state.arrays["guides"][~known].any()
    assert done.state.arrays["guides"][known].any(dim=-1).all()


def test_the_graph_is_for_everyone_to_use(tmp_path: Path) -> None:
    federation = fedkin.data.load("digits", clients=8, partition="labels:2", seed=0)
    result = fedkin.train(federation, "mlp:16", FedSKA(k=3, lr=0.1), rounds=5, out=tmp_path / "run")
    graph = result.learned_graph()
    assert isinstance(graph, ClientGraph)
    assert graph.names == federation.names
    assert result.graph == graph
    assert result.learned_rounds == (1, 2, 4, 5)
    assert result.learned_graph(1) != graph
    graph.save(tmp_path / "graph.npz")
    again = fedkin.load(tmp_path / "run")
    assert again.learned_graph() == graph == ClientGraph.load(tmp_path / "graph.npz")
    assert again.learned_graph(2) == result.learned_graph(2)
    assert graph.plot() is not None
    other = fedkin.train(federation, "mlp:16", FedU(eta=0.1), graph=graph, rounds=1)
    assert other.graph == graph
    with pytest.raises(FedkinError, match="FedU learned no client graph here"):
        other.learned_graph()


def test_clients_with_the_same_task_find_each_other() -> None:
    """Two kinds of clients with different inputs; the learned graph joins like with like."""
    rng = np.random.default_rng(0)
    clients = {}
    for k in range(10):
        y = rng.integers(0, 2, 60)
        x = rng.normal(size=(60, 8)) * 0.5
        x[:, 4 * (k % 2) : 4 * (k % 2) + 4] += 2 + y[:, None]
        clients[f"c{k}"] = (x, y)
    federation = Federation.from_arrays(clients, classes=[0, 1])
    result = fedkin.train(federation, "mlp:12", FedSKA(k=4, lr=0.05, similarity="cosine"), rounds=8)
    weights = result.learned_graph().adjacency.toarray()
    same = np.arange(10)[:, None] % 2 == np.arange(10)[None, :] % 2
    assert weights[same].sum() > 3 * weights[~same].sum()


def test_a_given_graph_takes_its_share(federation: Federation) -> None:
    pairs = ClientGraph([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]], federation.names)

    def learned(prior: float) -> np.ndarray:
        done = fedkin.train(federation, "mlp:6", FedSKA(prior=prior), graph=pairs, rounds=2)
        assert done.graph == pairs
        return done.learned_graph().adjacency.toarray()

    assert np.allclose(learned(1.0), pairs.adjacency.toarray() / 2)
    share = learned(0.9)
    assert share[0, 1] > 0.45
    assert 0 < share[0, 2] < 0.1
    assert fedkin.train(federation, "mlp:6", FedSKA(prior=0.9), rounds=1).graph is not None, "shared labels"


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.drop, self.out = nn.Linear(5, 4), nn.Dropout(0.3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.drop(self.stem(x))))


def test_a_module_of_the_users_own_cut_at_a_named_layer(federation: Federation) -> None:
    one = fedkin.train(federation, Own, FedSKA(features="drop", lr=0.1), rounds=3)
    two = fedkin.train(federation, Own, FedSKA(features="drop", lr=0.1), rounds=3)
    assert np.array_equal(one.rows, two.rows)
    plain = fedkin.train(federation, Own, FedAvg(lr=0.1), rounds=3)
    assert not np.allclose(one.rows, plain.rows)
    with pytest.raises(FedkinError, match="unknown layer of the model for features 'dropp'; did you mean 'drop'"):
        fedkin.train(federation, Own, FedSKA(features="dropp"))


def test_an_older_runs_optimiser_is_not_taken_for_the_clients() -> None:
    old = {name: value for name, value in FedSKA().model_dump().items() if name != "server_optimiser"}
    with pytest.raises(FedkinError, match="it is server_optimiser now: give both"):
        FedSKA(**old)
    assert FedSKA(optimiser="adamw").server_optimiser == "adam"


def test_bad_settings_are_refused_before_training(federation: Federation, build: Callable[..., Federation]) -> None:
    with pytest.raises(FedkinError, match="k = 4 is not allowed: a client has at most 3 neighbours here"):
        fedkin.train(federation, "mlp:6", FedSKA(k=4))
    with pytest.raises(
        FedkinError, match=r"'aligned' needs equal sample counts, but client 'site-3' has 7 .* 'site-0'"
    ):
        fedkin.train(federation, "mlp:6", FedSKA(granularity="aligned"))
    with pytest.raises(FedkinError, match="'class' needs a classification task"):
        fedkin.train(build(kind="regression"), "mlp:6", FedSKA(granularity="class"))
    with pytest.raises(FedkinError, match="raw input"):
        fedkin.train(federation, "mlr", FedSKA())
    with pytest.raises(FedkinError, match=r"a model per client \(a dict\)"):
        fedkin.train(federation, dict.fromkeys(federation.names, Own), FedSKA())


LEARNED: dict[str, dict[str, Any]] = {
    "classification": {"loss": "focal:2", "class_weight": [1.0, 3.0, 0.5], "label_smoothing": 0.1},
    "regression": {"loss": "quantile:0.9"},
    "multilabel": {"class_weight": [1.0, 2.0, 1.0]},
}


@pytest.mark.parametrize("granularity", ["client", "class", "aligned"])
@pytest.mark.parametrize("kind", LEARNED)
def test_split_learning_is_the_tasks_loss_on_every_sample(kind: str, granularity: Granularity) -> None:
    """l_k = (1/n) Σ_i ℓ(classifier(h of i's part), y_i), sample by sample, for any loss."""
    if granularity == "class" and kind != "classification":
        return
    rng = np.random.default_rng(0)
    sizes = (9, 9, 9) if granularity == "aligned" else (5, 12, 9)
    targets = {
        "classification": lambda n: rng.integers(0, 3, n),
        "regression": lambda n: rng.normal(size=(n, 3)),
        "multilabel": lambda n: rng.integers(0, 2, (n, 3)),
    }[kind]
    clients = {f"c{k}": (rng.normal(size=(n, 4)), targets(n)) for k, n in enumerate(sizes)}
    classes = [0, 1, 2] if kind == "classification" else None
    data = Federation.from_arrays(clients, task=kind, classes=classes, test_fraction=0)  # type: ignore[arg-type]
    data = dataclasses.replace(data, task=chosen(data.task, **LEARNED[kind]))
    shard = Shard(data, ModelSpec.of("mlp:6", data.task, torch.float64), Streams(0), 1)
    tap, rows = taps(shard, "features", 1.0), torch.randn((3, shard.spec.layout.width), dtype=torch.float64)
    parts = {"client": 1, "class": 3, "aligned": 9}[granularity]
    guides = torch.randn((3, parts, 6), dtype=torch.float64, requires_grad=True)
    slopes, losses = split_gradient(shard, np.arange(3), tap, rows[:, tap.cut.columns], guides.detach(), granularity)
    for k in range(3):
        head = shard.spec.layout.unpack(rows[k], shard.spec.template()).get_submodule("classifier")
        y = shard.train.of(k)[1]
        part = {"client": [0] * len(y), "class": y.tolist(), "aligned": range(len(y))}[granularity]
        by_hand = torch.stack(
            [loss_of(data.task)(head(guides[k, m][None]), y[i : i + 1])[0] for i, m in enumerate(part)]
        )
        assert torch.allclose(losses[k], by_hand.mean())
        (slope,) = torch.autograd.grad(by_hand.mean(), guides)
        assert torch.allclose(slopes[k], slope[k])


def test_recurrent_heads_are_stacked_too() -> None:
    """The decoder of a GRU forecaster is its classifier: split learning goes through it, as one by one."""
    rng = np.random.default_rng(0)
    series = {f"c{k}": (rng.normal(size=(10, 6, 1)), rng.normal(size=(10, 4))) for k in range(3)}
    data = Federation.from_arrays(series, task="regression", test_fraction=0)
    shard = Shard(data, ModelSpec.of("gru-forecaster:5,1", data.task, torch.float64), Streams(0), 1)
    assert shard.choice.name == "vmap", shard.choice.reason
    tap, rows = taps(shard, "features", 1.0), torch.randn((3, shard.spec.layout.width), dtype=torch.float64) / 3
    guides = torch.randn((3, 1, tap.cut.size), dtype=torch.float64)
    slopes, _ = split_gradient(shard, np.arange(3), tap, rows[:, tap.cut.columns], guides, "client")
    for k in range(3):
        head, own = tap.cut.head(), tap.cut.head_tensors(rows[:, tap.cut.columns])
        g = guides[k].clone().requires_grad_()
        outputs = functional_call(head, {name: value[k] for name, value in own.items()}, (g,))
        loss = (outputs - shard.train.of(k)[1].reshape(10, -1)).square().mean()
        assert torch.allclose(slopes[k], torch.autograd.grad(loss, g)[0], atol=1e-12)


def test_by_default_classes_have_features_and_the_graph_has_a_choice(build: Callable[..., Federation]) -> None:
    federation = equal_federation(clients=9)
    classes = fedkin.train(federation, "mlp:6", FedSKA(), rounds=2)
    assert (classes.learned_graph().adjacency.toarray() > 0).sum(axis=1).min() < 8
    told = [fedkin.train(federation, "mlp:6", FedSKA(granularity=g), rounds=2).rows for g in ("class", "client")]
    assert np.array_equal(classes.rows, told[0])
    assert not np.array_equal(classes.rows, told[1])
    numbers = fedkin.train(build(kind="regression"), "mlp:6", FedSKA(), rounds=2)
    assert np.isfinite(numbers.rows).all()


def test_features_are_exchanged_every_so_many_rounds(run: Callable[..., Run]) -> None:
    federation = equal_federation()
    done = run(federation, "mlp:6", FedSKA(lr=0.1, epochs=1, every=2), rounds=5)
    assert done.state.arrays["learned_rounds"].tolist() == [2, 4]
    assert ["encoder_loss" in record["log"] for record in done.history] == [False, True, False, True, False]
    plain = run(federation, "mlp:6", FedSKA(lr=0.1, epochs=1, cosine=0.0), rounds=2).state.rows
    guided = run(federation, "mlp:6", FedSKA(lr=0.1, epochs=1, every=2), rounds=3)
    first_two = run(federation, "mlp:6", FedSKA(lr=0.1, epochs=1, every=2), rounds=2).state.rows
    assert torch.equal(first_two, plain), "before the first exchange there is nothing to be guided by"
    assert not torch.equal(
        guided.state.rows, run(federation, "mlp:6", FedSKA(lr=0.1, epochs=1, cosine=0.0), rounds=3).state.rows
    )
