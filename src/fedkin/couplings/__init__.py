"""Couplings: operators over the client axis, Ψ = M Ω."""

from __future__ import annotations

from fedkin.couplings.averages import Average, Identity
from fedkin.couplings.coupling import Coupling
from fedkin.couplings.laplacian import LaplacianStep, safe_step, stability, total_variation

__all__ = ["Average", "Coupling", "Identity", "LaplacianStep", "safe_step", "stability", "total_variation"]
