"""Network Lasso: neighbours in the graph are fused exactly, so that clients fall into clusters with one model each (GTVMin)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from fedkin.algorithm import Algorithm, Deploys, LocalWork, Setting, State, follow_influence, place
from fedkin.clients import Replies
from fedkin.couplings import GraphTotalVariation
from fedkin.local.batches import count_steps
from fedkin.privacy.settings import Level


class NetworkLasso(Algorithm):
    """Generalised total variation minimisation: min_W Σ_k f_k(w_k) + λ Σ_{edges} a_kl ‖w_k − w_l‖.

        client k:  ω_k ← SGD(w_k; D_k), s_k steps at rate γ
        server:    W ← argmin Σ_k ‖w_k − ω_k‖² / (2 γ s_k) + λ Σ_{edges} a_kl ‖w_k − w_l‖

    The norm is not squared: unlike FedU's pull it fuses neighbours exactly and lets others differ. With `steps=1` and full
    batches this is the proximal gradient method, which converges to the minimum for convex f_k and γ below the inverse
    of their curvature; more local steps go faster and end nearby. The server's problem is solved in its dual, one vector
    per edge, to a certified gap (`GraphTotalVariation`). λ = 0 is Local; a large λ on a connected graph is FedAvg with
    clients weighted by 1/s_k. `update="primal-dual"` is the method of SarcheshmehPour et al. (Chambolle and Pock's), with
    one vector u_e kept for every edge:

        client k:  w_k′ ≈ argmin f_k(w) + ‖w − v_k‖²/(2τ),   v_k = w_k − τ Σ_e ±u_e,   by SGD from w_k
        server:    u_e ← u_e + σ (Δ_e(2W′ − W)), drawn back to ‖u_e‖ ≤ λ a_e          Δ_e the difference of the edge's ends

    The client's steps start at w_k, so that they need not be exact for the method to end at the same minimum. τ = p/(most
    neighbours of a client) and σ = 1/2p with p = `primal` (theirs: p = 1, τ by each client's own neighbours). Clients that sit out keep their rows, and edges to them do not pull in this round.
    What clients take from each other depends on their rows: there is no influence matrix. Hallac et al. use ADMM.

    References: Hallac, Leskovec and Boyd, Network Lasso: Clustering and Optimization in Large Graphs, 2015;
    SarcheshmehPour, Tian, Zhang and Jung, Clustered Federated Learning via Generalized Total Variation Minimization, 2023.
    """

    name: ClassVar[str] = "networklasso"
    title: ClassVar[str] = "Network Lasso"
    protects: ClassVar[tuple[Level, ...]] = ("sample",)
    couples: ClassVar[bool] = False
    """Its coupling has no weights that `robust` could guard: an edge pulls with λ a_kl however far its ends are apart."""
    deploys: ClassVar[Deploys] = "validated"
    graph_spec: ClassVar[str | None] = "statistics"

    lam: float = Field(0.01, ge=0, description="strength λ of the total variation over the graph")
    update: Literal["proximal", "primal-dual"] = Field(
        "proximal", description="the server solves its problem in every round, or takes one step up its dual"
    )
    primal: float = Field(1.0, gt=0, description="how far primal steps go at the cost of dual ones (primal-dual only)")

    def check(self, setting: Setting) -> None:
        setting.needs_graph(self.name)

    def start(self, setting: Setting) -> State:
        state = super().start(setting)
        if self.update == "proximal":
            return state
        edges = setting.needs_graph(self.name).adjacency.nnz // 2
        return state.with_arrays(dual=state.rows.new_zeros(edges, state.rows.shape[1]))

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        if self.update == "proximal":
            return LocalWork()
        graph = setting.needs_graph(self.name)
        tau = self.primal / max(1, int(np.diff(graph.adjacency.indptr).max(initial=1)))
        anchor = state.rows - tau * GraphTotalVariation(graph, self.lam).pull(state.arrays["dual"])
        own = anchor[torch.from_numpy(ids), : setting.spec.layout.n_parameters]
        return LocalWork(per_client={"anchor": own}, shared={"mu": 1 / tau})

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        if self.update == "primal-dual":
            return self._one_dual_step(state, replies, setting)
        graph, ids, layout = setting.needs_graph(self.name), replies.ids, setting.spec.layout
        graph = graph if len(ids) == len(setting) else graph.take(ids)
        steps = count_steps(setting.sizes[ids], self.batch_size, self.epochs, self.steps)
        # Divided by the mean of 1/γs the fidelities average 1, as the coupling has them.
        certainty = 1 / (self.rate(state.round + 1) * steps)
        coupling = GraphTotalVariation(graph, self.lam / float(np.mean(certainty)), certainty)
        trained = replies["rows"].to(state.rows.dtype)
        rows = coupling.apply(trained)
        layout.keep_positive(rows, trained)
        return self._followed(state.with_rows(ids, rows), replies, coupling, setting)

    def _one_dual_step(self, state: State, replies: Replies, setting: Setting) -> State:
        """u_e ← u_e + σ Δ_e(2W′ − W) for the edges whose ends both answered."""
        coupling = GraphTotalVariation(setting.needs_graph(self.name), self.lam)
        trained, dual = place(state.rows, replies), state.arrays["dual"]
        ahead = coupling.ascended(dual, 2 * trained - state.rows, 0.5 / self.primal)
        here = np.isin(np.stack(coupling.ends), replies.ids).all(axis=0)
        dual = torch.where(torch.from_numpy(here)[:, None], ahead, dual)
        state = state.with_arrays(rows=trained, dual=dual)
        return self._followed(state, replies, coupling, setting)

    def _followed(self, state: State, replies: Replies, coupling: GraphTotalVariation, setting: Setting) -> State:
        state = follow_influence(state, replies, coupling)
        if state.watched:
            models = state.rows[torch.from_numpy(replies.ids), : setting.spec.layout.n_parameters]
            state = state.with_log(models=fused(models))
        return state


def fused(weights: torch.Tensor, tolerance: float = 1e-3) -> int:
    """How many different models there are among the rows (m, P): those nearer than `tolerance` times the spread are one."""
    spread = float((weights - weights.mean(dim=0)).norm(dim=1).max())
    near = torch.cdist(weights.double(), weights.double()) <= tolerance * max(spread, 1e-12)
    return len({int(row.int().argmax()) for row in near})
