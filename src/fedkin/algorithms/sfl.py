"""SFL: models flow along a client graph; clients are pulled to what comes out for them and to the mean of all."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import scipy.sparse as sp
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Algorithm, LocalWork, Setting, State, mix
from fedkin.clients import Replies
from fedkin.couplings.propagation import Propagation, with_self_loops
from fedkin.errors import FedkinError
from fedkin.graphs.embedded import EmbeddingGraph, agreement
from fedkin.graphs.learned import MOST_NEIGHBOURS, keep_snapshot
from fedkin.graphs.parameters import Parameters
from fedkin.privacy.settings import Level


class SFL(Algorithm):
    """Structured federated learning: u = Âˡ Ω on the server, w the mean of u_k, and two pulls in local training.

        client k:  from w:  minimise f_k(v) + (λ₁/2)‖v − w‖² + (λ₂/2)‖v − u_k‖² by SGD;   Ω[k] = v
        server:    u ← Âˡ Ω,   Â = D⁻¹(A + I);   w ← mean_k u_k

    The graph A is the given one (clients that share a label are joined, unless you give another); or learned from the
    clients' updates by node embeddings (see `EmbeddingGraph`); or `mixed`, (1 − p) Â_given + p Â_learned. The embeddings
    are fitted to how far updates agree; the released code fits them to distances, which joins the most different.

    A client's model is u_k (tested *pre*); training starts from w. The two pulls are one, with strength λ₁ + λ₂, towards
    (λ₁w + λ₂u_k)/(λ₁ + λ₂). A graph without edges, or ℓ = 0, and λ = 0: w is FedAvg's, unweighted, and u_k what client k
    made of it. A complete graph with weights 1 and ℓ ≥ 1: FedProx, unweighted, with μ = λ₁ + λ₂. A client that sits out a round
    enters with its row u_k.

    Shapes: Ω and u are (K, B), w (B,). Reference: Chen et al., Personalized Federated Learning With a Graph, 2022.
    """

    name: ClassVar[str] = "sfl"
    title: ClassVar[str] = "SFL"
    protects: ClassVar[tuple[Level, ...]] = ("sample",)
    graph_spec: ClassVar[str | None] = "shared-labels"
    keeps: ClassVar[tuple[str, ...]] = ("learned_graphs", "learned_rounds")

    layers: int = Field(3, ge=0, description="propagation layers ℓ")
    lam_mean: float = Field(0.3, ge=0, description="pull λ₁ towards the mean w of all models")
    lam_graph: float = Field(0.3, ge=0, description="pull λ₂ towards the client's own model u_k on the server")
    structure: Literal["given", "mixed", "learned"] = Field("given", description="which graph models flow along")
    mix: float = Field(0.05, ge=0, le=1, description="mixed: share p of the learned graph")
    edges: int | None = Field(
        None, ge=1, description=f"edges each client keeps of a learned graph (default: {MOST_NEIGHBOURS}, or all)"
    )
    embedding: int = Field(10, ge=1, description="length of the node embeddings of a learned graph")
    fit_steps: int = Field(20, ge=0, description="steps of Adam per round that fit the embeddings")
    fit_lr: float = Field(0.01, gt=0, description="learning rate of the embeddings")

    def check(self, setting: Setting) -> None:
        if self.structure != "learned":
            setting.needs_graph(self.name)
        if self.edges is not None and self.edges >= len(setting):
            raise FedkinError(
                f"sfl: edges = {self.edges} is not allowed: a client has at most {len(setting) - 1} neighbours here"
            )

    def generator(self, setting: Setting) -> EmbeddingGraph:
        """The generator of the learned graph."""
        return EmbeddingGraph(len(setting), self.embedding, self.edges or min(MOST_NEIGHBOURS, len(setting) - 1))

    def start(self, setting: Setting) -> State:
        state = super().start(setting)
        state = state.with_arrays(centre=state.rows[0].clone())
        if self.structure == "given":
            return state
        clients, first = len(setting), self.generator(setting).initial(setting.streams, setting.names)
        return state.with_arrays(
            **Parameters.at(first).arrays("embedding"),
            learned_graphs=torch.zeros((0, clients, clients), dtype=torch.float32),
            learned_rounds=torch.zeros(0, dtype=torch.int64),
        )

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        centre, mine = state.arrays["centre"], state.rows[torch.as_tensor(ids)]
        per_client, mu = {"rows": centre.expand(len(ids), -1)}, self.lam_mean + self.lam_graph
        if mu:
            anchor = torch.lerp(centre, mine, self.lam_graph / mu)
            per_client["anchor"] = anchor[:, : setting.spec.layout.n_parameters]
        return LocalWork(per_client=per_client, shared={"mu": mu})

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        state, step = self._graph(state, replies, setting)
        if "influence" in state.arrays:  # everyone who trained began at the mean
            influence = state.arrays["influence"].clone()
            influence[replies.ids] = influence.mean(dim=0)
            state = state.with_arrays(influence=influence)
        state = mix(state, replies, Propagation(step, self.layers))
        return state.with_arrays(centre=state.rows.mean(dim=0))

    def _graph(self, state: State, replies: Replies, setting: Setting) -> tuple[State, sp.csr_array]:
        """Â of this round; a learned graph first sees how this round's updates agree."""
        if self.structure == "given":
            return state, with_self_loops(setting.needs_graph(self.name).adjacency)
        updates = (replies["rows"] - state.arrays["centre"])[:, : setting.spec.layout.n_parameters]
        state, graph = self._fit(state, agreement(updates), torch.as_tensor(replies.ids), setting)
        learned = with_self_loops(sp.csr_array(graph.cpu().numpy()))
        if self.structure == "learned":
            return state, learned
        return state, sp.csr_array(
            (1 - self.mix) * with_self_loops(setting.needs_graph(self.name).adjacency) + self.mix * learned
        )

    def _fit(self, state: State, target: Tensor, who: Tensor, setting: Setting) -> tuple[State, Tensor]:
        """Fit the embeddings to the target among the clients `who`; returns the graph, (K, K)."""
        generator, parameters = self.generator(setting), Parameters.read(state.arrays, "embedding")
        error = None
        for _ in range(self.fit_steps if len(who) > 1 else 0):
            theta = parameters.theta.detach().requires_grad_()
            loss = generator.loss(theta, target, who)
            error = float(loss.detach())
            parameters = parameters.moved(torch.autograd.grad(loss, theta)[0], self.fit_lr, "adam")
        graph = generator.graph(parameters.theta)
        kept = keep_snapshot(state.arrays["learned_graphs"], state.arrays["learned_rounds"], graph, state.round + 1)
        state = state.with_arrays(**parameters.arrays("embedding"), learned_graphs=kept[0], learned_rounds=kept[1])
        return state.with_log(graph_error=error), graph
