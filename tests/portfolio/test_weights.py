"""Weights against independent slow versions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedkin import Federation
from fedkin.engines.in_process import InProcess
from fedkin.federation.folds import folded
from fedkin.models import ModelSpec
from fedkin.portfolio.effort import EFFORTS
from fedkin.portfolio.evidence import NO_FIT, SLOPES
from fedkin.portfolio.kept import KeptMembers
from fedkin.portfolio.search import MemberSearch
from fedkin.portfolio.simplex import minimised, on_simplex
from fedkin.portfolio.weights import (
    KAPPA,
    TEMPERATURES,
    Prior,
    Told,
    Weighed,
    pseudo_samples,
    shrunken,
    weigh,
    without_small,
)
from fedkin.run.deployed import PSEUDO_SAMPLES
from fedkin.streams import Streams

from .conftest import sites


def gathered(
    federation: Federation, members: int, seed: int = 0
) -> tuple[InProcess, torch.Tensor, ModelSpec, Federation]:
    cut = folded(federation, 3, whole=True)
    spec = ModelSpec.of("mlr" if federation.task.kind == "classification" else "linear", federation.task, torch.float64)
    generator = torch.Generator().manual_seed(seed)
    models = torch.randn((3, len(federation), members, spec.layout.width), dtype=torch.float64, generator=generator)
    return InProcess(cut, spec, Streams(0)), 0.5 * models, spec, cut


def said(clients: InProcess, models: torch.Tensor, spec: ModelSpec, federation: Federation) -> MemberSearch:
    """The members of models (F, K, M, B), who have said what they think of held-out samples."""
    how = federation.names, federation.task, spec, Streams(0), EFFORTS["standard"], 3, {}, 1, KeptMembers(None, {})
    search = MemberSearch(clients, *how, lambda *_: None)
    for m in range(models.shape[2]):
        search.say(f"member {m}", models[:, :, m], range(3))
    return search


def weights_of(clients: InProcess, models: torch.Tensor, spec: ModelSpec, federation: Federation) -> Weighed:
    search = said(clients, models, spec, federation)
    members = [f"member {m}" for m in range(models.shape[2])]
    warmth = search.warmth(members)
    temperatures = np.ones(len(members)) if warmth is None else warmth
    return weigh(search.told(members, range(3)), temperatures, federation.task.mixes_chances, search.fits(members))


def predictions(
    models: torch.Tensor, spec: ModelSpec, cut: Federation, k: int, size: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """By hand: per fold the members' outputs (M, n, …) on what client k held out, and the targets."""
    found = []
    for fold in range(len(models)):
        x, y = cut.validation[fold * size + k]
        with torch.no_grad():
            out = [spec.module(row)(torch.tensor(x)).numpy() for row in models[fold, k]]
        found.append((np.stack(out), y))
    return found


def test_the_pooled_weights_and_temperatures_minimise_the_held_out_loss() -> None:
    federation = sites(groups=1, clients=5)
    clients, models, spec, cut = gathered(federation, 3)
    slope = np.linalg.lstsq(federation.train.x, 2.0 * federation.train.y - 1, rcond=None)[0]
    models[:, :, :2, 6:12] += torch.from_numpy(3 * slope)  # two members know something, the third guesses
    found = weights_of(clients, models, spec, federation)
    data = [predictions(models, spec, cut, k, 5) for k in range(5)]

    def likelihood(k: int, temperatures: np.ndarray) -> np.ndarray:
        rows = []
        for out, y in data[k]:
            p = np.exp(out / temperatures[:, None, None])
            p /= p.sum(axis=2, keepdims=True)
            rows.append(p[:, np.arange(len(y)), y].T)
        return np.concatenate(rows)

    t = found.prior.temperatures
    for m in range(3):

        def loss(value: float, m: int = m) -> float:
            return float(
                np.mean(
                    [-np.log(likelihood(k, np.where(np.arange(3) == m, value, 1.0))[:, m]).mean() for k in range(5)]
                )
            )

        assert loss(t[m]) <= min(loss(value) for value in TEMPERATURES) + 1e-9

    def pooled_loss(w: np.ndarray) -> float:
        return float(np.mean([-np.log(likelihood(k, t) @ w).mean() for k in range(5)]))

    best = minimize(
        pooled_loss, np.full(3, 1 / 3), bounds=[(1e-9, 1)] * 3, constraints={"type": "eq", "fun": lambda w: w.sum() - 1}
    )
    assert pooled_loss(found.prior.pooled) < best.fun + 1e-3

    k, prior = 2, found.prior.pooled
    p = likelihood(k, t)

    def own(w: np.ndarray) -> float:
        return float(-np.log(p @ w).sum() - KAPPA * prior @ np.log(np.maximum(w, 1e-12)))

    best = minimize(own, prior, bounds=[(1e-9, 1)] * 3, constraints={"type": "eq", "fun": lambda w: w.sum() - 1})
    expected = without_small(best.x[None, None])[0, 0]
    assert np.allclose(found.personal[k], expected, atol=0.01)


def test_regression_weights_solve_the_penalised_least_squares_problem() -> None:
    federation = sites(clients=4, regression=True)
    clients, models, spec, cut = gathered(federation, 3)
    found = weights_of(clients, models * 0.3, spec, federation)
    assert np.allclose(found.personal.sum(axis=1), 1)
    data = [predictions(models * 0.3, spec, cut, k, 4) for k in range(4)]

    def loss(w: np.ndarray) -> float:
        each = [
            np.concatenate([(y - np.tensordot(w, out.reshape(3, -1), 1)) ** 2 for out, y in data[k]]).mean()
            for k in range(4)
        ]
        return float(np.mean(each))

    best = minimize(
        loss, np.full(3, 1 / 3), bounds=[(0, 1)] * 3, constraints={"type": "eq", "fun": lambda w: w.sum() - 1}
    )
    assert loss(found.prior.pooled) < best.fun * 1.001 + 1e-9


def test_a_member_that_diverged_for_a_client_gets_no_weight_there() -> None:
    federation = sites(clients=5)
    clients, models, spec, _ = gathered(federation, 3)
    models[1, 2, 1] = torch.nan
    found = weights_of(clients, models, spec, federation)
    assert found.personal[2, 1] == 0
    assert np.isfinite(found.personal).all()
    assert np.isfinite(found.gain).all()


def test_what_is_fitted_without_a_group_does_not_depend_on_it() -> None:
    federation = sites(clients=3)
    _, models, spec, cut = gathered(federation, 2)
    members, weights = ["member 0", "member 1"], np.tile(np.array([0.4, 0.6]), (3, 4, 1))

    def told() -> Told:
        search = said(InProcess(cut, spec, Streams(0)), models, spec, federation)
        return Told(search.clients, 3, range(3), members, temperatures=np.ones(2))

    before = told().ask(SLOPES, weights)["slopes"]
    y = cut.validation.y.copy()
    y[cut.validation.offsets[0] : cut.validation.offsets[3]] ^= 1  # all labels of fold 0
    object.__setattr__(cut.validation, "y", y)
    after = told().ask(SLOPES, weights)["slopes"]
    assert np.allclose(before[:, 0], after[:, 0])
    assert not np.allclose(before[:, 1], after[:, 1])


def test_gains_shrink_to_the_mean_where_samples_say_little() -> None:
    gain, square, count = np.array([10.0, -2.0]), np.array([20.0, 4.0]), np.array([20.0, 4.0])
    prior = Prior(np.ones(1), np.ones(1), gain=0.1)
    many, _ = shrunken(gain, square, count, np.array([1e9, 1e9]), prior)
    none, error = shrunken(gain, square, count, np.zeros(2), prior)
    assert np.allclose(many, [0.5, -0.5])
    assert np.allclose(none, 0.1)
    assert np.allclose(error, 0)


def test_the_mean_gain_counts_for_less_where_clients_are_unlike() -> None:
    """σ²/τ², from the sums alone: against the variances that made the gains."""
    rng = np.random.default_rng(0)
    count = rng.integers(10, 60, size=400).astype(float)

    def told(between: float) -> float:
        each = [rng.normal(rng.normal(0.2, between), 1.0, size=int(n)) for n in count]
        return pseudo_samples(np.array([d.sum() for d in each]), np.array([(d**2).sum() for d in each]), count)

    assert told(0.5) == pytest.approx(1 / 0.25, rel=0.3)
    assert told(0.0) == PSEUDO_SAMPLES
    assert told(100.0) == 1
    assert pseudo_samples(np.array([1.0, 2.0]), np.array([1.0, 4.0]), np.ones(2)) == PSEUDO_SAMPLES  # one sample each


def test_on_simplex_against_a_slow_solver() -> None:
    rng = np.random.default_rng(0)
    for scale in (1e-9, 1.0, 1e6):
        root, linear = rng.normal(size=(20, 5, 5)), rng.normal(size=(20, 5))
        gram, prior = np.einsum("nab,ncb->nac", root, root), scale * rng.random((20, 5))
        found = on_simplex(gram, linear, prior)
        for k in range(20):

            def cost(w: np.ndarray, k: int = k, prior: np.ndarray = prior, unit: float = max(1.0, scale)) -> float:
                """In numbers that are not large: there SLSQP gives up, and what it leaves need not sum to one."""
                value = w @ gram[k] @ w + linear[k] @ w - prior[k] @ np.log(np.maximum(w, 1e-12))  # noqa: B023
                return float(value / unit)

            total = {"type": "eq", "fun": lambda w: w.sum() - 1}
            best = minimize(cost, np.full(5, 0.2), bounds=[(1e-9, 1)] * 5, constraints=total, options={"ftol": 1e-12})
            reached = cost(best.x / best.x.sum())  # where it fails it may have left the simplex
            assert cost(found[k]) <= reached + 1e-6 * (1 + abs(reached))
    assert np.allclose(on_simplex(gram, linear, prior * 1e6), prior / prior.sum(axis=1, keepdims=True), atol=1e-3)


def test_few_questions_find_the_best_mixture() -> None:
    """−Σ log p·w has its minimum where EM ends, after a fraction of EM's questions."""
    rng = np.random.default_rng(1)
    p = np.exp(rng.normal(size=(2, 300, 6)))
    asked = []

    def ask(w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        asked.append(w)
        mixed = np.einsum("nsm,nm->ns", p, w)
        scaled = p / mixed[:, :, None]
        return -np.log(mixed).mean(axis=1), -scaled.mean(axis=1), np.einsum("nsm,nsl->nml", scaled, scaled) / 300

    found, value = minimised(ask, np.full((2, 6), 1 / 6), np.full((2, 6), 1e-6))
    w = np.full((2, 6), 1 / 6)
    for _ in range(20000):
        w = w * np.einsum("nsm,ns->nm", p, 1 / np.einsum("nsm,nm->ns", p, w)) / 300
    assert np.allclose(found, w, atol=2e-3)
    assert np.allclose(value, ask(w)[0], atol=1e-6)
    assert len(asked) < 15


def test_a_member_out_of_all_bounds_on_held_out_samples_has_no_weight_there() -> None:
    """It fits what it was trained on: the input that it misreads is 0 there, and 1 in one held-out sample of the first client."""
    rng = np.random.default_rng(3)
    arrays = {f"site-{k}": rng.normal(size=(24, 3)) for k in range(4)}
    for x in arrays.values():
        x[:, 2] = 0
    arrays["site-0"][5, 2] = 1
    federation = Federation.from_arrays({name: (x, x[:, 0]) for name, x in arrays.items()}, test_fraction=0)
    clients, models, spec, cut = gathered(federation, members=3)
    models[:] = torch.tensor([1.0, 0, 0])
    held = [fold for fold in range(3) if cut.validation[4 * fold][0][:, 2].any()]
    models[held, 0, 1, 2], models[held, 0, 2, 2] = 1000.0, 3.0  # the last is wrong, but not out of bounds
    search = said(clients, models, spec, federation)
    assert len(held) == 1
    assert search.fits(["member 1"]).max() == pytest.approx(0)
    told = search.told(["member 0", "member 1", "member 2"], range(3))
    assert told.sound.tolist() == [[True, False, True], *[[True] * 3] * 3]
    weighed = weigh(told, np.ones(3), False, search.fits(told.members))
    assert weighed.personal[0, 1] == 0


def test_a_member_whose_parameters_exploded_has_no_weight_though_no_sample_shows_it() -> None:
    rng = np.random.default_rng(4)
    arrays = {f"site-{k}": rng.normal(size=(24, 3)) * [1, 1, 0] for k in range(4)}
    federation = Federation.from_arrays({name: (x, x[:, 0]) for name, x in arrays.items()}, test_fraction=0)
    clients, models, spec, _ = gathered(federation, members=2)
    models[:] = torch.tensor([1.0, 0, 0])
    models[1, 2, 1, 2] = 1e8  # of an input that is 0 everywhere
    search = said(clients, models, spec, federation)
    told = search.told(["member 0", "member 1"], range(3))
    assert told.sound.tolist() == [[True, k != 2] for k in range(4)]
    assert search.fits(told.members)[2, 1] == NO_FIT
    assert weigh(told, np.ones(2), False, search.fits(told.members)).personal[2].tolist() == [1, 0]
