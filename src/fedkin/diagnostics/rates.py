"""How fast FedU converges, and how near: Lemma 1 and the two theorems of its analysis, with constants that are measured.

The objective is J(W) = Σ_k F_k(w_k) + (s/2) tr(WᵀLW) with s = cη: clients feel c·η, so that it stands wherever the paper
(c = 1) has η. ρ = ‖L‖; α and β bound the curvature of all F_k, α I ≼ ∇²F_k ≼ β I; R steps of rate μ a round, μ̃ = μR.

Lemma 1 (convex F_k, W* the minimiser of J):

    (1/K) Σ_k ‖∇F_k(w_k)‖² ≤ (4β/K) (J(W) − J(W*)) + 2σ²,    σ² = (1/K) Σ_k ‖∇F_k(w*_k)‖² = s² ‖LW*‖² / K

    (by co-coercivity, and because at W* the gradients of losses and coupling cancel).

Theorem 1 (α > 0; μ ≤ 2/(α+β) and μ̃sρ ≤ 2). A local step contracts by q = 1 − μα, the server's step expands nothing, so that a
round with S of K clients has E‖W⁺ − V⁺‖² ≤ Q² ‖W − V‖²,  Q² = 1 − (S/K)(1 − q^{2R}). Where everyone takes part,

    ‖E W^t − W*‖ ≤ Q^t ‖W⁰ − W_μ‖ + ‖W_μ − W*‖,   ‖W_μ − W*‖ ≤ √K σ μ̃² (sρ + β(R−1)/(2R)) / (1 − q^R)
    E‖W^t − W_μ‖² ≤ Q^{2t} ‖W⁰ − W_μ‖² + K R μ² σ₁² / (1 − Q²)

with W_μ where the round's map rests and σ₁² the variance of a mini-batch's gradient (the first line for quadratic F_k or full
batches). With the rule `sampled` two neighbours meet only when both are drawn: the problem solved has s (S−1)/(K−1). Where R of
the server's step counts epochs (`local_unit`) but clients take more SGD steps, they feel s = cη·epochs/R.

Theorem 2 (any F_k ≥ 0; R = 1, S = K, μ ≤ 1/(β + sρ)):

    (1/T) Σ_t E‖∇J(W^t)‖² ≤ 2 J(W⁰) / (μT) + (μsρ)² G² + μ (β + sρ) K σ₁²,    G² = max_t ‖∇F(W^t)‖²

These are the statements of Dinh et al. 2021 (arXiv 2102.07148) with constants that are proved above in a line each, not the paper's
printed ones, which were not at hand. They are bounds: runs are faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.algorithms.fedu import FedU, LaplacianRegularised
from fedkin.diagnostics.theory import (
    Curvature,
    ask_everyone,
    curvature_asked,
    quadratics,
    stationary_point,
    steepest,
    visiting,
)
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.graphs import ClientGraph
from fedkin.local.batches import count_steps
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, client_task
from fedkin.models import ModelLike


@dataclass(frozen=True)
class Convergence:
    """The constants of Lemma 1 and Theorems 1 and 2 for a setting. α, β and σ₁² are those of the point that was looked at."""

    alpha: float
    """The smallest curvature of any client's loss; 0 or less: Theorem 1 says nothing."""
    beta: float
    """The largest curvature."""
    rho: float
    """ρ = ‖L‖."""
    strength: float
    """s = cη as clients feel it: times epochs/R where the server counts epochs, and (S−1)/(K−1) with the rule `sampled`."""
    sigma2: float
    """σ² of Lemma 1, at W* where it is known (least squares), else at the rows that were given."""
    noise2: float
    """σ₁², the mean over clients of E‖∇F̃_k − ∇F_k‖² for a mini-batch."""
    objective: float
    """J at the rows that were given."""
    rate: float
    """μ."""
    steps: int
    """R: local SGD steps a round, of the client that takes most."""
    clients: int
    cohort: int
    """S."""

    @property
    def largest_rate(self) -> float:
        """Theorem 1's bound on μ: min(2/(α+β), 2/(R s ρ))."""
        coupling = self.steps * self.strength * self.rho
        return min(2 / (max(self.alpha, 0) + self.beta), 2 / coupling if coupling else math.inf)

    @property
    def largest_rate_nonconvex(self) -> float:
        """Theorem 2's bound on μ: 1/(β + sρ)."""
        return 1 / (self.beta + self.strength * self.rho)

    @property
    def contraction(self) -> float:
        """Q of Theorem 1: by how much a round shrinks distances, at least; 1 where the theorem says nothing."""
        if self.alpha <= 0 or self.rate > self.largest_rate * (1 + 1e-12):
            return 1.0
        return math.sqrt(1 - self.cohort / self.clients * (1 - (1 - self.rate * self.alpha) ** (2 * self.steps)))

    @property
    def bias(self) -> float:
        """The bound on ‖W_μ − W*‖ (everyone takes part): how far from the minimiser a run with full batches ends."""
        if self.contraction == 1:
            return math.inf
        ahead = self.rate * self.steps
        pull = self.strength * self.rho + self.beta * (self.steps - 1) / (2 * self.steps)
        away = math.sqrt(self.clients * self.sigma2) * ahead**2 * pull
        return away / (1 - (1 - self.rate * self.alpha) ** self.steps)

    @property
    def variance(self) -> float:
        """What mini-batches add to E‖W^t − W_μ‖² in the end: K R μ² σ₁² / (1 − Q²), times S/K."""
        if self.contraction == 1:
            return math.inf
        return self.cohort * self.steps * self.rate**2 * self.noise2 / (1 - self.contraction**2)

    def rounds(self, factor: float) -> float:
        """Rounds after which the distance to where the run ends is at most `factor` times what it was (Theorem 1)."""
        if not 0 < factor < 1:
            raise FedkinError(f"factor is {factor}; by how much the distance shall shrink is between 0 and 1")
        return math.inf if self.contraction == 1 else math.ceil(math.log(factor) / math.log(self.contraction) - 1e-9)

    def rounds_nonconvex(self, gradient2: float) -> float:
        """Rounds after which the first term of Theorem 2 is at most `gradient2` at this μ: 2J(W⁰)/(μ·gradient2)."""
        if not gradient2 > 0:
            raise FedkinError(f"gradient2 is {gradient2}; a squared gradient to be reached is above 0")
        good = self.rate <= self.largest_rate_nonconvex * (1 + 1e-12)
        return math.ceil(2 * self.objective / (self.rate * gradient2)) if good else math.inf

    def __str__(self) -> str:
        one = "holds" if self.contraction < 1 else "does not apply"
        two = "holds" if self.rate <= self.largest_rate_nonconvex * (1 + 1e-12) else "does not apply"
        return "\n".join(
            [
                f"curvature α, β         {self.alpha:.4g}, {self.beta:.4g}",
                f"s = cη (felt), sρ      {self.strength:.4g}, {self.strength * self.rho:.4g}",
                f"Lemma 1: σ²            {self.sigma2:.4g}; a mini-batch's σ₁² {self.noise2:.4g}",
                f"Theorem 1 {one}: μ = {self.rate:.4g} against {self.largest_rate:.4g}; a round shrinks distances by "
                f"{self.contraction:.6g}, a tenth after {self.rounds(0.1):.6g} rounds",
                f"Theorem 2 {two}: μ = {self.rate:.4g} against {self.largest_rate_nonconvex:.4g}; J = {self.objective:.4g}",
            ]
        )


def convergence(
    federation: Federation,
    model: ModelLike,
    algorithm: LaplacianRegularised,
    graph: ClientGraph | str | None = None,
    rows: np.ndarray | Tensor | None = None,
    seed: int = 0,
    iterations: int = 200,
    **options: Any,
) -> Convergence:
    """Measure the constants of FedU's theorems at the clients' models `rows` (K, B) (default: the initial weights).

    Every client makes one backward pass per sample and some Hessian-vector products, and discloses its loss, its extreme
    curvatures, ‖∇F_k‖² and the variance of its gradient; for least squares also Hessian and gradient, which give W* and with
    it Lemma 1's σ². For other losses take the rows of a run near its end. `options` are those of a run (cohort, dtype, …).
    """
    with visiting(federation, model, algorithm, graph, rows, seed, options) as (run, at):
        setting, linked = run.setting, algorithm.linked(run.setting)
        shared = {**curvature_asked(algorithm, iterations), "batch_size": algorithm.batch_size}
        told = ask_everyone(run, f"{__name__}:fedu_constants", at, shared)
        found = {key: told[key].double().numpy() for key in ("loss", "least", "most", "square", "noise")}
        counted = count_steps(setting.sizes, algorithm.batch_size, algorithm.epochs, algorithm.steps)
        rate, steps, cohort = algorithm.rate(1), int(np.max(counted)), run.options.cohort_size(len(setting))
        s = float(np.max(algorithm.step(1, setting.sizes))) / (rate * steps)
        felt = s * _meeting(algorithm, cohort, len(setting))
        sigma2 = float(found["square"].mean())
        known = quadratics(run, shared)
        if known is not None:
            hessians, linear = known
            best = stationary_point(hessians, linear, linked, felt)
            slopes = np.einsum("kpq,kq->kp", hessians, best) - linear
            sigma2 = float(np.square(slopes).sum(axis=1).mean())
        placed = at.double().cpu().numpy()
        if len(linked) > len(setting):  # a hub at rest
            placed = np.concatenate([placed, placed.mean(axis=0, keepdims=True)])
        variation = float(np.sum(placed * (linked.laplacian() @ placed)))
    return Convergence(
        alpha=float(found["least"].min()) if len(linked) == len(setting) else 0.0,  # a hub has no loss
        beta=float(found["most"].max()),
        rho=linked.lambda_max(),
        strength=felt,
        sigma2=sigma2,
        noise2=float(found["noise"].mean()),
        objective=float(found["loss"].sum()) + s / 2 * variation,
        rate=rate,
        steps=steps,
        clients=len(setting),
        cohort=cohort,
    )


def _meeting(algorithm: LaplacianRegularised, cohort: int, clients: int) -> float:
    """The chance that a neighbour of a client that was drawn is heard: (S−1)/(K−1) with the rule `sampled`, else 1."""
    heard = isinstance(algorithm, FedU) and algorithm.neighbours == "all"
    return 1.0 if heard or clients == 1 else (cohort - 1) / (clients - 1)


@client_task("fedu_constants")
def constants_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Of each client at its row: loss, extreme eigenvalues of the Hessian, ‖∇F_k‖², and a mini-batch's E‖∇F̃_k − ∇F_k‖²; all (k,).

    A mini-batch of b is drawn without replacement: its variance is (1/b)(n−b)/(n−1) times that of one sample.
    """
    asked = request.shared
    found: dict[str, list[float]] = {key: [] for key in ("loss", "least", "most", "square", "noise")}
    for i, k in enumerate(request.ids):
        curvature = Curvature(shard, k, request.per_client["rows"][i], asked["weight_decay"])
        start = shard.streams.generator("curvature", shard.names[k]).standard_normal(shard.spec.layout.n_parameters)
        vector = torch.from_numpy(start).to(shard.spec.dtype)
        most = steepest(curvature.times, vector, asked["iterations"])
        above = steepest(lambda v, c=curvature, m=most: m * v - c.times(v), vector, asked["iterations"])  # type: ignore[misc]
        single, n = curvature.spread(), int(shard.train.sizes[k])
        b = min(asked["batch_size"], n)
        found["loss"].append(curvature.loss)
        found["least"].append(most - above)
        found["most"].append(most)
        found["square"].append(float(curvature.gradient.square().sum()))
        found["noise"].append(single * (n - b) / (b * (n - 1)) if n > 1 else 0.0)
    return {key: torch.tensor(values, dtype=torch.float64) for key, values in found.items()}
