"""A run seen in the frequencies of its graph: the filter the server applied, and where the clients' models live."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.couplings import denoisers
from fedkin.result import Result

SPECTRUM_LIMIT = 1_000
"""Above this many clients spectra are left out: they need all eigenvalues."""


def response(run: Result) -> tuple[str, np.ndarray, np.ndarray] | None:
    """The filter of the last round: its name, frequencies λ and h(λ). None where the server applied no known filter.

    A method that logs `strength` and names a denoiser applied that; one that logs `step` s moved along the Laplacian,
    W − sLW, which is h(λ) = 1 − sλ.
    """
    if run.graph is None or len(run.graph) > SPECTRUM_LIMIT:
        return None
    last: dict[str, Any] = next(
        (r["log"] for r in reversed(run.history) if {"strength", "step"} & set(r.get("log", {}))), {}
    )
    lambdas, settings = run.graph.eigen()[0], run.config["algorithm"]
    grid = np.unique(np.concatenate([lambdas, np.linspace(0, lambdas.max(initial=0), 60)]))
    if "strength" in last and settings.get("denoiser") in denoisers.filter_names():
        denoiser = denoisers.find_denoiser(settings["denoiser"])
        strength = last["strength"]
        if settings.get("factor2") and denoiser.penalty is not None:
            beta1, beta2 = denoiser.penalty(tuple(strength) if isinstance(strength, list) else strength)
            strength = (2 * beta1, 2 * beta2)
        at = lambdas if denoiser.rank else grid
        return denoiser.name, at, denoiser.evaluate(at, tuple(strength) if isinstance(strength, list) else strength)
    if "step" in last and settings.get("local_unit") != "step":
        return "Laplacian step", grid, 1 - float(last["step"]) * grid
    return None


def energy(run: Result) -> np.ndarray | None:
    """How much of the clients' models varies with each graph frequency: ‖v_iᵀΩ‖² / ‖Ω‖², (K,)."""
    if run.graph is None or len(run.graph) > SPECTRUM_LIMIT:
        return None
    _, vectors = run.graph.eigen()
    parts = ((vectors.T @ run.rows.astype(np.float64)) ** 2).sum(axis=1)
    return parts / parts.sum() if parts.sum() > 0 else None
