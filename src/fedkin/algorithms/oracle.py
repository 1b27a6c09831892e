"""Oracle: one model per true cluster of clients, what a method could reach that finds the clusters at once."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from fedkin.algorithm import Algorithm, Setting, State, mix
from fedkin.clients import Replies
from fedkin.couplings import ClusterAverage
from fedkin.couplings.clustering import Labels, told_labels
from fedkin.errors import FedkinError
from fedkin.privacy.settings import Level


class Oracle(Algorithm):
    """FedAvg inside each cluster of clients, the clusters being told.

        w_c ← Σ_{k∈S∩c} (n_k / Σ_{S∩c} n) w_k,   w_k trained from w_c

    The clusters are `clusters` (client name → label, or one label per client in order), or else those the maker of the
    data knows (`federation.truth["cluster"]`). One cluster: FedAvg; one per client: Local. An upper mark for methods that
    look for clusters, not a rival: real clients do not know theirs.
    """

    name: ClassVar[str] = "oracle"
    title: ClassVar[str] = "Oracle"
    protects: ClassVar[tuple[Level, ...]] = ("sample", "client")
    along_edges: ClassVar[bool] = True

    clusters: Labels | None = Field(
        None, description="cluster of each client: {name: label} or labels in order (default: the data's own truth)"
    )

    def labels(self, setting: Setting) -> np.ndarray:
        """The cluster label of every client, (K,)."""
        found = told_labels("oracle: clusters", self.clusters, setting.names, setting.truth)
        if found is None:
            raise FedkinError(
                "oracle: the true clusters of this federation are unknown; pass clusters={client name: label}"
            )
        return found

    def check(self, setting: Setting) -> None:
        self.labels(setting)

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        return mix(state, replies, ClusterAverage(setting.sizes, self.labels(setting), replies.ids))
