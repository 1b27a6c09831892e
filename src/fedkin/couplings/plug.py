"""Plug in a denoiser: by name, or as a function of λ and a strength."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedkin.couplings import denoisers
from fedkin.couplings.coupling import Coupling
from fedkin.couplings.denoisers import Denoiser, Response, Strength
from fedkin.couplings.filters import Fidelity, GraphFilter
from fedkin.couplings.graph_total_variation import GraphTotalVariation
from fedkin.errors import FedkinError
from fedkin.graphs import ClientGraph

ITERATIVE = "tv"


def refuse_unknown(denoiser: str) -> None:
    """Refuse a denoiser that cannot be named."""
    if denoiser != ITERATIVE:
        denoisers.find_denoiser(denoiser, also=(ITERATIVE,))


def graph_denoiser(
    graph: ClientGraph,
    denoiser: str | Response | Denoiser,
    strength: Strength,
    sizes: Sequence[float] | np.ndarray | None = None,
    fidelity: Fidelity = "size_weighted",
    factor2: bool = False,
) -> Coupling:
    """The coupling of a denoiser: a `GraphFilter`, or `GraphTotalVariation` for "tv".

    >>> graph_denoiser(ClientGraph([[0, 1], [1, 0]]), "heat", 0.1)
    GraphFilter(heat, strength=0.1, size_weighted, 2 clients)
    """
    if denoiser != ITERATIVE:
        known = denoisers.find_denoiser(denoiser, also=(ITERATIVE,))
        return GraphFilter(graph, known, strength, sizes, fidelity, factor2)
    if isinstance(strength, tuple) or factor2:
        raise FedkinError("graph total variation has one strength and no factor2")
    if fidelity not in ("size_weighted", "none"):
        raise FedkinError(f"graph total variation knows fidelity size_weighted or none, not {fidelity!r}")
    return GraphTotalVariation(graph, strength, None if fidelity == "none" else sizes)
