"""FedPnP: local training, then a graph denoiser over the clients' models. Any denoiser can be plugged in."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, ValidationInfo, field_validator, model_validator
from torch import Tensor

from fedkin.algorithm import Algorithm, Deploys, LocalWork, Setting, State, mix, place
from fedkin.clients import Replies
from fedkin.couplings import Average, Coupling, GraphFilter, graph_denoiser, schedules
from fedkin.couplings.denoisers import Response, Strength, find_denoiser
from fedkin.couplings.filters import Fidelity
from fedkin.couplings.laplacian import total_variations
from fedkin.couplings.plug import ITERATIVE, refuse_unknown
from fedkin.errors import FedkinError, unknown
from fedkin.graphs import ClientGraph
from fedkin.graphs.similarity import from_models
from fedkin.local.schedules import SCHEDULES
from fedkin.local.sgd import by_field
from fedkin.privacy.settings import Level

MOST_PAIRED = 3_000
"""So many clients can have all their pairs of models compared."""


STRENGTH_SCHEDULES = ("gradual", "constant")


class FedPnP(Algorithm):
    """Plug-and-play graph denoising: each client is pulled to its row of Ψ, the server denoises the trained rows Ω̂.

        client k:  w ← Ψ[k];   w ← w − γ (∇f_k(w) + μ (w − Ψ[k]))   for every mini-batch;   Ω̂[k] = w
        server:    Ψ ← argmin tr((Ψ−Ω̂)ᵀZ(Ψ−Ω̂)) + ν_t tr(ΨᵀLΨ) + ν_t ‖LΨ‖²,   Z = diag(K·n_k/Σn)

    The server's step is a low-pass filter over the client graph with Laplacian L: `soft` 1/(1 + νλ + νλ²), `hard` (the ν
    smoothest modes), `heat`, `tikhonov`, `tv`, or a function h(λ, ν) of your own. The strength ν_t falls from ν⁰ to β,
    in half of the rounds unless η is given; the number of modes grows from 1 to τ, by one a round, or faster where τ would not
    be reached in half of the rounds. The graph comes from four moments of the clients' data unless one is given.

    Limits, exact for any client sizes: β = 0 (or τ = K) and μ = 0 is Local; β → ∞ (or τ = 1) is FedAvg with μ = 0 and
    FedProx with μ > 0. A client that does not take part in a round enters the filter with the row it has on the server.

    Shapes: Ω̂ and Ψ are (K, B). Reference: the FedPnP submission of 2023 (equations 9 to 16); where it leaves a choice,
    the parameter's description says which value follows its text.
    """

    name: ClassVar[str] = "fedpnp"
    title: ClassVar[str] = "FedPnP"
    protects: ClassVar[tuple[Level, ...]] = ("sample", "client")
    along_edges: ClassVar[bool] = True
    defence: ClassVar[str] = "geometric-median"
    deploys: ClassVar[Deploys] = "validated"
    graph_spec: ClassVar[str | None] = "statistics"
    keeps: ClassVar[tuple[str, ...]] = ("learned_graph",)

    mu: float = Field(0.2, ge=0, allow_inf_nan=False, description="strength μ of the pull to the client's row of Ψ")
    denoiser: str | Callable[..., Any] = Field(
        "soft", description="soft, hard, heat, tikhonov, tv, or a function h(λ, strength) of arrays λ"
    )
    beta: float = Field(0.0005, ge=0, allow_inf_nan=False, description="final strength β: 0 local, ∞ averaging")
    beta2: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="soft: the factor of λ², where it is not β as that of λ"
    )
    nu0: float = Field(1.0, ge=0, allow_inf_nan=False, description="strength ν⁰ of round 1 (0 if β = 0 is given)")
    eta: float | None = Field(
        None,
        ge=0,
        le=1,
        description="η: the strength is multiplied by 1 − η each round until it is β (default: β after half of the rounds)",
    )
    schedule: str | Callable[..., Any] = Field(
        "gradual", description="gradual, constant (β or τ from round 1), or a function of the round t = 1, 2, …"
    )
    tau: int | None = Field(
        None, ge=1, validate_default=True, description="hard: final number τ of modes kept, 1 averaging … K local"
    )
    delta: int | None = Field(
        None,
        ge=1,
        description="hard: one more mode is kept every Δ rounds (default: 1, or less, so that τ are after half of the rounds)",
    )
    fidelity: Fidelity = Field(
        "size_weighted",
        description="where client sizes enter: size_weighted (in the penalty), none, row_normalised, literal (eq. 13)",
    )
    factor2: bool = Field(False, description="double β: the filter of eq. 10 instead of eq. 12")
    bn_buffers: Literal["filter", "local", "average"] = Field(
        "filter", description="batch-norm running statistics: filtered like parameters, kept by each client, averaged"
    )

    graph_every: int | None = Field(
        None, ge=1, description="make the graph anew from the clients' models every so many rounds (default: never)"
    )

    @model_validator(mode="after")
    def _models_told(self) -> FedPnP:
        if self.graph_every and self.privacy is not None and self.privacy.level == "client":
            raise ValueError(
                "a graph made from models tells who is alike, without noise: leave out graph_every, or privacy"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _whose_schedule(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Of every other method `schedule` is that of the rate; here, too, where it cannot be that of the strength."""
        kind = str(given.get("schedule")).partition(":")[0]
        return by_field(given) if kind in {*SCHEDULES} - {*STRENGTH_SCHEDULES} else given

    @model_validator(mode="before")
    @classmethod
    def _start_at_zero(cls, given: dict[str, Any]) -> dict[str, Any]:
        """With β = 0 the paper starts at ν⁰ = 0 too."""
        return {"nu0": 0.0, **given} if given.get("beta") == 0 else given

    @field_validator("denoiser", mode="before")
    @classmethod
    def _known(cls, denoiser: object) -> object:
        if not callable(denoiser):
            refuse_unknown(str(denoiser))
        return denoiser

    @field_validator("schedule", mode="before")
    @classmethod
    def _schedulable(cls, schedule: object) -> object:
        if not callable(schedule) and schedule not in STRENGTH_SCHEDULES:
            raise unknown("schedule", schedule, STRENGTH_SCHEDULES)
        return schedule

    @field_validator("beta2")
    @classmethod
    def _soft_only(cls, beta2: float | None, info: ValidationInfo) -> float | None:
        if beta2 is not None and info.data.get("denoiser", "soft") != "soft":
            raise ValueError("only the denoiser 'soft' has a second coefficient")
        return beta2

    @field_validator("tau")
    @classmethod
    def _rank_needs_tau(cls, tau: int | None, info: ValidationInfo) -> int | None:
        if "denoiser" not in info.data or "schedule" not in info.data:
            return tau
        ranked, own = _keeps_modes(info.data["denoiser"]), callable(info.data["schedule"])
        if ranked and tau is None and not own:
            raise ValueError("this denoiser keeps τ modes; give a whole number from 1 to the number of clients")
        if tau is not None and (own or not ranked):
            raise ValueError("a schedule of your own says how many modes" if ranked else "only 'hard' keeps τ modes")
        return tau

    # --- the three moves --------------------------------------------------------------------------------------------

    def check(self, setting: Setting) -> None:
        clients, graph = len(setting), setting.needs_graph(self.name)
        if self.graph_every and clients > MOST_PAIRED:
            raise FedkinError(f"fedpnp: graph_every compares all pairs of clients; leave it out above {MOST_PAIRED:,}")
        if self.tau is not None and self.tau > clients:
            raise FedkinError(f"fedpnp: tau = {self.tau} is not allowed: it must be from 1 to {clients} (the clients)")
        if callable(self.schedule):
            rounds = [1]
        else:
            # Every number of modes, or the first and (after a billion rounds) the last strength.
            step = self.delta or 1
            rounds = [1, 10**9] if self.tau is None else list(range(1, self.tau * step + 1, step))
        for t in rounds:
            strength = self.strength(t, setting.rounds)
            made = graph_denoiser(graph, self.denoiser, strength, setting.sizes, self.fidelity, self.factor2)
            if not made.linear and self.robust not in (None, "norm"):
                raise FedkinError(
                    f"fedpnp: robust={self.robust!r} guards weights, which the denoiser {self.denoiser!r} has none of; "
                    "use robust='norm', or another denoiser"
                )

    def strength(self, t: int, rounds: int = 0) -> Strength:
        """ν_t of round t = 1, 2, … of `rounds` (0: not known): a number, the number of modes, or the pair (β₁, β₂)."""
        if callable(self.schedule):
            return schedules.checked_schedule(self.schedule)(t)
        if self.tau is not None:
            every = self.delta or schedules.grow_within(rounds / 2, self.tau)
            return self.tau if self.schedule == "constant" else schedules.increasing_rank(self.tau, every)(t)
        nu, nu2 = self.beta, self.beta2
        if self.schedule != "constant":
            eta = schedules.fall_within(rounds / 2, nu, self.nu0) if self.eta is None else self.eta
            nu = schedules.decreasing(nu, self.nu0, eta)(t)
            nu2 = None if nu2 is None else schedules.decreasing(nu2, self.nu0, eta)(t)
        return nu if nu2 is None else (nu, nu2)

    def private(self, setting: Setting) -> tuple[str, ...]:
        return setting.spec.layout.running if self.bn_buffers == "local" else ()

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        return LocalWork(shared={"mu": self.mu})

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        layout, strength = setting.spec.layout, self.strength(state.round + 1, setting.rounds)
        running = layout.running_columns
        filtered = None if self.bn_buffers == "filter" or not running.any() else ~running
        trained = place(state.rows, replies, filtered)
        graph = setting.needs_graph(self.name)
        if self.graph_every:
            state, graph = self._relearned(state, graph, trained[:, : layout.n_parameters], setting)
        step = _server_step if isinstance(self.denoiser, Hashable) else _server_step.__wrapped__
        coupling, spectrum = step(
            graph, self.denoiser, strength, tuple(setting.sizes.tolist()), self.fidelity, self.factor2
        )
        state = mix(state, replies, coupling, filtered, trained)
        rows = state.rows  # new, of this round's making
        if self.bn_buffers == "filter":
            layout.keep_positive(rows, trained)
        elif self.bn_buffers == "average":
            rows[:, running] = Average(setting.sizes, replies.ids).apply(trained[:, running])
        log: dict[str, Any] = {"strength": strength, **spectrum}
        if state.watched:
            n = layout.n_parameters
            now, before = total_variations(graph, rows[:, :n], trained[:, :n])
            log |= {"total_variation": now, "total_variation_trained": before}
        return state.with_log(**log)

    def _relearned(
        self, state: State, given: ClientGraph, models: Tensor, setting: Setting
    ) -> tuple[State, ClientGraph]:
        """The graph of the round: every `graph_every` rounds that of the trained models (K, P), else the last one."""
        if (state.round + 1) % (self.graph_every or 1) == 0:
            learned = from_models(models.double().cpu().numpy(), setting.names)
            return state.with_arrays(learned_graph=torch.from_numpy(learned.adjacency.toarray())), learned
        if "learned_graph" not in state.arrays:
            return state, given
        return state, ClientGraph(state.arrays["learned_graph"].cpu().numpy(), setting.names)

    def exposed(self, state: State, ids: np.ndarray) -> State:
        """All models decide on a learned graph: everyone hears of everyone."""
        return super().exposed(replace(state, coupling=None) if self.graph_every else state, ids)


@lru_cache(maxsize=1)
def _server_step(
    graph: ClientGraph,
    denoiser: str | Response,
    strength: Strength,
    sizes: tuple[float, ...],
    fidelity: Fidelity,
    factor2: bool,
) -> tuple[Coupling, dict[str, float]]:
    """The coupling of a round and what the log says of it; kept while the strength stays the same."""
    coupling = graph_denoiser(graph, denoiser, strength, np.array(sizes), fidelity, factor2)
    spectrum = {"lambda_1": graph.lambda_1(), "lambda_max": graph.lambda_max()}
    if isinstance(coupling, GraphFilter):
        spectrum["trace"] = coupling.trace()
    return coupling, spectrum


def _keeps_modes(denoiser: str | Response) -> bool:
    return denoiser != ITERATIVE and find_denoiser(denoiser).rank
