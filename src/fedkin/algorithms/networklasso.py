"""Network Lasso: neighbours in the graph are fused exactly, so that clients fall into clusters with one model each (GTVMin)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field

from fedkin.algorithm import Algorithm, Deploys, Setting, State, follow_influence
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
    clients weighted by 1/s_k. Clients that sit out keep their rows, and edges to them do not pull in this round. What
    clients take from each other depends on their rows: there is no influence matrix.

    Published code (the authors' course on federated learning) solves the same problem by primal-dual or plain gradient
    steps in which the client's part is an exact proximal step; with squared norms it is FedU. Hallac et al. use ADMM.

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

    def check(self, setting: Setting) -> None:
        setting.needs_graph(self.name)

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        graph, ids, layout = setting.needs_graph(self.name), replies.ids, setting.spec.layout
        graph = graph if len(ids) == len(setting) else graph.take(ids)
        steps = count_steps(setting.sizes[ids], self.batch_size, self.epochs, self.steps)
        # Divided by the mean of 1/γs the fidelities average 1, as the coupling has them.
        certainty = 1 / (self.rate(state.round + 1) * steps)
        coupling = GraphTotalVariation(graph, self.lam / float(np.mean(certainty)), certainty)
        trained = replies["rows"].to(state.rows.dtype)
        rows = coupling.apply(trained)
        layout.keep_positive(rows, trained)
        state = follow_influence(state.with_rows(ids, rows), replies, coupling)
        if state.watched:
            state = state.with_log(models=fused(rows[:, : layout.n_parameters]))
        return state


def fused(weights: torch.Tensor, tolerance: float = 1e-3) -> int:
    """How many different models there are among the rows (m, P): those nearer than `tolerance` times the spread are one."""
    spread = float((weights - weights.mean(dim=0)).norm(dim=1).max())
    near = torch.cdist(weights.double(), weights.double()) <= tolerance * max(spread, 1e-12)
    return len({int(row.int().argmax()) for row in near})
