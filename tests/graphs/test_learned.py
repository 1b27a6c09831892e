"""Learned graphs: what they look like, what trains them, and what is kept of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.errors import FedkinError
from fedkin.graphs.embedded import EmbeddingGraph, agreement
from fedkin.graphs.learned import (
    GraphEncoder,
    StructureLearner,
    keep_snapshot,
    masks,
    normalise,
    snapshot,
    strongest,
)
from fedkin.graphs.parameters import Parameters
from fedkin.streams import Streams


def make(
    clients: int = 8, size: int = 5, k: int = 2, seed: int = 0, **options
) -> tuple[StructureLearner, torch.Tensor]:
    rng = np.random.default_rng(seed)
    learner = StructureLearner(size, k, 6, **options)
    return learner, torch.from_numpy(rng.normal(size=(clients, size)))


@given(st.integers(2, 9), st.integers(1, 4), st.integers(0, 100), st.sampled_from(["inner", "cosine"]))
def test_the_graph_is_symmetric_non_negative_and_zero_outside_kept_edges(
    clients: int, size: int, seed: int, how: str
) -> None:
    k = 1 + seed % (clients - 1)
    learner, features = make(clients, size, k, seed, similarity=how)
    theta = learner.initial(np.random.default_rng(seed))
    graph = learner.graph(theta, features)
    assert torch.equal(graph, graph.T)
    assert (graph >= 0).all()
    assert (graph <= 1 + 1e-12).all()
    z = torch.relu(features)  # the perceptron starts as the identity
    z = z if how == "inner" else torch.nn.functional.normalize(z, dim=1)
    similarity = (z @ z.T).numpy().copy()
    np.fill_diagonal(similarity, -np.inf)
    ranked = np.sort(similarity, axis=1)
    last, beyond = ranked[:, -k][:, None], ranked[:, -k - 1][:, None]
    allowed = (similarity >= last - 1e-12) | (similarity >= last - 1e-12).T | np.eye(clients, dtype=bool)
    assert not graph.numpy()[~allowed].any()
    needed = (similarity > np.maximum(beyond, 0) + 1e-9) & (similarity > 1e-9)
    assert (graph.numpy()[needed] > 0).all()


def test_normalising_by_hand_and_an_empty_row() -> None:
    weights = torch.tensor([[1.0, 3.0, 0.0], [3.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    expected = torch.tensor([[0.25, 0.75, 0.0], [0.75, 0.25, 0.0], [0.0, 0.0, 0.0]])
    assert torch.allclose(normalise(weights), expected)
    weights.requires_grad_()
    normalise(weights).sum().backward()
    assert torch.isfinite(weights.grad).all()


def test_at_most_k_neighbours_and_itself() -> None:
    similarity = torch.rand(7, 7, generator=torch.Generator().manual_seed(0))
    kept = strongest(similarity, 3)
    assert ((kept > 0).sum(dim=1) == 4).all()
    assert (kept.diagonal() > 0).all()
    assert torch.equal(strongest(similarity, 50), similarity)


def test_learning_lowers_the_error_of_the_denoiser_and_moves_both_parts() -> None:
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(2, 6)) * 3
    features = torch.from_numpy(centres[np.arange(12) % 2] + 0.1 * rng.normal(size=(12, 6)))
    learner = StructureLearner(6, 3, 16)
    parameters = Parameters.at(learner.initial(np.random.default_rng(0)))
    first, losses = parameters.theta, []
    for step in range(300):
        where = masks(Streams(0), step, [f"c{j}" for j in range(12)], 1, 6, 0.1)[0][0]
        theta = parameters.theta.detach().requires_grad_()
        clean = learner.denoise(theta, features.masked_fill(where, 0), learner.graph(theta, features))
        error = (clean - features).square()[where].mean()
        losses.append(float(error.detach()))
        parameters = parameters.moved(torch.autograd.grad(error, theta)[0], 0.01, "adam")
    assert np.nanmean(losses[-30:]) < 0.2 * np.nanmean(losses[:30])
    own = 2 * (36 + 6)
    assert not torch.equal(parameters.theta[:own], first[:own]), "the structure learner was not trained"
    assert not torch.equal(parameters.theta[own:], first[own:]), "the denoiser was not trained"


def test_the_encoder_starts_as_the_graph_and_mixes_a_part_among_its_holders() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn((4, 2, 3), generator=generator, dtype=torch.float64)
    graph = normalise(torch.ones((4, 4), dtype=torch.float64))
    encoder = GraphEncoder(3)
    everyone = torch.ones((4, 2), dtype=torch.bool)
    mixed = encoder.encode(encoder.initial(), graph, parts, everyone)
    assert torch.allclose(mixed, parts.mean(dim=0).expand(4, -1, -1))
    held = everyone.clone()
    held[2:, 1] = False
    mixed = encoder.encode(encoder.initial(), graph, parts * held[..., None], held)
    assert torch.allclose(mixed[:, 0], parts[:, 0].mean(dim=0).expand(4, -1))
    assert torch.allclose(mixed[:2, 1], parts[:2, 1].mean(dim=0).expand(2, -1))
    assert not mixed[2:, 1].any()


def test_masks_follow_the_names_and_have_their_rates() -> None:
    names = [f"c{j}" for j in range(40)]
    where, noise = masks(Streams(0), 3, names, 5, 50, 0.1)
    assert where.shape == noise.shape == (5, 40, 50)
    assert abs(float(where.double().mean()) - 0.1) < 0.01
    assert abs(float(noise.mean())) < 0.05
    assert abs(float(noise.std()) - 1) < 0.05
    again = masks(Streams(0), 3, names[::-1], 5, 50, 0.1)
    assert torch.equal(again[0].flip(1), where)
    assert torch.equal(again[1].flip(1), noise)
    assert not torch.equal(masks(Streams(0), 4, names, 5, 50, 0.1)[0], where)


def test_snapshots_of_powers_of_two_and_the_last() -> None:
    graphs, rounds = torch.zeros((0, 3, 3)), torch.zeros(0, dtype=torch.int64)
    for t in range(1, 12):
        graphs, rounds = keep_snapshot(graphs, rounds, torch.full((3, 3), float(t)), t)
        assert int(rounds[-1]) == t
    assert rounds.tolist() == [1, 2, 4, 8, 11]
    graph = snapshot(graphs, rounds, ["a", "b", "c"], 4)
    assert graph.neighbours("a") == {"b": 4.0, "c": 4.0}
    assert snapshot(graphs, rounds, ["a", "b", "c"]).neighbours("b")["c"] == 11
    with pytest.raises(FedkinError, match="no graph of round 3 was kept; there are those of rounds 1, 2, 4, 8, 11"):
        snapshot(graphs, rounds, ["a", "b", "c"], 3)


def test_embeddings_find_who_agrees() -> None:
    names = [f"c{j}" for j in range(10)]
    rng = np.random.default_rng(0)
    ways = rng.normal(size=(2, 30))
    updates = torch.from_numpy(ways[np.arange(10) % 2] + 0.1 * rng.normal(size=(10, 30)))
    target = agreement(updates)
    generator = EmbeddingGraph(10, 8, 4)
    parameters = Parameters.at(generator.initial(Streams(0), names))
    who = torch.arange(10)
    before = float(generator.loss(parameters.theta, target, who))
    for _ in range(400):
        theta = parameters.theta.detach().requires_grad_()
        slope = torch.autograd.grad(generator.loss(theta, target, who), theta)[0]
        parameters = parameters.moved(slope, 0.01, "adam")
    assert float(generator.loss(parameters.theta, target, who)) < 0.2 * before
    graph = generator.graph(parameters.theta)
    assert torch.equal(graph, graph.T)
    assert (graph >= 0).all()
    assert not graph.diagonal().any()
    same = torch.arange(10)[:, None] % 2 == torch.arange(10)[None, :] % 2
    assert float(graph[same].sum()) > 5 * float(graph[~same].sum())


def test_embeddings_follow_the_names() -> None:
    names = ["a", "b", "c", "d"]
    generator = EmbeddingGraph(4, 3, 2)
    straight = generator.weights(generator.initial(Streams(1), names))
    turned = generator.weights(generator.initial(Streams(1), names[::-1]))
    assert torch.allclose(turned.flip(0, 1), straight)


@pytest.mark.parametrize(("how", "make"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)])
def test_optimisers_equal_torchs(how: str, make: type[torch.optim.Optimizer]) -> None:
    start = torch.linspace(-1, 1, 5, dtype=torch.float64)
    plain = start.clone().requires_grad_()
    optimiser = make([plain], lr=0.1)
    parameters = Parameters.at(start)
    for step in range(10):
        slope = torch.sin(parameters.theta * 3 + step)
        plain.grad = torch.sin(plain.detach() * 3 + step)
        optimiser.step()
        parameters = Parameters.read(parameters.moved(slope, 0.1, how).arrays("x"), "x")
    assert torch.allclose(parameters.theta, plain.detach(), atol=1e-12)
