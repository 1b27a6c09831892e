"""FedPnP as a whole: its limits are other methods, its parameters act as stated, its mistakes are named."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.testing import assert_allclose
from torch import nn

import fedkin
from fedkin.algorithm import Algorithm, Setting
from fedkin.algorithms import FedAvg, FedBN, FedPnP, FedProx, Local
from fedkin.couplings import GraphFilter, GraphTotalVariation, total_variation
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.graphs import ClientGraph
from fedkin.graphs.statistics import moments
from fedkin.local import tasks
from fedkin.models import ModelSpec
from fedkin.result import Result
from fedkin.streams import Streams

NAMES = [f"site-{letter}" for letter in "abcdefg"]
SIZES = (40, 8, 23, 60, 15, 12, 30)
SGD: dict[str, Any] = {"lr": 0.1, "batch_size": 8}
MODELS = ["mlr", "bn-mlp:5"]


@cache
def federation() -> Federation:
    rng = np.random.default_rng(3)
    clients = {}
    for k, (name, n) in enumerate(zip(NAMES, SIZES)):
        y = np.arange(n) % 3
        clients[name] = (np.eye(3, 4)[(y + k) % 3] * 2 + rng.normal(size=(n, 4)), y)
    return Federation.from_arrays(clients, test_fraction=0.2)


@cache
def weighted() -> ClientGraph:
    """Connected, with weights that make all eigenvalues different."""
    upper = np.triu(np.random.default_rng(1).random((7, 7)), 1)
    return ClientGraph(upper + upper.T, NAMES)


def run(
    method: Algorithm, model: Any = "bn-mlp:5", graph: Any = None, data: Federation | None = None, **options: Any
) -> Result:
    settings = {"rounds": 3, "seed": 4, "dtype": "float64", **options}
    if graph is None and isinstance(method, FedPnP):
        graph = weighted()
    return fedkin.train(data or federation(), model, method, graph, **settings)


@cache
def baseline(method: Algorithm, model: str = "bn-mlp:5", rounds: int = 3) -> Result:
    """Local, FedAvg or FedProx on the same federation."""
    return run(method, model, rounds=rounds)


def pnp(**parameters: Any) -> FedPnP:
    return FedPnP(**{**SGD, "mu": 0.0, "schedule": "constant", **parameters})


def last_log(result: Result) -> dict[str, Any]:
    return dict(result.history[-1]["log"])


# --- limits: FedPnP is other methods ----------------------------------------------------------------------------------

NOTHING = [
    {"beta": 0.0},
    {"denoiser": "hard", "tau": 7},
    {"denoiser": "heat", "beta": 0.0},
    {"denoiser": "tikhonov", "beta": 0.0},
    {"denoiser": "tv", "beta": 0.0},
    {"denoiser": lambda lam, s: 1 / (1 + s * lam) ** 2, "beta": 0.0},
]
EVERYTHING = [
    {"beta": 1e12},
    {"denoiser": "hard", "tau": 1},
    {"denoiser": "heat", "beta": 1e4},
    {"denoiser": "tikhonov", "beta": 1e13},
    {"denoiser": lambda lam, s: 1 / (1 + s * lam) ** 2, "beta": 1e7},
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("limit", NOTHING)
def test_without_denoising_it_is_local_training(limit: dict[str, Any], model: str) -> None:
    mine, alone = run(pnp(**limit), model), baseline(Local(**SGD), model)
    assert_allclose(mine.rows, alone.rows, atol=1e-9)
    for when in ("pre", "post"):
        assert_allclose(mine.metrics[when]["test_loss"], alone.metrics[when]["test_loss"], atol=1e-9)


def test_beta_zero_alone_is_enough_and_an_explicit_start_is_obeyed() -> None:
    assert FedPnP(beta=0).nu0 == 0
    assert_allclose(run(FedPnP(**SGD, mu=0, beta=0)).rows, baseline(Local(**SGD)).rows, atol=1e-9)
    assert FedPnP(beta=0, nu0=1.0).strength(1) == 1.0


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mu", [0.0, 0.7])
@pytest.mark.parametrize("limit", EVERYTHING)
def test_full_denoising_is_fedavg_and_with_a_pull_fedprox(limit: dict[str, Any], mu: float, model: str) -> None:
    together = baseline(FedProx(**SGD, mu=mu) if mu else FedAvg(**SGD), model)
    assert_allclose(run(pnp(mu=mu, **limit), model).rows, together.rows, atol=1e-9)


def test_strong_total_variation_is_fedavg() -> None:
    # Solved iteratively, to 1e-5 of the spread of the rows.
    assert_allclose(run(pnp(denoiser="tv", beta=1e3)).rows, baseline(FedAvg(**SGD)).rows, atol=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_a_pull_without_denoising_goes_to_ones_own_previous_round(model: str) -> None:
    """Round by round, each client alone: a FedProx federation of one client."""
    mine = run(pnp(mu=0.7, beta=0.0), model).rows
    for k, name in enumerate(NAMES):
        one = Federation.from_arrays(
            {name: {"train": federation().train[k], "test": federation().test[k]}},
            classes=federation().task.classes,
        )
        assert_allclose(mine[k], run(FedProx(**SGD, mu=0.7), model, data=one).rows[0], atol=1e-9)


@pytest.mark.parametrize("kept", ["filter", "local", "average"])
def test_batch_norm_policies_have_their_limits(kept: Any) -> None:
    layout = ModelSpec.of("bn-mlp:5", federation().task, torch.float64).layout
    names = tuple(slot.name for slot in layout.buffers)
    running = layout.mask(names).numpy()
    assert running.sum() == 10
    result = run(pnp(denoiser="hard", tau=1, bn_buffers=kept))
    assert_allclose(result.rows[:, ~running], baseline(FedAvg(**SGD)).rows[:, ~running], atol=1e-9)
    pre = result.rows[:, running]
    if kept == "local":
        assert (np.ptp(pre, axis=0) > 1e-3).all()  # every client received its own
        assert_allclose(pre, run(_OwnRunningStatistics(**SGD)).rows[:, running], atol=1e-9)
    else:
        assert_allclose(pre, baseline(FedAvg(**SGD)).rows[:, running], atol=1e-9)


class _OwnRunningStatistics(FedBN):
    """FedAvg over all parameters; clients keep running means and variances only."""

    def private(self, setting: Setting) -> tuple[str, ...]:
        return tuple(slot.name for slot in setting.spec.layout.buffers)


def test_a_subclass_without_a_name_leaves_the_registry_alone() -> None:
    assert fedkin.algorithms.get("fedbn") is FedBN is not _OwnRunningStatistics


def test_averaged_statistics_differ_from_filtered_ones_in_between() -> None:
    layout = ModelSpec.of("bn-mlp:5", federation().task, torch.float64).layout
    columns = layout.mask(layout.norms).numpy()
    columns[:-10] = False
    filtered, averaged = run(pnp(beta=0.01)).rows, run(pnp(beta=0.01, bn_buffers="average")).rows
    assert (np.ptp(filtered[:, columns], axis=0) > 1e-6).all()
    assert_allclose(np.ptp(averaged[:, columns], axis=0), 0, atol=1e-12)


def test_a_filter_with_negative_entries_leaves_running_variances_positive() -> None:
    """One client has inputs of a very different scale: the projection on three modes would make some variances negative."""
    rng = np.random.default_rng(0)
    clients = {n: (rng.normal(size=(16, 4)) * (20 if k == 2 else 0.05), np.arange(16) % 3) for k, n in enumerate(NAMES)}
    data = Federation.from_arrays(clients)
    method = pnp(denoiser="hard", tau=3)
    variances = ModelSpec.of("bn-mlp:5", data.task).layout.variance_columns.numpy()
    alone, mine = run(pnp(beta=0), data=data, rounds=1).rows, run(method, data=data, rounds=1).rows
    raw = GraphFilter(weighted(), "hard", 3, data.train.sizes).matrix() @ alone
    assert raw[:, variances].min() < 0
    assert mine[:, variances].min() == pytest.approx(1e-5)
    assert_allclose(mine[:, ~variances], raw[:, ~variances], atol=1e-9)
    assert np.isfinite(run(method, data=data).metrics["pre"]["test_loss"]).all()


# --- the round is what the paper says -----------------------------------------------------------------------------------


def test_one_round_is_local_training_then_the_filter() -> None:
    trained = torch.from_numpy(run(Local(**SGD), rounds=1).rows.copy())
    sizes = federation().train.sizes
    for parameters, coupling in [
        ({"beta": 0.3}, GraphFilter(weighted(), "soft", 0.3, sizes)),
        ({"beta": 0.3, "beta2": 0.1}, GraphFilter(weighted(), "soft", (0.3, 0.1), sizes)),
        ({"beta": 0.3, "factor2": True}, GraphFilter(weighted(), "soft", 0.6, sizes)),
        ({"beta": 0.3, "fidelity": "none"}, GraphFilter(weighted(), "soft", 0.3)),
        ({"beta": 0.3, "fidelity": "row_normalised"}, GraphFilter(weighted(), "soft", 0.3, sizes, "row_normalised")),
        ({"beta": 0.3, "fidelity": "literal"}, GraphFilter(weighted(), "soft", 0.3, sizes, "literal")),
        ({"denoiser": "hard", "tau": 4}, GraphFilter(weighted(), "hard", 4, sizes)),
        ({"denoiser": "heat", "beta": 0.3}, GraphFilter(weighted(), "heat", 0.3, sizes)),
        ({"denoiser": "tv", "beta": 0.05}, GraphTotalVariation(weighted(), 0.05, sizes)),
    ]:
        mine = run(pnp(**parameters), rounds=1).rows
        parameters_only = slice(0, 43)  # running variances may be clamped
        assert_allclose(mine[:, parameters_only], coupling.apply(trained).numpy()[:, parameters_only], atol=1e-9)


def test_the_graph_is_learned_from_models() -> None:
    """From round 2 on, every second round: weights 1 − d/max d by a loop over pairs, then the filter; before, the graph given."""
    sizes = federation().train.sizes
    start = run(pnp(beta=0.3, graph_every=2), rounds=1)
    assert_allclose(start.rows, run(pnp(beta=0.3), rounds=1).rows, atol=0)
    trained = run(pnp(beta=0.0), rounds=1).rows  # from equal rows: what clients send in round 1
    d = np.array([[np.linalg.norm(a[:53] - b[:53]) for b in trained] for a in trained])
    weights = np.maximum(1 - d / d.max(), 0.05) * (1 - np.eye(len(d)))
    coupling = GraphFilter(ClientGraph(weights, federation().names), "soft", 0.3, sizes)
    found = run(pnp(beta=0.3, graph_every=1), rounds=1)
    expected = coupling.apply(torch.from_numpy(trained.copy())).numpy()
    assert_allclose(found.rows[:, :53], expected[:, :53], atol=1e-9)
    assert_allclose(found.extras["learned_graph"], weights, atol=1e-12)
    assert found.history[-1]["log"]["lambda_max"] == pytest.approx(
        np.linalg.eigvalsh(np.diag(weights.sum(1)) - weights)[-1]
    )
    with pytest.raises(FedkinError, match="tells who is alike"):
        FedPnP(graph_every=1, privacy={"level": "client", "epsilon": 1.0, "delta": 1e-5, "clip": 1.0})


def test_the_log_tells_strength_spectrum_and_total_variation() -> None:
    graph, method = weighted(), FedPnP(**SGD, beta=0.05, eta=0.1)
    result = run(method, "mlr")
    values = np.linalg.eigvalsh(graph.laplacian().toarray())
    for t, record in enumerate(result.history, start=1):
        log = record["log"]
        assert log["strength"] == pytest.approx(0.9 ** (t - 1))
        assert log["lambda_1"] == pytest.approx(values[1])
        assert log["lambda_max"] == pytest.approx(values[-1])
        matrix = GraphFilter(graph, "soft", log["strength"], federation().train.sizes).matrix()
        assert log["trace"] == pytest.approx(np.trace(matrix) / 7)
        assert log["total_variation"] < log["total_variation_trained"]
    assert last_log(result)["total_variation"] == pytest.approx(total_variation(torch.from_numpy(result.rows), graph))


def test_without_a_matrix_there_is_no_trace_and_no_influence() -> None:
    result = run(pnp(denoiser="tv", beta=0.01))
    assert "trace" not in last_log(result)
    assert result.influence is None
    assert run(pnp(beta=0.01)).influence is not None


def test_influence_is_the_filter_times_what_each_client_did() -> None:
    result = run(pnp(beta=0.3), "mlr", rounds=1)
    start = ModelSpec.of("mlr", federation().task, torch.float64).initial_row(Streams(4)).numpy()
    moved = np.linalg.norm(baseline(Local(**SGD), "mlr", rounds=1).rows - start, axis=1)
    expected = np.abs(GraphFilter(weighted(), "soft", 0.3, federation().train.sizes).matrix() * moved)
    assert result.influence is not None
    assert_allclose(result.influence, expected / expected.sum(axis=1, keepdims=True), atol=1e-9)


def test_the_graph_comes_from_statistics_of_the_clients() -> None:
    told = [moments(x) for x, _ in federation().train]
    expected = fedkin.graphs.from_statistics(told, NAMES)
    result = fedkin.train(federation(), "mlr", FedPnP(), rounds=1, dtype="float64")
    assert result.graph is not None
    assert_allclose(result.graph.adjacency.toarray(), expected.adjacency.toarray(), atol=1e-12)
    published, literal = (
        fedkin.train(federation(), "mlr", FedPnP(), f"statistics:published{weights}", rounds=1, dtype="float64").graph
        for weights in ("", ":literal")
    )
    assert published is not None
    assert literal is not None
    off = ~np.eye(7, dtype=bool)
    assert_allclose((published.adjacency + literal.adjacency).toarray()[off], 1, atol=1e-12)


def test_the_strength_falls_to_beta_in_half_of_the_rounds_unless_told() -> None:
    method = FedPnP(**SGD, beta=0.01)
    told = [record["log"]["strength"] for record in run(method, rounds=8).history]
    assert_allclose(told, [0.01 ** (t / 4) for t in range(4)] + [0.01] * 4)
    assert method.strength(2) == pytest.approx(0.9)  # the number of rounds is not known
    assert FedPnP(**SGD, beta=0.01, eta=0.5).strength(2, rounds=8) == pytest.approx(0.5)


def test_statistics_may_carry_noise_with_a_stated_guarantee() -> None:
    def weights(spec: str, data: Federation, **options: Any) -> np.ndarray:
        graph = fedkin.train(data, "mlr", FedPnP(), spec, rounds=0, dtype="float64", **options).graph
        assert graph is not None
        return graph.align(NAMES).adjacency.toarray()

    plain = weights("statistics", federation())
    private = weights("statistics:noise=1,1e-5,-6,6", federation())
    assert abs(plain - private).max() > 0.05
    # The noise is the clients' secret, not the run's seed: a run repeated has other noise. Hardly any noise is no noise.
    assert abs(private - weights("statistics:noise=1,1e-5,-6,6", federation())).max() > 0.05
    assert_allclose(plain, weights("statistics:noise=1e14,0.5,-8,8", federation()), atol=5e-2)
    for bad in ("noise=1,1e-5", "noise=-1,1e-5,0,1", "noise=1,2,0,1", "noise=1,1e-5,1,0", "noise=a,1e-5,0,1"):
        with pytest.raises(FedkinError, match=r"statistics:noise="):
            weights(f"statistics:{bad}", federation())


# --- symmetry ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", [{"beta": 0.05}, {"denoiser": "hard", "tau": 3}, {"bn_buffers": "local"}])
def test_relabelling_clients_permutes_results(parameters: dict[str, Any]) -> None:
    order = [3, 1, 5, 0, 6, 4, 2]
    method = FedPnP(**SGD, **parameters)
    straight, turned = run(method), run(method, data=federation().take(order))
    assert_allclose(turned.rows, straight.rows[order], atol=1e-10)
    assert last_log(turned)["total_variation"] == pytest.approx(last_log(straight)["total_variation"])


@pytest.mark.parametrize(
    "parameters", [{"beta": 0.05}, {"denoiser": "heat"}, {"denoiser": "tikhonov"}, {"denoiser": "tv"}]
)
def test_components_do_not_interact(parameters: dict[str, Any]) -> None:
    left, right = weighted().take([0, 1, 2]), weighted().take([3, 4, 5, 6])
    both = ClientGraph(sp.block_diag([left.adjacency, right.adjacency]), NAMES)
    method = FedPnP(**SGD, fidelity="none", **parameters)
    whole = run(method, graph=both)
    tolerance = 1e-4 if method.denoiser == "tv" else 1e-10
    for part, graph in (([0, 1, 2], left), ([3, 4, 5, 6], right)):
        alone = run(method, graph=graph, data=federation().take(part))
        assert_allclose(whole.rows[part], alone.rows, atol=tolerance)
    assert last_log(whole)["lambda_1"] == 0


def test_one_mode_of_a_disconnected_graph_is_one_average_per_component() -> None:
    left, right = weighted().take([0, 1, 2]), weighted().take([3, 4, 5, 6])
    both = ClientGraph(sp.block_diag([left.adjacency, right.adjacency]), NAMES)
    whole = run(pnp(denoiser="hard", tau=1), graph=both).rows
    for part in ([0, 1, 2], [3, 4, 5, 6]):
        assert_allclose(whole[part], run(FedAvg(**SGD), data=federation().take(part)).rows, atol=1e-9)


def test_who_stays_away_enters_with_the_row_the_server_has() -> None:
    first = run(pnp(beta=0.1), "mlr", rounds=1, cohort=3)
    alone, start = baseline(Local(**SGD), "mlr", rounds=1).rows, baseline(Local(**SGD), "mlr", rounds=0).rows
    matrix = GraphFilter(weighted(), "soft", 0.1, federation().train.sizes).matrix()
    cohort = pnp().cohort(1, 3, Setting(tuple(NAMES), np.array(SIZES), federation().task, None, Streams(4)))  # type: ignore[arg-type]
    placed = np.array([alone[k] if k in cohort else start[k] for k in range(7)])
    assert_allclose(first.rows, matrix @ placed, atol=1e-10)


# --- parameters act in the stated direction -----------------------------------------------------------------------------


def test_a_stronger_pull_keeps_clients_closer_to_what_they_received() -> None:
    rows = [run(pnp(mu=mu, beta=0, epochs=3), "mlr", rounds=1).rows for mu in (0.0, 0.5, 2.0, 8.0)]
    start = ModelSpec.of("mlr", federation().task, torch.float64).initial_row(Streams(4)).numpy()
    moved = np.array([np.linalg.norm(r - start, axis=1) for r in rows])
    assert (np.diff(moved, axis=0) < 0).all()


def test_all_modes_are_kept_after_half_of_the_rounds_unless_told() -> None:
    method = FedPnP(denoiser="hard", tau=61)
    assert [method.strength(t, 30) for t in (1, 2, 15, 16, 30)] == [1, 5, 57, 61, 61]
    assert [method.strength(t, 200) for t in (1, 2, 60, 61, 200)] == [1, 2, 60, 61, 61]
    assert [method.strength(t) for t in (1, 2, 3)] == [1, 2, 3], "a run whose rounds are not known"
    assert [FedPnP(denoiser="hard", tau=61, delta=1).strength(t, 30) for t in (1, 2, 30)] == [1, 2, 30]
    result = run(FedPnP(**SGD, denoiser="hard", tau=7), rounds=4)
    assert [record["log"]["strength"] for record in result.history] == [1, 4, 7, 7]


def test_the_pull_is_the_gradient_of_half_mu_times_the_squared_distance() -> None:
    """Two full-batch steps by hand: the first feels no pull, the second feels μ(w − Ψ)."""
    full = {"lr": 0.1, "batch_size": 100, "epochs": 2, "mu": 3.0, "beta": 0.0}
    pulled = run(FedPnP(**full), "mlr", rounds=1).rows
    spec = ModelSpec.of("mlr", federation().task, torch.float64)
    start = spec.initial_row(Streams(4))
    for k in range(7):
        x, y = (torch.from_numpy(a) for a in federation().train[k])
        module = spec.layout.unpack(start.clone(), spec.template())
        for _ in range(2):
            module.zero_grad()
            nn.functional.cross_entropy(module(x.double()), y.long()).backward()
            now = spec.layout.pack(module, torch.float64)
            slope = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
            spec.layout.unpack(now - 0.1 * (slope + 3.0 * (now - start)), module)
        assert_allclose(pulled[k], spec.layout.pack(module, torch.float64).numpy(), atol=1e-12)


@pytest.mark.parametrize("denoiser", ["soft", "heat", "tikhonov", "tv"])
def test_a_larger_beta_brings_clients_together(denoiser: str) -> None:
    logs = [last_log(run(pnp(denoiser=denoiser, beta=b), "mlr")) for b in (0.0, 0.005, 0.05, 0.5)]
    assert (np.diff([log["total_variation"] for log in logs]) < 0).all()
    if denoiser != "tv":
        assert (np.diff([log["trace"] for log in logs]) < 0).all()


def test_more_modes_leave_clients_apart() -> None:
    logs = [last_log(run(pnp(denoiser="hard", tau=tau), "mlr")) for tau in (1, 2, 4, 7)]
    assert (np.diff([log["total_variation"] for log in logs]) > 0).all()
    assert_allclose([log["trace"] for log in logs], np.array([1, 2, 4, 7]) / 7)


def test_schedules() -> None:
    assert [FedPnP(beta=0.85, nu0=2, eta=0.5).strength(t) for t in (1, 2, 3, 4)] == [2, 1, 0.85, 0.85]
    assert [FedPnP(beta=0.85, beta2=0.3, nu0=1, eta=0.5).strength(t) for t in (1, 2, 3)] == [
        (1, 1),
        (0.85, 0.5),
        (0.85, 0.3),
    ]
    assert [FedPnP(denoiser="hard", tau=3, delta=2).strength(t) for t in (1, 2, 3, 4, 5, 9)] == [1, 1, 2, 2, 3, 3]
    assert FedPnP(denoiser="hard", tau=3, schedule="constant").strength(1) == 3
    assert FedPnP(beta=0.3, schedule="constant").strength(1) == 0.3
    assert FedPnP(schedule=lambda t: 1 / t).strength(4) == 0.25
    assert [FedPnP(beta=b).strength(30) for b in (0.05, 0.005)] == [0.05, pytest.approx(0.9**29)]
    own = run(FedPnP(**SGD, denoiser="hard", schedule=lambda t: np.int64(2 * t)))
    assert [record["log"]["strength"] for record in own.history] == [2, 4, 6]


# --- plug in, save, resume ------------------------------------------------------------------------------------------------


def band(lambdas: np.ndarray, strength: float) -> np.ndarray:
    return 1 / (1 + strength * lambdas) ** 2


@dataclass
class Power:
    """A denoiser with a parameter of its own; a dataclass that compares by value cannot be hashed."""

    exponent: float

    def __call__(self, lambdas: np.ndarray, strength: float) -> np.ndarray:
        return 1 / (1 + strength * lambdas) ** self.exponent


@pytest.mark.parametrize("denoiser", [band, Power(2.0), lambda lam, s: 1 / (1 + s * lam) ** 2])
def test_a_function_of_ones_own(denoiser: Any) -> None:
    assert_allclose(run(pnp(denoiser=denoiser, beta=0.2)).rows, run(pnp(denoiser=band, beta=0.2)).rows, atol=1e-12)
    assert_allclose(
        run(pnp(denoiser=lambda lam, s: np.exp(-s * lam), beta=0.2)).rows,
        run(pnp(denoiser="heat", beta=0.2)).rows,
        atol=1e-12,
    )


@pytest.mark.parametrize(
    "parameters", [{}, {"denoiser": "hard", "tau": 3}, {"bn_buffers": "local"}, {"denoiser": "tv"}, {"graph_every": 2}]
)
def test_resume_gives_the_same_numbers(parameters: dict[str, Any], tmp_path: Path) -> None:
    method = FedPnP(**SGD, eta=0.1, delta=1, **parameters)  # else the schedule follows the number of rounds
    whole = run(method, rounds=4)
    run(method, rounds=2, out=tmp_path / "run")
    resumed = fedkin.resume(tmp_path / "run", federation(), rounds=4)
    assert np.array_equal(resumed.rows, whole.rows)
    assert resumed.history[-1]["log"] == whole.history[-1]["log"]


def test_resume_with_a_function_of_ones_own(tmp_path: Path) -> None:
    method = FedPnP(**SGD, eta=0.1, denoiser=band)
    whole = run(method, rounds=4)
    run(method, rounds=2, out=tmp_path / "run")
    assert fedkin.load(tmp_path / "run").config["algorithm"]["denoiser"] == "own function band"
    with pytest.raises(FedkinError, match=r"function of your own \(denoiser = band\); pass the algorithm again"):
        fedkin.resume(tmp_path / "run", federation(), rounds=4)
    resumed = fedkin.resume(tmp_path / "run", federation(), algorithm=method, rounds=4)
    assert np.array_equal(resumed.rows, whole.rows)


# --- bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"beta": -0.1}, "fedpnp: beta = -0.1 is not allowed"),
        ({"beta": float("nan")}, "fedpnp: beta = nan is not allowed"),
        ({"beta": float("inf")}, "fedpnp: beta = inf is not allowed"),
        ({"beta2": -1.0}, "fedpnp: beta2 = -1.0 is not allowed"),
        ({"nu0": float("nan")}, "fedpnp: nu0 = nan is not allowed"),
        ({"mu": -1}, "fedpnp: mu = -1 is not allowed"),
        ({"mu": float("nan")}, "fedpnp: mu = nan is not allowed"),
        ({"eta": 1.5}, "fedpnp: eta = 1.5 is not allowed"),
        ({"delta": 0}, "fedpnp: delta = 0 is not allowed"),
        ({"denoiser": "hard", "tau": 0}, "fedpnp: tau = 0 is not allowed"),
        ({"denoiser": "hard", "tau": 2.5}, "fedpnp: tau = 2.5 is not allowed"),
        ({"denoiser": "hard"}, "fedpnp: tau = None is not allowed: this denoiser keeps τ modes"),
        ({"tau": 3}, "fedpnp: tau = 3 is not allowed: only 'hard' keeps τ modes"),
        ({"denoiser": "hard", "tau": 3, "schedule": lambda t: t}, "tau = 3 is not allowed: a schedule of your own"),
        ({"denoiser": "heat", "beta2": 0.1}, "beta2 = 0.1 is not allowed: only the denoiser 'soft'"),
        (
            {"denoiser": "sofft"},
            "fedpnp: denoiser = 'sofft' is not allowed: unknown denoiser 'sofft'; did you mean 'soft'",
        ),
        ({"denoiser": 3}, "fedpnp: denoiser = 3 is not allowed"),
        ({"schedule": "gradul"}, "did you mean 'gradual'"),
        ({"fidelity": "sizes"}, "fedpnp: fidelity = 'sizes' is not allowed"),
        ({"bn_buffers": "keep"}, "fedpnp: bn_buffers = 'keep' is not allowed"),
    ],
)
def test_a_wrong_parameter_is_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(FedkinError) as caught:
        FedPnP(**parameters)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"denoiser": "hard", "tau": 8}, r"tau = 8 is not allowed: it must be from 1 to 7"),
        ({"denoiser": lambda lam, s: 1.0}, r"must return one value per λ: shape \(7,\), not \(\)"),
        ({"denoiser": lambda lam, s: lam[:-1]}, r"shape \(7,\), not \(6,\)"),
        ({"denoiser": lambda lam, s: 1 / lam}, r"is not finite: h\(0\) = inf"),
        ({"denoiser": lambda lam, s: np.full_like(lam, np.nan)}, "is not finite"),
        ({"denoiser": lambda lam: lam}, "failed on an array of λ"),
        ({"denoiser": lambda lam, s: {}[s]}, "failed on an array of λ"),
        ({"denoiser": lambda lam, s: np.where(s < 0.5, np.inf, 1.0) + 0 * lam}, "is not finite"),  # at β, not at ν⁰
        ({"denoiser": lambda lam, s: 0 * lam}, "client 'site-a': the denoiser '<lambda>' leaves it no weight"),
        ({"denoiser": "heat", "factor2": True}, "factor2"),
        ({"denoiser": "tv", "fidelity": "literal"}, "fidelity"),
        ({"schedule": lambda t: -1.0}, "schedule: the strength of round 1"),
        ({"schedule": lambda t: float("nan")}, "schedule: the strength of round 1"),
        ({"schedule": lambda t: None}, "schedule: the strength of round 1"),
        ({"denoiser": "hard", "schedule": lambda t: 9}, "rank τ must be a whole number from 1 to 7"),
        ({"denoiser": "hard", "schedule": lambda t: 1.5}, "rank τ must be a whole number from 1 to 7"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_what_cannot_work_is_refused_before_training(
    parameters: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(*_: object) -> None:
        pytest.fail("training had begun")

    monkeypatch.setitem(tasks.TASKS, "train", trained)
    with pytest.raises(FedkinError, match=message) as caught:
        run(FedPnP(**parameters))
    assert "\n" not in str(caught.value)


def test_a_graph_over_other_clients_is_refused() -> None:
    other = ClientGraph(np.ones((7, 7)) - np.eye(7), [*NAMES[:-1], "site-x"])
    with pytest.raises(FedkinError, match="'site-g'"):
        run(FedPnP(), graph=other)
