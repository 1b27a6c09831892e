"""Graph denoisers: small functions of the graph frequency λ and a strength.

A denoiser is its response h(λ; strength): what it does to the part of the stacked rows that varies over the graph with
frequency λ (an eigenvalue of the Laplacian). h(0) = 1 keeps what all clients of a component agree on; h near 0 removes
a frequency. To add one, write such a function:

>>> @denoiser("inverse-square")
... def inverse_square(lambdas, strength):
...     return 1 / (1 + strength * lambdas) ** 2
>>> find_denoiser("inverse-square").response(np.array([0.0, 1.0]), 1.0)
array([1.  , 0.25])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedkin import plugins
from fedkin.errors import FedkinError

Strength = float | tuple[float, float]
Response = Callable[[np.ndarray, float], np.ndarray]


@dataclass(frozen=True)
class Denoiser:
    """A named response. `penalty` gives (β₁, β₂) when 1/h(λ) = 1 + β₁λ + β₂λ²: the denoiser then minimises
    ‖Ψ−Ω‖² + β₁ tr(ΨᵀLΨ) + β₂ ‖LΨ‖² and can be computed by solving a linear system. `rank` marks a denoiser whose
    strength is a number of modes."""

    name: str
    response: Callable[[np.ndarray, Strength], np.ndarray]
    penalty: Callable[[Strength], tuple[float, float]] | None = None
    rank: bool = False

    def check(self, strength: Strength, clients: int) -> None:
        """Refuse a strength the denoiser cannot have."""
        numbers = strength if isinstance(strength, tuple) else (strength,)
        if isinstance(strength, tuple) and (self.penalty is None or len(strength) != 2):
            raise FedkinError(f"denoiser {self.name!r}: strength must be one number, not {strength!r}")
        if self.rank and not (float(numbers[0]).is_integer() and 1 <= numbers[0] <= clients):
            raise FedkinError(
                f"denoiser {self.name!r}: the rank τ must be a whole number from 1 to {clients} (the clients), "
                f"not {strength!r}"
            )
        if not (np.isfinite(numbers) & (np.asarray(numbers) >= 0)).all():
            raise FedkinError(f"denoiser {self.name!r}: strength must be finite and not negative, not {strength!r}")

    def evaluate(self, lambdas: np.ndarray, strength: Strength) -> np.ndarray:
        """h(λ) with the result checked: a user's function may return anything."""
        try:
            values = np.asarray(self.response(lambdas, strength), dtype=np.float64)
        except Exception as error:
            raise FedkinError(f"denoiser {self.name!r} failed on an array of λ: {error}") from error
        if values.shape != lambdas.shape:
            raise FedkinError(
                f"denoiser {self.name!r} must return one value per λ: shape {lambdas.shape}, not {values.shape}"
            )
        if not np.isfinite(values).all():
            at = int(np.flatnonzero(~np.isfinite(values))[0])
            raise FedkinError(f"denoiser {self.name!r} is not finite: h({lambdas[at]:g}) = {values[at]}")
        return values


_DENOISERS: dict[str, Denoiser] = {}


def denoiser(
    name: str, *, penalty: Callable[[Strength], tuple[float, float]] | None = None, rank: bool = False
) -> Callable[[Callable], Callable]:
    """Register a response h(λ, strength) under a name."""

    def register(response: Callable) -> Callable:
        _DENOISERS[name] = Denoiser(name, response, penalty, rank)
        return response

    return register


def find_denoiser(which: str | Response | Denoiser, also: tuple[str, ...] = ()) -> Denoiser:
    """A denoiser by name (see fedkin.plugins for those of others), or a user's own function h(λ, strength)."""
    found = plugins.find("denoiser", which, _DENOISERS, also) if isinstance(which, str) else which
    if isinstance(found, Denoiser):
        return found
    if not callable(found):
        raise FedkinError(f"denoiser {which!r} is a {type(found).__name__}; give a name or a function h(λ, strength)")
    own = Denoiser(getattr(found, "__name__", "own"), found)  # type: ignore[arg-type]
    registered = (entry for entry in _DENOISERS.values() if entry.response is found)
    return next(registered, own) if isinstance(which, str) else own


def filter_names() -> tuple[str, ...]:
    """The denoisers that can be named, those of installed packages last."""
    return plugins.plugin_names("denoiser", _DENOISERS)


def _both(strength: Strength) -> tuple[float, float]:
    return strength if isinstance(strength, tuple) else (strength, strength)


def _first(strength: Strength) -> tuple[float, float]:
    return (strength[0] if isinstance(strength, tuple) else strength, 0.0)


@denoiser("soft", penalty=_both)
def soft(lambdas: np.ndarray, strength: Strength) -> np.ndarray:
    """h(λ) = 1 / (1 + β₁λ + β₂λ²); the strength is β = β₁ = β₂, or the pair (β₁, β₂). FedPnP_s."""
    beta1, beta2 = _both(strength)
    return 1 / (1 + beta1 * lambdas + beta2 * lambdas**2)


@denoiser("hard", rank=True)
def hard(lambdas: np.ndarray, strength: float) -> np.ndarray:
    """Keeps the τ smoothest modes and drops the rest; λ in ascending order. FedPnP_h.

    On a disconnected graph the whole zero eigenspace (one mean per component) is kept whatever τ is. Where τ cuts
    through equal eigenvalues (very symmetric graphs) the modes kept among them are arbitrary.
    """
    zero = lambdas <= 1e-10 * lambdas.max(initial=0.0)
    return ((np.arange(len(lambdas)) < strength) | zero).astype(float)


@denoiser("heat")
def heat(lambdas: np.ndarray, strength: float) -> np.ndarray:
    """h(λ) = exp(−sλ): heat spreading over the graph for the time s."""
    return np.exp(-strength * lambdas)


@denoiser("tikhonov", penalty=_first)
def tikhonov(lambdas: np.ndarray, strength: Strength) -> np.ndarray:
    """h(λ) = 1 / (1 + sλ): the minimiser of ‖Ψ−Ω‖² + s·tr(ΨᵀLΨ)."""
    return 1 / (1 + _first(strength)[0] * lambdas)
