"""Theory as diagnostics: what FedU's analysis assumes, and whether pFedMe's inner steps settle, measured on a federation.

>>> from fedkin import data, theory
>>> from fedkin.algorithms import FedU
>>> federation = data.load("digits", clients=4, seed=0)
>>> found = theory.diagnose(federation, "mlr", FedU(eta=0.5))
>>> round(found.rho, 9)  # four clients, all pairs with weight 0.5
2.0
>>> found.condition == (found.c * 0.5 * found.rho > 2 * found.beta)
True
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import MatrixRankWarning, spsolve
from torch import Tensor

from fedkin.algorithm import Algorithm
from fedkin.algorithms.fedu import LaplacianRegularised
from fedkin.algorithms.pfedme import PFedMe
from fedkin.clients import Replies
from fedkin.couplings import safe_step, stability
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.graphs import ClientGraph
from fedkin.local.kernels.linear import dense_layers
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, client_task
from fedkin.models import ModelLike
from fedkin.run import Run, make_options, make_run
from fedkin.task.losses import loss_of


@dataclass(frozen=True)
class Diagnosis:
    """Quantities of FedU's analysis; β is a local estimate, a lower bound of the constant in the theorems."""

    rho: float
    """ρ = ‖L‖ = λ_max(L)."""
    smoothness: np.ndarray
    """β_k = ‖∇²F_k(w_k)‖ of every client, (K,), weight decay included."""
    eta: float
    stability: float
    """c·μ̃·η·λ_max(L): at most 1 differences shrink monotonically, at most 2 they do not grow."""
    safe_eta: float
    """The largest η with stability 2, at this c, learning rate and R."""
    c: float = 1.0
    """The factor c of the coupling: clients feel cη, so it stands wherever the analysis (c = 1) has η."""
    distance: float | None = None
    """‖W − W*‖ / ‖W*‖ to the stationary point W*, where the problem is quadratic."""

    @property
    def beta(self) -> float:
        """β = max_k β_k."""
        return float(self.smoothness.max())

    @property
    def condition(self) -> bool:
        """Whether cηρ > 2β, as the lemma on gradient dissimilarity assumes (with c = 1)."""
        return self.c * self.eta * self.rho > 2 * self.beta

    def __str__(self) -> str:
        relation = "holds" if self.condition else "does not hold"
        lines = [
            f"ρ = ‖L‖                {self.rho:.4g}",
            f"β (local estimate)     {self.beta:.4g}",
            f"cηρ > 2β               {relation}: {self.c * self.eta * self.rho:.4g} against {2 * self.beta:.4g}",
            f"c·μ̃·η·λ_max(L)         {self.stability:.4g} (stable up to 2: η ≤ {self.safe_eta:.4g})",
        ]
        if self.distance is not None:
            lines.append(f"‖W − W*‖ / ‖W*‖        {self.distance:.4g}")
        return "\n".join(lines)


def diagnose(
    federation: Federation,
    model: ModelLike,
    algorithm: LaplacianRegularised,
    graph: ClientGraph | str | None = None,
    rows: np.ndarray | Tensor | None = None,
    seed: int = 0,
    iterations: int = 50,
    **options: Any,
) -> Diagnosis:
    """Measure what FedU's theory speaks of, at the clients' models `rows` (K, B) (default: the initial weights).

    β_k comes from power iteration on Hessian-vector products, made by the clients on their own training samples; they
    disclose one number each. For a linear model with squared error the distance to the stationary point is given too:
    then clients disclose the Hessian and gradient of their loss. `options` are those of a run (dtype, engine, …).
    """
    with visiting(federation, model, algorithm, graph, rows, seed, options) as (run, at):
        shared, linked = curvature_asked(algorithm, iterations), algorithm.linked(run.setting)
        curved = ask_everyone(run, f"{__name__}:smoothness", at, shared)
        known, distance = quadratics(run, shared), None
        if known is not None:
            best = stationary_point(*known, linked, algorithm.c * algorithm.eta)
            distance = float(np.linalg.norm(at.numpy() - best) / np.linalg.norm(best))
    longest = float(np.max(algorithm.step(1, run.setting.sizes)))
    return Diagnosis(
        rho=linked.lambda_max(),
        smoothness=curved["smoothness"].double().numpy(),
        eta=algorithm.eta,
        c=algorithm.c,
        stability=stability(linked, longest),
        safe_eta=algorithm.eta * safe_step(linked) / longest if longest else float("inf"),
        distance=distance,
    )


@dataclass(frozen=True)
class InnerSteps:
    """pFedMe's steps θ ← θ − γ_p(∇f_k(θ) + λ(θ − w)): gradient descent on a function of smoothness λ + β_k."""

    rate: float
    """γ_p."""
    lam: float
    """λ."""
    smoothness: np.ndarray
    """β_k = ‖∇²f_k‖ of every client at the models that were looked at, (K,): a lower bound of the constant."""

    @property
    def factor(self) -> np.ndarray:
        """γ_p(λ + β_k), (K,): up to 1 a step never passes the proximal point, below 2 steps settle, beyond they grow."""
        return self.rate * (self.lam + self.smoothness)

    @property
    def largest_rate(self) -> float:
        """The γ_p at which the steepest client's steps would no longer settle: 2/(λ + max_k β_k)."""
        return 2 / (self.lam + float(self.smoothness.max()))

    def __str__(self) -> str:
        grow = int(np.sum(self.factor >= 2))
        return (
            f"γ_p(λ + β)             up to {self.factor.max():.4g}: steps grow at {grow} of {len(self.factor)} clients "
            f"(all settle for γ_p < {self.largest_rate:.4g})"
        )


def inner_steps(
    federation: Federation,
    model: ModelLike,
    algorithm: PFedMe,
    rows: np.ndarray | Tensor | None = None,
    seed: int = 0,
    iterations: int = 50,
    **options: Any,
) -> InnerSteps:
    """Whether pFedMe's inner steps settle: γ_p(λ + β_k) < 2, with β_k at `rows` (K, B) (default: the initial weights).

    A run refuses γ_p·λ ≥ 2 before it starts; β_k is the clients' to measure, each on its training samples (see `diagnose`).
    """
    with visiting(federation, model, algorithm, None, rows, seed, options) as (run, at):
        told = ask_everyone(run, f"{__name__}:smoothness", at, curvature_asked(algorithm, iterations))
    return InnerSteps(algorithm.personal_lr, algorithm.lam, told["smoothness"].double().numpy())


def curvature_asked(algorithm: Algorithm, iterations: int) -> dict[str, Any]:
    """What a client is told to measure the curvature of its loss."""
    return {"iterations": iterations, "weight_decay": algorithm.weight_decay}


@contextmanager
def visiting(
    federation: Federation,
    model: ModelLike,
    algorithm: Algorithm,
    graph: ClientGraph | str | None,
    rows: np.ndarray | Tensor | None,
    seed: int,
    options: Mapping[str, Any],
) -> Iterator[tuple[Run, Tensor]]:
    """A run that trains nothing, and the models to look at: `rows` (K, B), or the initial ones."""
    settings = make_options(rounds=0, seed=seed, **{"dtype": "float64", **options})
    run = make_run(federation, model, algorithm, settings, graph)
    try:
        at = run.state.rows if rows is None else torch.as_tensor(np.asarray(rows), dtype=run.setting.spec.dtype)
        if at.shape != run.state.rows.shape:
            raise FedkinError(
                f"rows have shape {tuple(at.shape)}; this model and federation need {tuple(run.state.rows.shape)}"
            )
        yield run, at
    finally:
        run.close()


def ask_everyone(run: Run, task: str, at: Tensor, shared: Mapping[str, Any]) -> Replies:
    """What all clients answer about their models (K, B); one that cannot is named."""
    if shared["iterations"] < 1:
        raise FedkinError(f"iterations is {shared['iterations']}; power iteration needs at least 1")
    told = run.clients.ask(task, run.setting.everyone, {"rows": at}, shared)
    if told.failed:
        name, why = next(iter(told.failed.items()))
        raise FedkinError(f"client {name!r} could not look at its loss: {why}")
    return told


def quadratics(run: Run, shared: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray] | None:
    """H_k (K, P, P) and b_k (K, P) of F_k(w) = ½ wᵀH_k w − b_kᵀw + const, for a linear model with squared error; else None."""
    setting = run.setting
    layers = dense_layers(setting.spec.template(), setting.spec.layout)
    if setting.task.loss != "mse" or layers is None or len(layers) != 1:
        return None
    told = run.clients.ask(f"{__name__}:quadratic", setting.everyone, None, shared)
    return told["hessian"].numpy(), told["linear"].numpy()


def stationary_point(hessians: np.ndarray, linear: np.ndarray, graph: ClientGraph, strength: float) -> np.ndarray:
    """The W (K, P) with ∇F_k(w_k) + s Σ_l a_kl (w_k − w_l) = 0 for F_k(w) = ½ wᵀH_k w − b_kᵀw: one linear system.

    (blockdiag(H_1, …, H_K) + s L⊗I) vec(W) = vec(b); hessians (K, P, P), linear (K, P), s = cη ≥ 0.
    Nodes of the graph behind the clients have no loss (FedU's hub).

    >>> pair = ClientGraph([[0, 1], [1, 0]])
    >>> stationary_point(np.ones((2, 1, 1)), np.array([[0.0], [3.0]]), pair, strength=1.0)
    array([[1.],
           [2.]])
    """
    clients, parameters = linear.shape
    hubs = len(graph) - clients
    hessians, linear = np.pad(hessians, ((0, hubs), (0, 0), (0, 0))), np.pad(linear, ((0, hubs), (0, 0)))
    blocks = sp.block_diag(list(hessians), format="csc")
    system = blocks + strength * sp.kron(graph.laplacian(), sp.eye_array(parameters), format="csc")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", MatrixRankWarning)  # said below, in words
        solution = spsolve(sp.csc_array(system), linear.ravel())
    if not np.isfinite(solution).all() or not np.allclose(system @ solution, linear.ravel(), atol=1e-6):
        raise FedkinError(
            "the stationary point is not unique: some client's loss is flat; add weight decay or a graph edge"
        )
    return solution.reshape(-1, parameters)[:clients]


# --- what clients do --------------------------------------------------------------------------------------------------


class Curvature:
    """Gradient and Hessian-vector products of one client's training loss at its row, by double differentiation.

    In evaluation mode: batch norm with running statistics, no dropout.
    """

    def __init__(self, shard: Shard, k: int, row: Tensor, weight_decay: float) -> None:
        module = shard.spec.module(row)
        parameters = dict(module.named_parameters())
        self.weights = [parameters[slot.name] for slot in shard.spec.layout.parameters]
        x, y = shard.train.of(k)
        self._each = loss_of(shard.task)(module(x), y)
        loss = self._each.mean() + weight_decay / 2 * sum(w.square().sum() for w in self.weights)
        self.loss = float(loss.detach())
        self._gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, self.weights, create_graph=True)])

    @property
    def gradient(self) -> Tensor:
        """∇F_k, (P,)."""
        return self._gradient.detach()

    def spread(self) -> float:
        """(1/n) Σ_i ‖∇ℓ_i − ∇ℓ‖² over the samples: one backward pass each."""
        single = []
        for loss in self._each.reshape(len(self._each), -1).mean(dim=1):
            slopes = torch.autograd.grad(loss, self.weights, retain_graph=True, materialize_grads=True)
            single.append(torch.cat([g.reshape(-1) for g in slopes]))
        stacked = torch.stack(single)
        return float((stacked - stacked.mean(dim=0)).square().sum(dim=1).mean())

    def times(self, vector: Tensor) -> Tensor:
        """∇²F_k · v, (P,)."""
        product = torch.autograd.grad(self._gradient @ vector, self.weights, retain_graph=True, materialize_grads=True)
        return torch.cat([p.reshape(-1) for p in product])


def steepest(times: Callable[[Tensor], Tensor], vector: Tensor, iterations: int) -> float:
    """The largest absolute eigenvalue of a symmetric operator v ↦ times(v), by power iteration from a vector."""
    size = vector.norm()
    for _ in range(iterations):
        if size == 0:
            break
        vector = times(vector / size)
        size = vector.norm()
    return float(size)


@client_task("smoothness")
def smoothness_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """The largest absolute eigenvalue of each client's Hessian at its row, by power iteration, (k,)."""
    found = torch.zeros(len(request.ids), dtype=torch.float64)
    for i, k in enumerate(request.ids):
        curvature = Curvature(shard, k, request.per_client["rows"][i], request.shared["weight_decay"])
        start = shard.streams.generator("curvature", shard.names[k]).standard_normal(shard.spec.layout.n_parameters)
        vector = torch.from_numpy(start).to(shard.spec.dtype)
        found[i] = steepest(curvature.times, vector, request.shared["iterations"])
    return {"smoothness": found}


@client_task("quadratic")
def quadratic_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """H_k (k, P, P) and b_k (k, P) of a quadratic loss F_k(w) = ½ wᵀH_k w − b_kᵀw + const, from w = 0."""
    n = shard.spec.layout.n_parameters
    hessians, linear = [], []
    for k in request.ids:
        zero = torch.zeros(shard.spec.layout.width, dtype=shard.spec.dtype)
        curvature = Curvature(shard, k, zero, request.shared["weight_decay"])
        hessians.append(torch.stack([curvature.times(unit) for unit in torch.eye(n, dtype=shard.spec.dtype)]))
        linear.append(-curvature.gradient)
    return {"hessian": torch.stack(hessians).double(), "linear": torch.stack(linear).double()}
