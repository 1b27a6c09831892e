"""Couplings: operators over the client axis, Ψ = M Ω."""

from __future__ import annotations

from fedkin.couplings import schedules
from fedkin.couplings.averages import Average, ClusterAverage, Identity
from fedkin.couplings.clusters import ClusterPropagation
from fedkin.couplings.coupling import Coupling
from fedkin.couplings.denoisers import Denoiser, denoiser
from fedkin.couplings.filters import GraphFilter
from fedkin.couplings.graph_total_variation import GraphTotalVariation
from fedkin.couplings.laplacian import LaplacianStep, safe_step, stability, total_variation
from fedkin.couplings.mixing import Mixing
from fedkin.couplings.plug import graph_denoiser

__all__ = [
    "Average",
    "ClusterAverage",
    "ClusterPropagation",
    "Coupling",
    "Denoiser",
    "GraphFilter",
    "GraphTotalVariation",
    "Identity",
    "LaplacianStep",
    "Mixing",
    "denoiser",
    "graph_denoiser",
    "safe_step",
    "schedules",
    "stability",
    "total_variation",
]
