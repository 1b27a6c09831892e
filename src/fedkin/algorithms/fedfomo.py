"""FedFomo: every client tries others' models on samples held back, and moves towards those that would help it."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Algorithm, Deploys, LocalWork, Setting, State, mix, place
from fedkin.clients import Clients, Replies
from fedkin.couplings import Mixing
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, client_task, training_task
from fedkin.local.training import train_rows
from fedkin.local.transfer import in_pieces, losses_of, tried_models


class FedFomo(Algorithm):
    """First-order model optimisation: w_i moves along the others' models by how much each lowers client i's loss.

        w_i' ← SGD(w_i; D_i)
        a_ij = max(0, (L_i(w_i) − L_i(w_j')) / ‖w_j' − w_i‖)          j = i and the M candidates of client i
        w_i ← w_i + Σ_j A_ij (w_j' − w_i) = Σ_j A_ij w_j',   A_ij = a_ij / Σ_j a_ij;   no a_ij > 0: w_i stays
        P_ij ← P_ij + A_ij                                             whom client i likes

    L_i is the mean loss on the client's validation samples (cross entropy capped at 6); a client without any takes its
    training samples, which flatter its own model. Candidates are the M clients with the largest P_ij; with probability ε
    a client tries M others at random instead, so that likes can change. A client receives M models besides its own and
    tells their losses. M = 0 is Local, except that a client whose training raised its loss goes back. A choice where
    descriptions differ: w_i is the model before training, and the client's own new model is a candidate (j = i).

    PFLlib first measured L_i on the batches of the last training; since then it holds out the last fifth of the training
    samples. Its w_i is the model before training too; its likes are those of the last round. The authors' code
    (NVlabs/FedFomo) tosses for each of the M candidates alone, with an ε that falls by the epoch.

    Reference: Zhang, Sapra, Fidler, Yeung and Alvarez, Personalized Federated Learning with First Order Model
    Optimization, 2021.
    """

    name: ClassVar[str] = "fedfomo"
    title: ClassVar[str] = "FedFomo"
    deploys: ClassVar[Deploys] = "trained"

    peers: int = Field(5, ge=0, description="models M of others that a client tries in a round")
    epsilon: float = Field(0.3, ge=0, le=1, description="probability ε that a client tries others at random")

    def start(self, setting: Setting) -> State:
        likes = torch.zeros((len(setting), len(setting)), dtype=torch.float64)
        return super().start(setting).with_arrays(likes=likes)

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        return LocalWork(f"{__name__}:fedfomo")

    def round(self, state: State, clients: Clients, cohort: np.ndarray, setting: Setting) -> State:
        replies = self.train(state, clients, cohort, setting)
        state = self.logged(state, replies)
        if len(replies):
            state = self._optimised(self.defended(state, clients, setting), replies, clients, setting)
        return replace(state, round=state.round + 1, defence=None)

    def _optimised(self, state: State, replies: Replies, clients: Clients, setting: Setting) -> State:
        """The models of those who answered, each moved along those that help it."""
        ids, n = replies.ids, setting.spec.layout.n_parameters
        trained, likes = place(state.rows, replies), state.arrays["likes"].clone()
        chosen = self.candidates(likes.cpu().numpy(), ids, state.round + 1, setting)
        weights = np.zeros((len(ids), len(ids)))
        for some in in_pieces(len(ids), chosen.shape[1] * trained.shape[1] * trained.element_size()):
            tried = {"models": trained[ids[chosen[some]]]}
            told = clients.ask(f"{__name__}:fomo_losses", ids[some], tried, setting.at_home)
            for i, losses in zip(np.searchsorted(ids, told.ids), told["losses"]):
                compared = np.concatenate([[i], chosen[i]])
                way = (trained[ids[compared], :n] - state.rows[ids[i], :n]).norm(dim=1).double()
                gain = replies["before"][i] - torch.cat([replies["after"][i : i + 1], losses])
                weights[i, compared] = (gain / way.clamp(min=1e-12)).clamp(min=0).cpu().numpy()
        total = weights.sum(axis=1, keepdims=True)
        stuck = total[:, 0] == 0
        weights = np.where(total > 0, weights / np.where(total > 0, total, 1), np.eye(len(ids)))
        likes[ids[:, None], ids[None, :]] += torch.as_tensor(np.where(stuck[:, None], 0, weights))
        back = torch.as_tensor(ids[stuck])
        before = state.rows[back]
        state = state.with_log(own_weight=float(weights.diagonal().mean())).with_arrays(likes=likes)
        state = mix(state, replies, Mixing(weights, len(setting), ids), trained=trained)
        rows = state.rows.clone()
        rows[back] = before
        return state.with_arrays(rows=rows)

    def candidates(self, likes: np.ndarray, ids: np.ndarray, round: int, setting: Setting) -> np.ndarray:
        """Whom each of the clients `ids` tries, as ascending positions among them, (m, M)."""
        keys, count = setting.keys[ids], min(self.peers, len(ids) - 1)
        tosses = setting.streams.words("fomo", round, keys) / 2.0**64
        found = np.zeros((len(ids), count), dtype=np.int64)
        for i in range(len(ids)):
            draws = setting.streams.words("fomo", round, keys + np.uint64(3) * keys[i : i + 1])
            liked = np.zeros(len(ids)) if tosses[i] < self.epsilon else likes[ids[i], ids]
            order = np.lexsort((draws, -liked))
            found[i] = np.sort(order[order != i][:count])
        return found


def mean_losses(shard: Shard, k: int, models: Tensor) -> Tensor:
    """The mean loss of each of M models on client k's validation samples (training samples where it has none), (M,)."""
    held_back = shard.validation if shard.validation.sizes[k] else shard.train
    worst = torch.finfo(torch.float64).max
    return losses_of(shard, held_back, k, models).mean(dim=1).nan_to_num(nan=worst, posinf=worst)


@client_task("fomo_losses")
def tell_losses(shard: Shard, request: Request) -> dict[str, Tensor]:
    """per_client "models" (k, M, B) → "losses" (k, M)."""
    models = tried_models(shard, request)
    losses = torch.zeros(models.shape[:2], dtype=torch.float64)

    def work(place: int) -> None:
        losses[place] = mean_losses(shard, int(request.ids[place]), models[place])

    if models.shape[1]:
        shard.each(work, list(range(len(models))))
    return {"losses": losses}


@training_task("fedfomo")
def train_and_compare(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """Plain training, and the losses of the client's model "before" and "after" it."""
    settings = Sgd(**request.shared["sgd"])
    trained, loss = train_rows(shard, request.ids, rows, settings, request.shared["round"], counters=counters)
    both = torch.stack([rows, trained], dim=1)
    told = torch.zeros((len(rows), 2), dtype=torch.float64)

    def work(place: int) -> None:
        told[place] = mean_losses(shard, int(request.ids[place]), both[place])

    shard.each(work, list(range(len(rows))))
    return Trained(trained, loss, extra={"before": told[:, 0], "after": told[:, 1]})
