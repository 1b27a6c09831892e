"""FedCedar: cluster the clients' models, connect the centres, propagate along that graph, hand the models back."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from fedkin.algorithm import Algorithm, Deploys, Setting, State, mix, place
from fedkin.clients import Replies, only
from fedkin.couplings.clustering import Labels, by_name, k_means, lasting_names, rand_index, told_labels
from fedkin.couplings.clusters import (
    MEAN,
    ClusterPropagation,
    SimOn,
    averaging,
    by_members,
    cosines,
    handed_back,
    relate,
)
from fedkin.couplings.robust import in_the_crowd
from fedkin.errors import FedkinError
from fedkin.privacy.settings import Level
from fedkin.streams import client_keys

NAMED = 200
"""Up to so many clients, the log names those in each cluster and under each condition; above, it counts them."""
DRAWN = 20
"""Up to so many clusters, the log holds their relation R."""
INITIAL, OWN_CLUSTER, MEAN_OF_CLUSTERS, REMEMBERED = range(4)
"""Where the model a client receives comes from."""


class FedCedar(Algorithm):
    """Clusters of clients as the nodes of a graph that is found anew in every round.

        w_n ← SGD from the received model, n in the cohort S
        clusters: k-means with K clusters on {w_n};   c_k = mean of the members of cluster k
        R: r_ij = max(cos(c_i, c_j), 0), each row scaled to sum 1, self included
        Ŵ = Rᴾ C:  the models of the clusters after P propagations
        next round: who was in S receives ŵ of its cluster (condition 1), others the mean of all ŵ (condition 2)

    Models are compared by their trainable parameters; batch-norm buffers are averaged and propagated with them. If fewer
    than K clients answer, each is a cluster of its own. Clusters keep their names from round to round, each going on from
    the former one whose centre is nearest, which `memory` builds on: who sat out receives its cluster's newest model.

    With nearby initial weights all cosines are close to 1, R close to 1/K everywhere, and two propagations all but average
    the centres: watch `diagonal` in the log (1/K: no contrast, 1: no exchange). `sim_on`, `temperature` and `minmax` are
    there to bring contrast back; see docs/fedcedar.md.

    K = 1 is FedAvg with equal weights; P = 0 is the ablation as2; P → ∞ gives all clusters one model.

    Reference: Wang et al., Rethinking Personalized Federated Learning with Clustering-based Dynamic Graph Propagation, 2024.
    """

    name: ClassVar[str] = "fedcedar"
    title: ClassVar[str] = "FedCedar"
    protects: ClassVar[tuple[Level, ...]] = ("sample",)
    deploys: ClassVar[Deploys] = "trained"
    defence: ClassVar[str] = "direction"

    clusters: int = Field(5, ge=1, description="clusters K; fewer are used when fewer clients answer")
    propagations: int = Field(2, ge=0, description="propagations P along the graph of the centres")
    ablation: Literal["as1", "as2", "as3"] | None = Field(
        None, description="as1: no clusters, every client a node; as2: no graph (P = 0); as3: one model for everyone"
    )
    sim_on: SimOn = Field(
        "params", description="cosine of what: the centres, their round updates, or centres minus their mean"
    )
    temperature: float | None = Field(
        None, gt=0, description="softmax of cos/T instead of clipping and scaling; smaller T: more contrast"
    )
    minmax: bool = Field(False, description="stretch the cosines between different centres to [0, 1] first")
    memory: bool = Field(False, description="who sat out receives its last cluster's model, not the mean of all")
    period: int | tuple[int, ...] | None = Field(
        None,
        description="every so many rounds, or in these rounds (Q), sample the cohort evenly inside each group of clients",
    )
    groups: Labels | None = Field(
        None, description="group of each client: {name: label} or labels in order (default: the data's own truth)"
    )

    @field_validator("period")
    @classmethod
    def _rounds_from_one(cls, period: int | tuple[int, ...] | None) -> int | tuple[int, ...] | None:
        if period is not None and min(period if isinstance(period, tuple) else (period,), default=0) < 1:
            raise ValueError("rounds are counted from 1; give how many lie between, or a list of rounds")
        return period

    def in_groups(self, round: int) -> bool:
        """Whether the cohort of a round is sampled inside the groups: round ∈ Q."""
        if self.period is None:
            return False
        return round in self.period if isinstance(self.period, tuple) else round % self.period == 0

    def known_groups(self, setting: Setting) -> np.ndarray | None:
        """The true group of every client, (K,), where somebody knows it: for `period` and the Rand index."""
        return told_labels(f"{self.name}: groups", self.groups, setting.names, setting.truth)

    def check(self, setting: Setting) -> None:
        if self.known_groups(setting) is None and self.period is not None:
            raise FedkinError(
                f"{self.name}: period={self.period} samples inside groups, but this federation tells none; "
                "pass groups={client name: label}, or leave period out"
            )

    def start(self, setting: Setting) -> State:
        nobody = torch.full((len(setting),), -1, dtype=torch.int64)
        none = torch.zeros((0, setting.spec.layout.n_parameters), dtype=setting.spec.dtype)
        source = torch.full_like(nobody, INITIAL)
        return super().start(setting).with_arrays(cluster=nobody, source=source, centres=none)

    def cohort(self, round: int, size: int, setting: Setting) -> np.ndarray:
        groups = self.known_groups(setting)
        if not self.in_groups(round) or groups is None or size >= len(setting):
            return super().cohort(round, size, setting)
        draws = setting.streams.words("cohort", round, client_keys(setting.names))
        chosen = []
        for group in np.unique(groups):
            members = np.flatnonzero(groups == group)
            share = max(1, int(size * len(members) / len(setting) + 0.5))
            chosen.append(members[np.argsort(draws[members], kind="stable")[:share]])
        return np.sort(np.concatenate(chosen))

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        if self.robust is not None:  # a row far away would have a cluster, and with it a share of all models, to itself
            replies = only(replies, in_the_crowd(replies["rows"]))
        ids, n = by_name(replies.ids, setting.names), setting.spec.layout.n_parameters
        state = self._say_once(state, len(ids))
        trained = place(state.rows, replies)
        weights, active = trained[ids, :n], np.isin(setting.everyone, ids)
        labels = self._assign(weights, setting.streams.integer("kmeans", state.round + 1))
        average = torch.as_tensor(averaging(labels), dtype=weights.dtype)
        state, names = self._name(state, ids, average @ weights)
        cluster = state.arrays["cluster"].clone()
        cluster[ids] = torch.as_tensor(names[labels])
        hand_back = np.where(active | self.memory, handed_back(names, cluster.cpu().numpy()), MEAN)
        if self.ablation == "as3":
            hand_back = np.full_like(hand_back, MEAN)
        relation = self._relation(average, weights, state.rows[ids, :n])
        if self.robust is not None:  # a few attackers can be several clusters: clusters then speak for their members
            relation = by_members(relation, labels)
        propagations = 0 if self.ablation == "as2" else self.propagations
        coupling = ClusterPropagation(ids, labels, hand_back, relation, propagations)
        state = state.with_log(**self._report(state, coupling, names, setting))
        source = np.where(active, OWN_CLUSTER, REMEMBERED)
        source[hand_back == MEAN] = MEAN_OF_CLUSTERS
        state = state.with_arrays(cluster=cluster, source=torch.as_tensor(source))
        return mix(state, replies, coupling, trained=trained)

    def _assign(self, weights: Tensor, seed: int) -> np.ndarray:
        """The cluster of each of the trained models (m, P), codes (m,)."""
        return np.arange(len(weights)) if self.ablation == "as1" else k_means(weights, self.clusters, seed)

    def _name(self, state: State, ids: np.ndarray, centres: Tensor) -> tuple[State, np.ndarray]:
        """The lasting names of the round's clusters with these centres (c, P), and the state with the newest centres."""
        if self.ablation == "as1":
            return state, ids
        before = state.arrays["centres"]
        names = lasting_names(centres, before)
        newest = centres.new_empty((max(len(before), int(names.max()) + 1), centres.shape[1]))
        newest[: len(before)] = before
        newest[names] = centres
        return state.with_arrays(centres=newest), names

    def _relation(self, average: Tensor, trained: Tensor, received: Tensor) -> np.ndarray:
        """R (c, c) from what the members had received and what they made of it, (m, P) each."""
        centres = average @ (trained - received if self.sim_on == "updates" else trained)
        if self.sim_on == "centred":
            centres = centres - centres.mean(dim=0)
        return relate(cosines(centres), self.temperature, self.minmax)

    def _say_once(self, state: State, answered: int) -> State:
        if answered >= self.clusters or self.ablation == "as1" or state.values.get("said_fewer"):
            return state
        warnings.warn(
            f"{self.name}: clusters = {self.clusters}, more than the active clients ({answered}) in round "
            f"{state.round + 1}; such rounds use one cluster per client",
            stacklevel=2,
        )
        return state.with_values(said_fewer=True)

    def _report(
        self, state: State, coupling: ClusterPropagation, names: np.ndarray, setting: Setting
    ) -> dict[str, Any]:
        """What the log says of a round: the clusters, their relation, and where its clients' models had come from."""
        ids, labels, relation = coupling.members, coupling.labels, coupling.relation
        apart = relation[~np.eye(len(relation), dtype=bool)]
        report: dict[str, Any] = {
            "cluster_sizes": np.bincount(labels).tolist(),
            "diagonal": float(relation.diagonal().mean()),
            "off_diagonal": float(apart.mean()) if len(apart) else 0.0,
        }
        if len(relation) <= DRAWN:
            report["relation"] = relation.tolist()
        groups = self.known_groups(setting)
        if groups is not None and len(ids) > 1 and self.ablation != "as1":
            report["rand_index"] = rand_index(labels, groups[ids])
        source = state.arrays["source"].cpu().numpy()[ids]
        by_source = {"condition_1": OWN_CLUSTER, "condition_2": MEAN_OF_CLUSTERS, "remembered": REMEMBERED}
        report |= {key: int((source == code).sum()) for key, code in by_source.items()}
        if len(setting) <= NAMED:
            named = np.array(setting.names)[ids]
            report["clusters"] = {str(name): named[labels == code].tolist() for code, name in enumerate(names)}
            report |= {f"{key}_clients": named[source == code].tolist() for key, code in by_source.items()}
        return report
