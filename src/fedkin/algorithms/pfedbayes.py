"""pFedBayes: every client has a Gaussian belief over its weights, with the federation's belief as prior."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import softplus

from fedkin.algorithm import Algorithm, Deploys, LocalWork, Setting, State, mix, stretched
from fedkin.clients import Replies
from fedkin.compute.steps import Optimiser
from fedkin.couplings import Average
from fedkin.errors import FedkinError
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, narrowed, training_task, widened
from fedkin.local.training import Chunk, train_chunks


class PFedBayes(Algorithm):
    """Mean-field Gaussian weights N(μ, σ²), σ = softplus(ρ): a personal posterior q_k and a common prior p.

    Each local step, on one batch b, by Adam (or another `optimiser`):

        inner_steps times:   q_k descends  E_{θ~q}[f_k(θ; b)] + (ζ/n_k) KL(q_k ‖ p_k)      one θ = μ + σε, ε ~ N(0, 1)
        once:                p_k descends  KL(q_k ‖ p_k),   p_k the client's copy of the prior
        server:              (μ, ρ) ← (1 − β)(μ, ρ) + β·mean_S (μ_k, ρ_k)

    f_k is the mean loss per sample, so the first line is the negative evidence bound (at temperature ζ) divided by n_k.
    q_k starts at the initial prior and lives with the client; clients deploy its mean. μ and ρ travel: twice FedAvg's
    bytes. The model may be any network whose parameters belong to linear and convolutional layers.

    Reference: Zhang et al., Personalized Federated Learning via Variational Bayesian Inference, 2022.
    """

    name: ClassVar[str] = "pfedbayes"
    title: ClassVar[str] = "pFedBayes"
    deploys: ClassVar[Deploys] = "trained"

    own_rate: ClassVar[bool] = True

    lr: float = Field(0.01, gt=0, description="rate of the steps (Adam's, by default)")
    optimiser: Optimiser = Field("adam", description="step rule of posterior and prior")
    epochs: int = Field(1, ge=1, description="passes over the client's data per round, each batch `inner_steps` times")
    zeta: float = Field(0.1, ge=0, description="weight ζ of the divergence from the prior")
    rho: float = Field(-3.0, description="ρ of all weights at the start; σ = softplus(ρ)")
    inner_steps: int = Field(5, ge=1, description="steps on the posterior per batch")
    beta: float = Field(1.0, gt=0, description="step β of the server towards the mean of the clients")

    def check(self, setting: Setting) -> None:
        for name, layer in setting.spec.template().named_modules():
            bayesian = isinstance(layer, nn.Linear | nn.modules.conv._ConvNd)
            if isinstance(layer, nn.modules.batchnorm._NormBase) or (
                not bayesian and any(True for _ in layer.parameters(recurse=False))
            ):
                raise FedkinError(
                    f"pfedbayes needs a model of linear and convolutional layers; {name or 'the model'!r} is a "
                    f"{type(layer).__name__}, take a network without it"
                )

    def start(self, setting: Setting) -> State:
        rho = torch.full((setting.spec.layout.n_parameters,), self.rho, dtype=setting.spec.dtype)
        return super().start(setting).with_arrays(rho=rho)

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        rho = state.arrays["rho"].expand(len(ids), -1)  # a row per client, as μ: several federations may ask as one
        shared = {"rho0": self.rho, "zeta": self.zeta, "inner_steps": self.inner_steps}
        return LocalWork(f"{__name__}:pfedbayes", {"rho": rho}, shared)

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        rho = torch.lerp(state.arrays["rho"], replies["rho"].mean(dim=0), self.beta)
        trained = stretched(state, replies, self.beta, setting)
        coupling = Average(np.ones(len(setting)), replies.ids)
        return mix(state, replies, coupling, trained=trained).with_arrays(rho=rho)


@training_task("pfedbayes")
def variational_training(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """Adam on the posterior (μ, ρ) of every client and on its copy of the prior; a belief is a row [μ, ρ], (k, 2P)."""
    shared, ids = request.shared, request.ids
    n = shard.spec.layout.n_parameters

    def initial() -> Tensor:
        mean = shard.spec.initial_row(shard.streams)[:n]
        return torch.cat([mean, torch.full_like(mean, shared["rho0"])])

    posterior = shard.private("posterior", initial)[ids]
    rho = request.per_client["rho"].to(rows.dtype)
    if "home" in shared:
        rho = widened(shard, request, rho, shard.private("home_rho", lambda: rows.new_full((n,), shared["rho0"]))[ids])
    prior = torch.cat([rows[:, :n], rho], dim=1)
    pull = shared["zeta"] / torch.as_tensor(shard.train.sizes[ids]).to(rows.dtype)[:, None]

    def work(chunk: Chunk) -> Tensor:
        q, p, zeta = posterior[chunk.place], prior[chunk.place], pull[chunk.place]
        step_q, step_p = chunk.rule("posterior", q), chunk.rule("prior", p)
        draws = [torch.Generator().manual_seed(int(word) >> 1) for word in chunk.words]
        sample, slopes, downhill = chunk.rows.clone(), torch.empty_like(q[:, :n]), torch.empty_like(q)
        noise = torch.empty_like(slopes, device="cpu")  # other devices draw other numbers
        total = chunk.rows.new_zeros(len(q))
        for batch in chunk.batches():
            a = batch.active
            precision = softplus(p[:a, n:]).square_().reciprocal_()
            for step in range(shared["inner_steps"]):
                for generator, line in zip(draws[:a], noise):
                    line.normal_(generator=generator)
                epsilon, deviation = noise[:a].to(slopes.device), softplus(q[:a, n:])
                torch.addcmul(q[:a, :n], deviation, epsilon, out=sample[:a, :n])
                loss = chunk.gradient(sample[:a], batch, slopes[:a])
                total[:a] += loss if step == 0 else 0
                posterior_slopes(q[:a], p[:a], zeta[:a], slopes[:a], epsilon, deviation, precision, downhill[:a])
                step_q.step(q[:a], downhill[:a])
            step_p.step(p[:a], prior_slopes(q[:a], p[:a]))
        posterior[chunk.place], prior[chunk.place] = q, p
        return chunk.per_step(total)

    settings = Sgd(**shared["sgd"])
    _, loss = train_chunks(shard, ids, rows, settings, shared["round"], work)
    rest = rows[:, n:]
    return Trained(
        rows=torch.cat([prior[:, :n], rest], dim=1),
        loss=loss,
        personal=torch.cat([posterior[:, :n], rest], dim=1),
        keep={"posterior": posterior, **({"home_rho": prior[:, n:]} if "home" in shared else {})},
        extra={"rho": narrowed(shard, request, prior[:, n:])},
    )


def divergence(q: Tensor, p: Tensor) -> Tensor:
    """KL(q ‖ p) of mean-field Gaussians [μ, ρ], (k, 2P) → (k,): Σ ln(σ_p/σ_q) + (σ_q² + (μ_q − μ_p)²)/2σ_p² − ½."""
    (mean_q, rho_q), (mean_p, rho_p) = q.chunk(2, dim=1), p.chunk(2, dim=1)
    s_q, s_p = softplus(rho_q), softplus(rho_p)
    return (s_p.log() - s_q.log() + (s_q**2 + (mean_q - mean_p) ** 2) / (2 * s_p**2) - 0.5).sum(dim=1)


def posterior_slopes(
    q: Tensor,
    p: Tensor,
    zeta: Tensor,
    slopes: Tensor,
    epsilon: Tensor,
    deviation: Tensor,
    precision: Tensor,
    out: Tensor,
) -> None:
    """∇_q of f(μ + σε) + ζ KL(q ‖ p), (k, 2P), into `out`: in few passes, for this is what a step costs.

    slopes ∇f (k, P), ε (k, P), σ_q (k, P), 1/σ_p² (k, P). With ∂σ/∂ρ = sigmoid(ρ):

        ∂μ = ∇f + ζ (μ_q − μ_p)/σ_p²,     ∂ρ = (∇f ε + ζ (σ_q/σ_p² − 1/σ_q)) sigmoid(ρ_q)
    """
    n = slopes.shape[1]
    scaled = zeta * precision
    torch.addcmul(slopes, q[:, :n] - p[:, :n], scaled, out=out[:, :n])
    spread = torch.mul(slopes, epsilon, out=out[:, n:])
    spread.addcmul_(deviation, scaled).sub_(zeta / deviation).mul_(torch.sigmoid(q[:, n:]))


def prior_slopes(q: Tensor, p: Tensor) -> Tensor:
    """∇_p of `divergence`, (k, 2P): (μ_p − μ_q)/σ_p² and (1/σ_p − (σ_q² + (μ_q − μ_p)²)/σ_p³) sigmoid(ρ_p)."""
    (mean_q, rho_q), (mean_p, rho_p) = q.chunk(2, dim=1), p.chunk(2, dim=1)
    apart, s_q, s_p = mean_p - mean_q, softplus(rho_q), softplus(rho_p)
    own = s_p.reciprocal() - s_q.square_().addcmul_(apart, apart) / s_p**3
    return torch.cat([apart / s_p**2, own * torch.sigmoid(rho_p)], dim=1)
