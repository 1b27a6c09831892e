"""IFCA: several models, and every client trains the one that fits its data best."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Algorithm, LocalWork, Setting, State, mix, place
from fedkin.algorithms.fedavg import Counting, counted
from fedkin.clients import Clients, Replies
from fedkin.couplings.clustering import in_order, rand_index
from fedkin.couplings.clusters import ClusterPropagation, handed_back
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, client_task, composed, staying, training_task
from fedkin.local.training import evaluate_rows, train_rows


class IFCA(Algorithm):
    """The iterative federated clustering algorithm: p models go out, one comes back from each client.

        j_k = argmin_j f_k(θ_j) on the client's training samples
        average="model":     w_k ← SGD from θ_{j_k};  θ_j ← mean of {w_k : j_k = j}
        average="gradient":  θ_j ← θ_j − (γ/|S|) Σ_{k∈S, j_k = j} ∇f_k(θ_j), one batch of `batch_size` samples each

    A model that nobody chose stays as it is. The server learns the choice and the trained row, never the losses. Models are
    averaged over the clients of a cluster, gradients over all that took part, S: equal (the paper's), or by their numbers of samples with `weights="size"`, so that
    p = 1 is FedAvg. A round sends p models to a client and one back. *Pre* is the model a client chooses after the round.

    All θ_j start from different random weights, and much depends on them. With `restarts` r > 1, r sets of p models are
    trained side by side by the same cohorts for `trial_rounds` rounds (r times the work and traffic), then the set with the
    smallest training loss goes on alone.

    Reference: Ghosh et al., An Efficient Framework for Clustered Federated Learning, 2020.
    """

    name: ClassVar[str] = "ifca"
    title: ClassVar[str] = "IFCA"

    clusters: int = Field(4, ge=1, description="models p")
    average: Literal["model", "gradient"] = Field(
        "model", description="average trained models, or gradients of one batch"
    )
    weights: Counting = Field("equal", description="clients of a cluster count alike, or by samples")
    restarts: int = Field(1, ge=1, description="sets of initial weights to try")
    trial_rounds: int = Field(3, ge=1, description="rounds after which the best set is kept, if there are several")

    def start(self, setting: Setting) -> State:
        count = self.restarts * self.clusters
        rows = torch.stack([setting.spec.initial_row(setting.streams, index) for index in range(count)])
        models = rows.view(self.restarts, self.clusters, -1)
        choice = torch.full((self.restarts, len(setting)), -1, dtype=torch.int64)
        return super().start(setting).with_arrays(models=models, choice=choice).with_values(leads=0)

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        models, nothing = state.arrays["models"], torch.zeros((len(ids), 0), dtype=setting.spec.dtype)
        settings = self.told(state.round + 1)
        if self.average == "gradient":
            settings["steps"] = 1
        return LocalWork(f"{__name__}:ifca", {"rows": nothing}, {"models": models, "sgd": settings})

    def round(self, state: State, clients: Clients, cohort: np.ndarray, setting: Setting) -> State:
        """One round of every set of models that is still on trial."""
        tried = []
        for number in range(len(state.arrays["models"])):
            tried.append(super().round(one_of(state, number), clients, cohort, setting))
        losses = [np.inf if set_.log["train_loss"] is None else set_.log["train_loss"] for set_ in tried]
        leads = int(np.argmin(losses))
        if len(tried) > 1:
            tried[leads] = tried[leads].with_log(trial_loss=losses)
        if state.round + 1 < self.trial_rounds:
            return as_one_state(tried, leads)
        return as_one_state([tried[leads]], 0)

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        chosen, ids = replies["choice"].cpu().numpy(), replies.ids
        choice = state.arrays["choice"].clone()
        choice[ids] = replies["choice"]
        formed, labels = in_order(chosen)
        counts = counted(self.weights, setting)[ids]
        coupling = ClusterPropagation(ids, labels, handed_back(formed, choice.cpu().numpy()), weights=counts)
        held = holding(state, choice)
        trained = place(held.rows, replies).clone()
        if self.average == "gradient":
            share = np.bincount(labels, counts)[labels] / counts.sum()
            n, pick = setting.spec.layout.n_parameters, torch.as_tensor(ids)
            part = torch.as_tensor(share, dtype=trained.dtype)[:, None]
            trained[pick, :n] = torch.lerp(held.rows[pick, :n], trained[pick, :n], part)
        state = mix(held, replies, coupling, trained=trained)
        one_member = torch.as_tensor(np.array([ids[labels == code][0] for code in range(len(formed))]))
        arrays = {"models": _updated(state.arrays["models"], formed, state.rows[one_member]), "choice": choice}
        if "influence" in state.arrays:
            arrays["shaped"] = _updated(state.arrays["shaped"], formed, state.arrays["influence"][one_member])
        log: dict[str, Any] = {"cluster_sizes": np.bincount(chosen, minlength=self.clusters).tolist()}
        if "cluster" in setting.truth and len(ids) > 1:
            log["rand_index"] = rand_index(chosen, setting.truth["cluster"][ids])
        return state.with_arrays(**arrays).with_log(**log)

    def evaluate(
        self, state: State, clients: Clients, setting: Setting, post: bool, parts: list[str], disclose: bool = False
    ) -> Replies:
        state = one_of(state, state.values["leads"])
        if not post:
            shared = {"models": state.arrays["models"], **setting.at_home}
            replies = clients.ask(f"{__name__}:ifca_choice", setting.everyone, shared=shared, bill=False)
            choice = state.arrays["choice"].clone()
            choice[replies.ids] = replies["choice"]
            state = holding(state, choice)
        return super().evaluate(state, clients, setting, post, parts, disclose)


def one_of(state: State, number: int) -> State:
    """One of the sets of models on trial as a state of its own: models (p, B), choice (K,), shaped (p, K)."""
    own = {name: state.arrays[name][number] for name in ("models", "choice", "shaped") if name in state.arrays}
    return replace(state, arrays={**state.arrays, **own})


def as_one_state(sets: list[State], leads: int) -> State:
    """All sets in one state, with the rows, the influence and the log of the one that leads."""
    names = [name for name in ("models", "choice", "shaped") if name in sets[leads].arrays]
    return (
        sets[leads].with_arrays(**{n: torch.stack([s.arrays[n] for s in sets]) for n in names}).with_values(leads=leads)
    )


def holding(state: State, choice: Tensor) -> State:
    """Every client with the row of the model it chose, and with what shaped that model for its influence."""
    picked = choice.clamp(min=0)
    state = state.with_arrays(rows=state.arrays["models"][picked])
    if "influence" not in state.arrays:
        return state
    shaped = state.arrays.get("shaped")
    if shaped is None:
        shaped = torch.zeros((len(state.arrays["models"]), len(choice)), dtype=torch.float64)
    return state.with_arrays(shaped=shaped, influence=shaped[picked])


def _updated(values: Tensor, index: np.ndarray, new: Tensor) -> Tensor:
    values = values.clone()
    values[index] = new
    return values


def best_model(shard: Shard, request: Request) -> tuple[Tensor, Tensor]:
    """The shared model (of p, B) with the smallest loss on each client's training samples, (k,), and these models (k, B).

    The first of equals; a model is tried with what the client keeps private in its place.
    """
    models, ids = request.shared["models"], request.ids
    stays = staying(shard, request)
    whole = torch.stack([composed(shard, request, model.expand(len(ids), -1), stays) for model in models])
    losses = [evaluate_rows(shard, ids, rows, "train")["loss"] for rows in whole]
    choice = torch.stack(losses).nan_to_num(nan=torch.inf).argmin(dim=0)
    return choice, whole[choice, torch.arange(len(ids))]


@client_task("ifca_choice")
def tell_choice(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Which of the shared models each client would take."""
    return {"choice": best_model(shard, request)[0]}


@training_task("ifca")
def choose_and_train(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """Choose among the shared models, then plain training from the chosen one."""
    choice, start = best_model(shard, request)
    settings = Sgd(**request.shared["sgd"])
    trained, loss = train_rows(shard, request.ids, start, settings, request.shared["round"], counters=counters)
    return Trained(trained, loss, start=start, extra={"choice": choice})
