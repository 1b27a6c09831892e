"""What client-side code needs to know of FedRelax's settings, and how edges are weighted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from fedkin.local.mail import Mail
from fedkin.local.sgd import Sgd
from fedkin.models.adapters import FitEffort

Weight = Literal["scaled", "alpha"]


@dataclass(frozen=True)
class Relaxation:
    """The parameters of FedRelax that act on a client."""

    alpha: float
    update: str
    exact_block: bool
    weight: Weight
    distil: int | None
    distil_weight: float
    distil_from: str
    common: bool
    """All clients have the same public points."""
    points: int
    """The size of the largest public set."""
    degree: int
    """The largest number of neighbours of any client: the width of what a client keeps of its last letters."""
    memory: int
    """The length of the longest memory of any learner."""


def effort_of(shared: Mapping[str, Any]) -> FitEffort:
    """How models are improved, from what a message says of the settings of local training and of the method's own."""
    sgd = Sgd(**shared["sgd"])
    return FitEffort(
        rate=sgd.rate(shared["round"]),
        optimiser=sgd.optimiser,
        momentum=sgd.momentum,
        weight_decay=sgd.weight_decay,
        clip=sgd.clip,
        keep=sgd.moments == "keep",
        terms=tuple(sgd.terms()),
        **shared["effort"],
    )


def edge_weights(
    links: sp.csr_array, counts: np.ndarray | None, sizes: np.ndarray, weight: Weight, own: np.ndarray | None = None
) -> sp.csr_array:
    """What an edge counts in the objective of its receiver, relative to α.

    scaled: A_ij, so that a received point weighs α·A_ij·m_i/m_j beside a local point of weight 1.
    alpha: the paper's sentence, "augmented points are weighted by α": α·A_ij beside 1, which is A_ij·m_j/m_i here.
    `counts` are the senders' numbers of public points; for the block on the receiver's own points give `own` instead.
    """
    if weight == "scaled":
        return links
    share = sp.diags_array(1 / sizes.astype(float)) @ links
    if counts is None:
        assert own is not None
        return sp.csr_array(sp.diags_array(own.astype(float)) @ share)
    return sp.csr_array(share @ sp.diags_array(counts.astype(float)))


def neighbours_of(known: Mail) -> list[dict[str, float]]:
    """Of every receiver: neighbour → weight, in the order of their names."""
    found = []
    for k in range(len(known)):
        row = slice(*known.links.indptr[k : k + 2])
        linked = zip((known.senders[j] for j in known.links.indices[row]), known.links.data[row])
        found.append(dict(sorted((name, float(weight)) for name, weight in linked)))
    return found
