"""FedPnP's Theorem 1, measured while a run goes on: how much a local step must lower a client's loss, and whether it does.

Client k receives Ψ[k] and minimises l_k(w) = f_k(w) + (μ/2)‖w − Ψ[k]‖² inexactly. With f_k L-smooth, ∇²f_k ≽ −α, α' = μ − α > 0 and

    ‖∇l_k(w)‖ ≤ γ ‖∇f_k(Ψ[k])‖                                       (γ-inexactness)
    f_k(w) ≤ f_k(Ψ[k]) − υ ‖∇f_k(Ψ[k])‖²,   υ = 1/μ − γ/μ − L(1+γ)/(μα') − L(1+γ)²/(2α'²)

For exact solutions of convex losses υ = 1/μ − 3L/(2μ²), positive where μ > 1.5 L: the corollary's advice. It is a statement about local
steps alone; what denoising does to f_k afterwards it does not say, so it is no proof that the whole loop converges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedkin.diagnostics.theory import Curvature, steepest
from fedkin.errors import FedkinError
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, client_task
from fedkin.result.history import Record
from fedkin.run import Callback, Run


@dataclass(frozen=True)
class Step:
    """The local step of one round: what Theorem 1 speaks of, one number per client, (K,)."""

    round: int
    mu: float
    gamma: np.ndarray
    """γ_k, the inexactness; 0 is an exact solution."""
    smoothness: np.ndarray
    """L_k: the largest of ‖∇²f_k‖ at both ends and of the secant between them, a lower bound of the constant."""
    concavity: np.ndarray
    """α_k ≥ 0: how far below 0 the smallest curvature goes, at the two ends."""
    gradient: np.ndarray
    """‖∇f_k(Ψ[k])‖."""
    decrease: np.ndarray
    """f_k(Ψ[k]) − f_k(w)."""

    @property
    def upsilon(self) -> np.ndarray:
        """υ_k; NaN where μ ≤ α_k or μ = 0, where the theorem says nothing."""
        beyond = np.where(self.mu > self.concavity, self.mu - self.concavity, np.nan) if self.mu > 0 else np.nan
        gamma, smooth, mu = self.gamma, self.smoothness, self.mu or np.nan
        return 1 / mu - gamma / mu - smooth * (1 + gamma) / (mu * beyond) - smooth * (1 + gamma) ** 2 / (2 * beyond**2)

    @property
    def promised(self) -> np.ndarray:
        """υ_k ‖∇f_k(Ψ[k])‖²: the least decrease that the theorem promises; below 0 it promises nothing."""
        return self.upsilon * self.gradient**2

    @property
    def enough(self) -> float:
        """1.5·max_k L_k: the corollary's bound on μ."""
        return 1.5 * float(self.smoothness.max())

    def __str__(self) -> str:
        promised = int(np.sum(np.nan_to_num(self.upsilon, nan=-1.0) > 0))
        advice = "enough" if self.mu > self.enough else f"the corollary wants μ > 1.5 L = {self.enough:.4g}"
        return (
            f"round {self.round}: L up to {self.smoothness.max():.4g}, γ up to {self.gamma.max():.4g}, loss falls at "
            f"{int(np.sum(self.decrease > 0))} of {len(self.gamma)} clients, promised at {promised}; μ = {self.mu:g}: {advice}"
        )


class LocalDescent(Callback):
    """Give it to `train(callbacks=[…])` of a method with a pull μ (FedPnP, FedProx): `steps` has a `Step` per `every` rounds.

    It looks at the local training to come, with its batches, and leaves no trace: numbers of the run do not change. Clients
    disclose six numbers each. The cost is one local training and 4·`iterations` products with a Hessian per client.
    """

    def __init__(self, every: int = 1, iterations: int = 30) -> None:
        if every < 1 or iterations < 1:
            raise FedkinError(f"every = {every} and iterations = {iterations} must be at least 1")
        self.every, self.iterations = every, iterations
        self.steps: list[Step] = []

    def on_start(self, run: Run) -> None:
        if not hasattr(run.algorithm, "mu"):
            raise FedkinError(f"{run.algorithm.name} has no pull μ, which the theorem is about; use fedpnp or fedprox")
        if run.algorithm.private(run.setting):
            raise FedkinError(
                f"{run.algorithm.name}: LocalDescent needs whole rows; tensors that stay at home hide some"
            )
        self._look(run)

    def on_round(self, run: Run, record: Record) -> None:
        if run.state.round % self.every == 0 and run.state.round < run.options.rounds:
            self._look(run)

    def _look(self, run: Run) -> None:
        setting, state, mu = run.setting, run.state, float(run.algorithm.mu)  # type: ignore[attr-defined]
        start = run.algorithm.received(state, setting)
        trained = run.algorithm.train(
            state, run.clients, setting.everyone, setting, bill=False, commit=False, evaluate=[]
        )
        asked = {"mu": mu, "weight_decay": run.algorithm.weight_decay, "iterations": self.iterations}
        both = {"start": start[torch.as_tensor(trained.ids)], "rows": trained["rows"]}
        told = run.clients.ask(f"{__name__}:descent", trained.ids, both, asked, bill=False)
        numbers = {key: told[key].double().cpu().numpy() for key in MEASURED}
        self.steps.append(Step(state.round + 1, mu, **numbers))


MEASURED = ("gamma", "smoothness", "concavity", "gradient", "decrease")


@client_task("descent")
def descent_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Of each client, from the row it received ("start") and the one it trained ("rows"): the numbers of a `Step`, (k,)."""
    mu, decay, iterations = (request.shared[key] for key in ("mu", "weight_decay", "iterations"))
    found: dict[str, list[float]] = {key: [] for key in MEASURED}
    n = shard.spec.layout.n_parameters
    for i, k in enumerate(request.ids):
        rows = request.per_client["start"][i], request.per_client["rows"][i]
        ends = [Curvature(shard, k, row, decay) for row in rows]
        step = (rows[1] - rows[0])[:n]
        drawn = shard.streams.generator("curvature", shard.names[k]).standard_normal(n)
        vector = torch.as_tensor(drawn, dtype=shard.spec.dtype)
        most = [steepest(end.times, vector, iterations) for end in ends]
        least = [
            top - steepest(lambda v, end=end, top=top: top * v - end.times(v), vector, iterations)  # type: ignore[misc]
            for end, top in zip(ends, most)
        ]
        first, last = (end.gradient for end in ends)
        secant = float((last - first).norm() / step.norm()) if bool(step.any()) else 0.0
        found["gradient"].append(float(first.norm()))
        found["gamma"].append(float((last + mu * step).norm()) / max(float(first.norm()), 1e-300))
        found["smoothness"].append(max(*most, secant))
        found["concavity"].append(max(0.0, -min(least)))
        found["decrease"].append(ends[0].loss - ends[1].loss)
    return {key: torch.tensor(values, dtype=torch.float64) for key, values in found.items()}
