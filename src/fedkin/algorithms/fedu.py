"""FedU: local training, then every client moves towards its neighbours in the graph."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from fedkin.algorithm import Algorithm, Deploys, Setting, State, follow_influence, place
from fedkin.clients import NOT_FINITE, Replies
from fedkin.couplings import Coupling, LaplacianStep, safe_step, stability, total_variation
from fedkin.couplings.laplacian import Neighbours
from fedkin.graphs import ClientGraph
from fedkin.graphs.builders import starred
from fedkin.local.batches import count_steps
from fedkin.privacy.settings import Level


class LaplacianRegularised(Algorithm):
    """What FedU and dFedU share: the strength η, the length of the regularisation step, and its stability."""

    deploys: ClassVar[Deploys] = "validated"
    graph_spec: ClassVar[str | None] = "equal"

    eta: float = Field(0.1, ge=0, allow_inf_nan=False, description="strength η of the pull towards neighbours")
    c: float = Field(1.0, ge=0, allow_inf_nan=False, description="factor of the step; the official code has 0.5")
    local_unit: Literal["epoch", "step"] = Field(
        "epoch",
        description="what R in μ̃ = μ·R counts: epochs (official code), or each client's SGD steps; `steps` is counted as it is",
    )

    def step(self, round: int, sizes: np.ndarray) -> float | np.ndarray:
        """c·μ̃·η of round t = 1, 2, …, with μ̃ = μ·R: one number, or (K,) where R counts each client's own SGD steps."""
        scale = self.c * self.eta * self.rate(round)
        if self.steps is not None:
            return scale * self.steps
        if self.local_unit == "step":
            return scale * count_steps(sizes, self.batch_size, self.epochs, None)
        return scale * self.epochs

    def check(self, setting: Setting) -> None:
        for remark in self.unstable(setting):
            warnings.warn(remark, stacklevel=2)

    def remarks(self, setting: Setting) -> list[str]:
        """What the user should know of the run: clients without neighbours, a step beyond the stable bound."""
        return [*self.linked(setting).alone(self.name), *self.unstable(setting)]

    def linked(self, setting: Setting) -> ClientGraph:
        """The graph that the step acts on."""
        return setting.needs_graph(self.name)

    def unstable(self, setting: Setting) -> list[str]:
        """What to say of a step beyond the stable bound; nothing within it."""
        graph = self.linked(setting)
        longest = float(np.max(self.step(1, setting.sizes)))
        if stability(graph, longest) > 2 * (1 + 1e-9):
            bound = self.eta * safe_step(graph) / longest
            return [
                f"{self.name}: the step c·μ̃·η·λ_max(L) = {stability(graph, longest):.3g} is beyond the stable bound 2, so "
                f"differences between clients can grow; use eta ≤ {bound:.3g} (at this c, learning rate and R)"
            ]
        return []

    def described(self, state: State, setting: Setting, failed: Mapping[str, str]) -> State:
        """The log entries of a round: the step, its stability, in round 1 what `remarks` has to say, who diverged.

        Beyond the stable bound a client whose training is no longer finite cannot recover: its row grew by the coupling.
        """
        longest = float(np.max(self.step(state.round + 1, setting.sizes)))
        state = state.with_log(step=longest, stability=stability(self.linked(setting), longest))
        diverged = [name for name, reason in failed.items() if reason.startswith(NOT_FINITE)]
        if diverged and state.log["stability"] > 2:
            state = state.with_log(diverged=diverged)
        remarks = self.remarks(setting) if state.round == 0 else []
        return state.with_log(remarks=remarks) if remarks else state


class FedU(LaplacianRegularised):
    """Federated multi-task learning with Laplacian regularisation: min_W Σ_k F_k(w_k) + (cη/2)·½ ΣΣ a_kl ‖w_k − w_l‖².

        client k ∈ S:  w_k ← SGD(w_k; D_k), R epochs (or steps) at rate μ
        server:        w_k ← w_k − c·μ̃·η Σ_{l ∈ M_k} a_kl (w_k − w_l)   for all k ∈ S at once,   μ̃ = μ·R

    M_k are the neighbours of k in the cohort S (`sampled`, then the cohort's mean is preserved) or `all` of them, with
    the rows the server last had. Only the product c·η·a matters. η = 0 is Local; everyone in the cohort is dFedU.
    Batch-norm statistics are mixed as parameters are. Without a graph every pair has weight 0.5 (graph E of the paper);
    `random` (R, what the official commands use), `sizes` (W) and `labels` (S, best in the paper) are the others.

    With `hub` = a there is also a virtual node w_0 at the server, a client without samples, that every client is joined to
    by an edge of weight a: F_0 = 0, so that at rest w_0 is the mean of the clients and each client minimises
    F_k(w_k) + (cηa/2) ‖w_k − w_0‖², which is pFedMe's problem with λ = cηa. It takes part in every round.

    Shapes: W is (K, B), row k = w_k. Reference: Dinh, Vu, Tran, Dao and Zhang, A New Look and Convergence Rate of
    Federated Multi-Task Learning with Laplacian Regularization, 2021.
    """

    name: ClassVar[str] = "fedu"
    title: ClassVar[str] = "FedU"
    protects: ClassVar[tuple[Level, ...]] = ("sample", "client")
    along_edges: ClassVar[bool] = True
    defence: ClassVar[str] = "direction"
    in_place: ClassVar[bool] = True
    keeps: ClassVar[tuple[str, ...]] = ("hub",)

    hub: float = Field(
        0.0,
        ge=0,
        description="weight of an edge between every client and a virtual node without samples; 0: no such node",
    )
    neighbours: Neighbours = Field("sampled", description="who pulls: the neighbours in the cohort (sampled), or all")

    @model_validator(mode="after")
    def _hub_unguarded(self) -> FedU:
        if self.hub and (self.robust is not None or self.privacy is not None):
            raise ValueError("a hub hears all clients, unguarded: leave out robust and privacy, or the hub")
        return self

    def default_graph(self) -> str | None:
        return "empty" if self.hub else super().default_graph()

    def linked(self, setting: Setting) -> ClientGraph:
        """The clients' graph; with a hub, one node more, the last."""
        graph = super().linked(setting)
        return starred(graph, self.hub) if self.hub else graph

    def start(self, setting: Setting) -> State:
        state = super().start(setting)
        return state.with_arrays(hub=state.rows[:1].clone()) if self.hub else state

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        if self.hub:
            return self._around_hub(state, replies, setting)
        graph, layout = self.linked(setting), setting.spec.layout
        everyone = len(replies) == len(setting)
        step = self.step(state.round + 1, setting.sizes)
        coupling = (
            _step_of_all(graph, float(step))
            if everyone and np.ndim(step) == 0
            else LaplacianStep(graph, step, None if everyone else replies.ids, self.neighbours)
        )
        trained = replies["rows"].to(state.rows.dtype)
        over = state.rows if everyone and state.in_place else None
        if state.defence is None:
            used: Coupling = coupling
            moved = coupling.moved(state.rows, trained, out=over)
        else:
            placed = place(state.rows, replies)
            used = state.guarded(coupling, placed)
            moved = used.apply(placed)[torch.as_tensor(replies.ids)]
            moved = moved if over is None else over.copy_(moved)
        layout.keep_positive(moved, trained)
        state = follow_influence(state.with_rows(replies.ids, moved), replies, used)
        if state.watched:
            state = state.with_log(total_variation=total_variation(state.rows[:, : layout.n_parameters], graph))
        return self.described(state, setting, replies.failed)

    def _around_hub(self, state: State, replies: Replies, setting: Setting) -> State:
        """The same step with the hub as row K of all. Its length is the clients' (their mean, where these differ)."""
        graph, layout, hub = self.linked(setting), setting.spec.layout, state.arrays["hub"]
        step = self.step(state.round + 1, setting.sizes)
        step = step if np.ndim(step) == 0 else np.append(step, np.mean(step))
        coupling = LaplacianStep(graph, step, np.append(replies.ids, len(setting)), self.neighbours)
        trained = torch.cat([replies["rows"].to(state.rows.dtype), hub])
        moved = coupling.moved(torch.cat([state.rows, hub]), trained)
        layout.keep_positive(moved, trained)
        rows = moved[:-1].contiguous()
        if state.in_place and len(rows) == len(state.rows):
            rows = state.rows.copy_(rows)
        state = state.with_rows(replies.ids, rows).with_arrays(hub=moved[-1:].clone())
        if "influence" in state.arrays:
            influence = state.arrays["influence"].clone()
            influence[replies.ids, replies.ids] += replies["moved"].to(influence.dtype)
            reach = state.arrays.get("hub_influence", torch.zeros_like(influence[:1]))
            influence = coupling.apply(torch.cat([influence, reach]))
            state = state.with_arrays(influence=influence[:-1].contiguous(), hub_influence=influence[-1:].clone())
        if state.watched:
            everyone = torch.cat([state.rows, state.arrays["hub"]])
            state = state.with_log(total_variation=total_variation(everyone[:, : layout.n_parameters], graph))
        return self.described(state, setting, replies.failed)


@lru_cache(maxsize=1)
def _step_of_all(graph: ClientGraph, step: float) -> LaplacianStep:
    """The step of a round in which all take part; kept while it stays the same."""
    return LaplacianStep(graph, step)
