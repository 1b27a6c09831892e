"""A picture of what a graph denoiser does: its response over the spectrum of a client graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedkin.couplings.denoisers import Response, Strength, find_denoiser
from fedkin.couplings.filters import GraphFilter
from fedkin.couplings.plug import ITERATIVE
from fedkin.errors import FedkinError
from fedkin.graphs import ClientGraph
from fedkin.graphs.spectrum import DECOMPOSITION_LIMIT

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_response(
    graph: ClientGraph,
    denoiser: str | Response = "soft",
    strengths: Sequence[Strength] | None = None,
    factor2: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """h(λ) from 0 to λ_max, one line per strength, with a dot at every eigenvalue of the graph.

    Near 1 a frequency is kept (clients stay apart in it), near 0 it is removed (clients agree). A denoiser that keeps a
    number of modes has no line between the dots. Without `strengths`: FedPnP's 1, 0.05, 0.005 and 0.0005, or 1, a quarter
    and half of the modes. Above 5,000 clients eigenvalues are not computed and dots left out.
    """
    if denoiser == ITERATIVE:
        raise FedkinError("graph total variation is not linear: it has no response over λ; draw soft, hard, heat, …")
    ranked, small = find_denoiser(denoiser).rank, len(graph) <= DECOMPOSITION_LIMIT
    if ranked and not small:
        raise FedkinError(
            f"the response of {denoiser!r} needs all eigenvalues: at most {DECOMPOSITION_LIMIT:,} clients"
        )
    if not strengths:
        strengths = sorted({1, -(-len(graph) // 4), -(-len(graph) // 2)}) if ranked else (1.0, 0.05, 0.005, 0.0005)
    filters = [GraphFilter(graph, denoiser, s, fidelity="none", factor2=factor2) for s in strengths]
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(5, 3.5), layout="constrained")
    grid = np.linspace(0, graph.lambda_max(), 400)
    for number, (strength, smoother) in enumerate(zip(strengths, filters)):
        label, colour = _label(strength, ranked), f"C{number}"
        if not ranked:
            ax.plot(grid, smoother.response(grid), color=colour, label=label)
        if small:
            ax.plot(
                graph.eigen()[0],
                smoother.response(),
                linestyle=":" if ranked else "",
                marker="o",
                markersize=3,
                color=colour,
                label=label if ranked else None,
            )
    ax.set(xlabel="graph frequency λ", ylabel="response h(λ)", ylim=(min(-0.05, ax.get_ylim()[0]), 1.08))
    ax.set_title(getattr(denoiser, "__name__", str(denoiser)))
    ax.legend(fontsize="small")
    return ax


def _label(strength: Strength, ranked: bool) -> str:
    if isinstance(strength, tuple):
        return f"{strength[0]:g}, {strength[1]:g}"
    return f"τ = {strength:g}" if ranked else f"strength {strength:g}"
