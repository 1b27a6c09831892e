"""CFL: one model for all that splits in two, again and again, where clients pull in different directions."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Algorithm, Setting, State, mix, place
from fedkin.clients import Replies
from fedkin.couplings import ClusterAverage
from fedkin.couplings.clustering import rand_index
from fedkin.couplings.clusters import cosines
from fedkin.privacy.settings import Level


class CFL(Algorithm):
    """Clustered federated learning: FedAvg within clusters; a cluster that has settled while its clients have not splits.

        Δ_k = w_k − θ_c after local training from θ_c;   θ_c ← Σ_{k in c} n_k w_k / Σ_c n
        split c if  ‖Σ_{k in c} n_k Δ_k / Σ_c n‖ < ε₁  and  max_{k in c} ‖Δ_k‖ > ε₂
        into the two parts whose largest similarity  max_{i in c₁, j in c₂} cos(Δ_i, Δ_j)  is smallest

    Near a stationary point of the common loss updates cancel; if single clients still pull hard, no one model suits them.
    The best bipartition is exact: the largest spanning tree of the similarities, cut at its weakest edge (single linkage).
    Both parts go on from the θ_c of this round. A cluster splits only in a round in which all its clients answered, after
    round `after`, and if it has more than two. Lengths count trainable parameters and depend on the network and the rate: the
    history's log tells ‖mean Δ‖ and max ‖Δ‖ to choose ε₁ and ε₂ by. ε₁ = 0 is FedAvg; `truth["cluster"]`, where known,
    gives the Rand index.

    Published code (felisat/clustered-federated-learning) cuts by complete linkage, which is another bipartition, and averages
    clients alike. The paper's further test on the cross-cluster similarity is not made, in the published code nor here.

    Reference: Sattler, Müller and Samek, Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization
    Under Privacy Constraints, 2020.
    """

    name: ClassVar[str] = "cfl"
    title: ClassVar[str] = "CFL"
    protects: ClassVar[tuple[Level, ...]] = ("sample",)

    epsilon1: float = Field(0.4, ge=0, description="a cluster has settled when its mean update is shorter than this ε₁")
    epsilon2: float = Field(1.6, ge=0, description="… and splits if one of its clients' updates is longer than this ε₂")
    after: int = Field(20, ge=0, description="rounds before the first split")

    def start(self, setting: Setting) -> State:
        return super().start(setting).with_arrays(cluster=torch.zeros(len(setting), dtype=torch.int64))

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        trained, cluster = place(state.rows, replies), state.arrays["cluster"].cpu().numpy()
        moved = (trained - state.rows)[:, : setting.spec.layout.n_parameters].double()
        averaged = mix(state, replies, ClusterAverage(setting.sizes, cluster, replies.ids), trained=trained)
        lengths: dict[str, list[float]] = {"mean_update": [], "longest_update": []}
        parts = cluster.copy()
        for label in np.unique(cluster):
            members = np.flatnonzero(cluster == label)
            present = members[np.isin(members, replies.ids)]
            if not len(present):
                continue
            share = torch.as_tensor(setting.sizes[present] / setting.sizes[present].sum())
            settled = float((share @ moved[present]).norm())
            longest = float(moved[present].norm(dim=1).max())
            lengths["mean_update"].append(settled)
            lengths["longest_update"].append(longest)
            ready = len(present) == len(members) > 2 and state.round + 1 > self.after
            if ready and settled < self.epsilon1 and longest > self.epsilon2:
                halves = bipartition(moved[present])
                first = setting.keys[members].argmin()  # whoever it is: the order of clients must not matter
                parts[members[halves != halves[first]]] = parts.max() + 1
        log = {**lengths, "cluster_sizes": np.bincount(parts).tolist()}
        if "cluster" in setting.truth and len(setting) > 1:
            log["rand_index"] = rand_index(parts, setting.truth["cluster"])
        return averaged.with_arrays(cluster=torch.as_tensor(parts)).with_log(**log)


def bipartition(moved: Tensor) -> np.ndarray:
    """0 or 1 for each of m ≥ 2 updates (m, P): the two parts whose largest mutual cosine is smallest."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    tree = linkage(squareform(1 - cosines(moved), checks=False), method="single")
    codes = np.asarray(fcluster(tree, 2, criterion="maxclust"))
    return np.asarray(codes != codes[0]).astype(np.int64)
