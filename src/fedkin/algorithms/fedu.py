"""FedU: local training, then every client moves towards its neighbours in the graph."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from fedkin.algorithm import Algorithm, Deploys, Setting, State, follow_influence, place
from fedkin.clients import NOT_FINITE, Replies
from fedkin.couplings import Coupling, LaplacianStep, safe_step, stability, total_variation
from fedkin.couplings.laplacian import Neighbours
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
        return [*setting.needs_graph(self.name).alone(self.name), *self.unstable(setting)]

    def unstable(self, setting: Setting) -> list[str]:
        """What to say of a step beyond the stable bound; nothing within it."""
        graph = setting.needs_graph(self.name)
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
        state = state.with_log(step=longest, stability=stability(setting.needs_graph(self.name), longest))
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

    Shapes: W is (K, B), row k = w_k. Reference: Dinh, Vu, Tran, Dao and Zhang, A New Look and Convergence Rate of
    Federated Multi-Task Learning with Laplacian Regularization, 2021.
    """

    name: ClassVar[str] = "fedu"
    title: ClassVar[str] = "FedU"
    protects: ClassVar[tuple[Level, ...]] = ("sample", "client")
    along_edges: ClassVar[bool] = True
    in_place: ClassVar[bool] = True

    neighbours: Neighbours = Field("sampled", description="who pulls: the neighbours in the cohort (sampled), or all")

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        graph, layout = setting.needs_graph(self.name), setting.spec.layout
        everyone = len(replies) == len(setting)
        step = self.step(state.round + 1, setting.sizes)
        coupling = LaplacianStep(graph, step, None if everyone else replies.ids, self.neighbours)
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
