"""FedSem: clients gather around several centres, each by the distance of its model."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from fedkin.algorithm import Algorithm, Setting, State, mix, place
from fedkin.clients import Replies
from fedkin.couplings.clustering import by_name, in_order, k_means_seeds, nearest_centre, rand_index
from fedkin.couplings.clusters import ClusterPropagation, handed_back
from fedkin.privacy.settings import Level


class FedSem(Algorithm):
    """Multi-centre federated learning: after training, each client joins the nearest centre.

        w_k ← SGD from the client's centre, k in the cohort S
        a_k = argmin_j ‖w_k − θ_j‖₂ over trainable parameters;   θ_j ← mean of {w_k : a_k = j}

    The first centres are models of the first round, chosen by k-means++ (far from each other, at random). A centre without
    members in a round stays as it is; who sat out has its centre's newest model; who never took part receives the mean of
    the round's centres. If fewer than p clients answer in the first round there are as many centres as clients.
    p = 1 is FedAvg with equal weights.

    Reference: Long et al., Multi-center federated learning: clients clustering for better personalization, 2023.
    """

    name: ClassVar[str] = "fedsem"
    title: ClassVar[str] = "FedSem"
    protects: ClassVar[tuple[Level, ...]] = ("sample",)

    clusters: int = Field(4, ge=1, description="centres p")

    def start(self, setting: Setting) -> State:
        nobody = torch.full((len(setting),), -1, dtype=torch.int64)
        return super().start(setting).with_arrays(cluster=nobody)

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        ids, n = by_name(replies.ids, setting.names), setting.spec.layout.n_parameters
        trained = place(state.rows, replies)
        members = trained[ids]
        if "centres" in state.arrays:
            centres = state.arrays["centres"].clone()
        else:
            if len(ids) < self.clusters:
                warnings.warn(
                    f"{self.name}: clusters = {self.clusters}, more than the active clients ({len(ids)}) in the first "
                    "round; there will be one cluster for each of these",
                    stacklevel=2,
                )
            centres = members[k_means_seeds(members[:, :n], self.clusters, setting.streams.integer("kmeans", 1))]
        chosen = nearest_centre(members[:, :n], centres[:, :n])
        cluster = state.arrays["cluster"].clone()
        cluster[ids] = torch.as_tensor(chosen)
        formed, labels = in_order(chosen)
        coupling = ClusterPropagation(ids, labels, handed_back(formed, cluster.cpu().numpy()))
        centres[formed] = coupling.models(trained)
        log: dict[str, Any] = {"cluster_sizes": np.bincount(chosen, minlength=len(centres)).tolist()}
        if "cluster" in setting.truth and len(ids) > 1:
            log["rand_index"] = rand_index(chosen, setting.truth["cluster"][ids])
        state = state.with_log(**log).with_arrays(centres=centres, cluster=cluster)
        return mix(state, replies, coupling, trained=trained)
