"""dFedU: FedU without a server. Clients write to their neighbours, and to nobody else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedkin.algorithm import Setting, State, follow_influence
from fedkin.algorithms.fedu import LaplacianRegularised
from fedkin.clients import Clients, Replies
from fedkin.couplings import LaplacianStep
from fedkin.couplings.trust import trust_in
from fedkin.defence import EVIDENCE, parsed, rule_for_letters
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, client_task
from fedkin.local.transfer import held_out, judged_losses, losses_of, tried_models
from fedkin.privacy.settings import Level

PULL = f"{__name__}:dfedu"


class DFedU(LaplacianRegularised):
    """Decentralised FedU: models stay with the clients and travel along the edges of the graph alone.

        client k:  w_k ← SGD(w_k; D_k), R epochs (or steps) at rate μ;   send w_k to every neighbour
                   w_k ← w_k − c·μ̃·η Σ_l a_kl (w_k − w_l)   over the letters received,   μ̃ = μ·R

    The same iterates as FedU with the same cohorts and the rule `sampled`; when only some clients are awake (fraction
    < 1) they write to the neighbours that are awake too. The server side sees losses and norms, never a model;
    `result.letters()` counts the messages and bytes of every edge, the log those of every round.

    Shapes: a letter is one row (B,). Reference: Dinh, Vu, Tran, Dao and Zhang, A New Look and Convergence Rate of
    Federated Multi-Task Learning with Laplacian Regularization, 2021, Algorithm 2.
    """

    name: ClassVar[str] = "dfedu"
    title: ClassVar[str] = "dFedU"
    protects: ClassVar[tuple[Level, ...]] = ("sample",)
    along_edges: ClassVar[bool] = True
    defence: ClassVar[str] = "geometric-median"
    keeps: ClassVar[tuple[str, ...]] = ("edge_traffic",)

    def private(self, setting: Setting) -> tuple[str, ...]:
        return tuple(slot.name for slot in setting.spec.layout.slots)

    def start(self, setting: Setting) -> State:
        entries = setting.needs_graph(self.name).adjacency.nnz
        return super().start(setting).with_arrays(edge_traffic=torch.zeros((entries, 2), dtype=torch.int64))

    def train(self, *args: Any, **options: Any) -> Replies:
        return super().train(*args, **{**options, "bill": False})

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        """No model came to the server; only the influence matrix follows what the clients are about to do."""
        step = self.step(state.round + 1, setting.sizes)
        if self.robust is not None:  # what clients made of their letters, they alone know
            return replace(state, arrays={name: a for name, a in state.arrays.items() if name != "influence"})
        return follow_influence(state, replies, LaplacianStep(setting.needs_graph(self.name), step, replies.ids))

    def follow_up(self, state: State, replies: Replies, clients: Clients, setting: Setting) -> State:
        """Those who trained write to each other and mix."""
        shared = {"method": self.model_dump(), "round": state.round + 1, **setting.at_home}
        pulled = clients.exchange("private", PULL, replies.ids, shared)
        state = state.with_log(total_variation_trained=float(pulled["variation"].sum()))
        failed = {**replies.failed, **pulled.failed}
        state = self.described(self._counted(state, pulled, setting), setting, failed)
        return state.with_log(failed=failed) if failed else state

    def _counted(self, state: State, replies: Replies, setting: Setting) -> State:
        """Add this round's messages and bytes to those of every edge, and log their sums."""
        letters = torch.as_tensor(replies.letters)
        size = setting.spec.layout.width * setting.spec.dtype.itemsize
        sent = torch.stack([letters, letters * size], dim=1)
        messages, size = sent.sum(dim=0).tolist()
        state = state.with_arrays(edge_traffic=state.arrays["edge_traffic"] + sent)
        return state.with_log(letters=messages, letter_bytes=size)


@client_task("dfedu")
def pull(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Move each asked client's row towards the rows in its mail; tell its variation and its norm, nothing else.

    The variations ⟨w_k, Σ_l a_kl (w_k − w_l)⟩ of all clients sum to tr(WᵀLW).
    """
    ids, mail, layout = request.ids, request.mail, shard.spec.layout.without(request.shared.get("home", ()))
    assert mail is not None
    own = shard.store["private"][ids]
    method = DFedU(**request.shared["method"])
    step = method.step(request.shared["round"], shard.train.sizes[ids])
    apart = mail.weight.to(own.dtype)[:, None] * own - mail.weighted_sum()
    if method.robust is None:
        rows = own - torch.as_tensor(step, dtype=own.dtype).reshape(-1, 1) * apart
    else:
        steps = np.broadcast_to(step, len(ids))
        guarded = [guarded_pull(shard, request.only(i), own[i], steps[i], method.robust) for i in range(len(ids))]
        rows = torch.stack(guarded)
    layout.keep_positive(rows, own)
    shard.store["private"][ids] = rows
    n = layout.n_parameters
    variation = (own[:, :n].double() * apart[:, :n]).sum(dim=1)
    return {"variation": variation, "norm": rows.norm(dim=1)}


def guarded_pull(shard: Shard, request: Request, own: Tensor, step: float, robust: str) -> Tensor:
    """Client k's row after the step towards its letters, guarded: what FedU's server does to row k, (B,).

    A client does not know what its neighbours began with, so that `norm` bounds the way from its own row.
    """
    mail, k = request.mail, int(request.ids[0])
    if mail is None or not mail.senders:
        return own
    values = torch.cat([own[None], mail.letters.to(own.dtype)])
    pull = torch.as_tensor(step * mail.links.toarray()[0])
    if parsed(robust)[0] == EVIDENCE:
        tried = replace(request, per_client={"models": values[None, 1:]})
        losses, noise = judged_losses(losses_of(shard, held_out(shard, k), k, tried_models(shard, tried)[0]))
        pull = pull * torch.as_tensor(trust_in(losses.cpu().numpy(), float(noise), parsed(robust)[1] or 0.0))
    weights = torch.cat([1 - pull.sum()[None], pull])
    return rule_for_letters(robust)(values, weights, 0)[0]
