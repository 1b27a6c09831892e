"""check_denoiser: what a graph filter may expect of a response h(λ; strength)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

import fedkin
from fedkin.couplings import denoisers
from fedkin.couplings.denoisers import Denoiser, Response, Strength
from fedkin.testing.federations import uneven_federation
from fedkin.testing.promises import Promise, need, promise, selected

DENOISER_PROMISES: dict[str, Promise] = {}
"""Promise → its check, a function of a `DenoiserTrial`."""

LAMBDAS = np.array([0.0, 0.0, 0.3, 0.7, 1.1, 2.5, 8.0])
"""The spectrum of a graph of seven clients in two components."""


@dataclass(frozen=True)
class DenoiserTrial:
    """A denoiser put to the test."""

    denoiser: Denoiser
    given: str | Response | Denoiser
    strengths: tuple[Strength, ...]

    @property
    def name(self) -> str:
        return self.denoiser.name

    def responses(self, lambdas: np.ndarray = LAMBDAS) -> list[np.ndarray]:
        return [self.denoiser.evaluate(lambdas, strength) for strength in self.strengths]


def check_denoiser(
    denoiser: str | Response | Denoiser,
    strengths: Iterable[Strength] | None = None,
    only: Iterable[str] | None = None,
) -> None:
    """Raise an AssertionError if a denoiser breaks a promise: see `DENOISER_PROMISES`.

    `strengths` are two or more that differ in effect (default 0.5 and 2; for one that keeps τ modes, 3 and 5).

    >>> def inverse_square(lambdas, strength):
    ...     return 1 / (1 + strength * lambdas) ** 2
    >>> check_denoiser(inverse_square)
    """
    found = denoisers.find_denoiser(denoiser)
    trial = DenoiserTrial(found, denoiser, tuple(strengths or ((3, 5) if found.rank else (0.5, 2.0))))
    for check in selected(DENOISER_PROMISES, only):
        check(trial)


@promise("it gives one finite number per frequency", DENOISER_PROMISES)
def _finite(trial: DenoiserTrial) -> None:
    for lambdas in (LAMBDAS, np.zeros(1), np.linspace(0, 50, 200)):
        trial.responses(lambdas)  # `Denoiser.evaluate` refuses anything else


@promise("it keeps what the clients of a component agree on: h(0) = 1", DENOISER_PROMISES)
def _keeps_the_mean(trial: DenoiserTrial) -> None:
    for strength, values in zip(trial.strengths, trial.responses()):
        need(np.allclose(values[LAMBDAS == 0], 1), f"at strength {strength} it is h(0) = {values[0]:g}")


@promise("it amplifies nothing: |h(λ)| ≤ 1", DENOISER_PROMISES)
def _does_not_amplify(trial: DenoiserTrial) -> None:
    for strength, values in zip(trial.strengths, trial.responses()):
        at = int(np.abs(values).argmax())
        need(abs(values[at]) <= 1 + 1e-9, f"at strength {strength} it is h({LAMBDAS[at]:g}) = {values[at]:g}")


@promise("it is a function: the same answer twice, λ unchanged", DENOISER_PROMISES)
def _is_a_function(trial: DenoiserTrial) -> None:
    given = LAMBDAS.copy()
    first, second = trial.responses(given), trial.responses(given)
    need(np.array_equal(given, LAMBDAS), "it writes over the λ it is given")
    need(np.array_equal(first, second), "two calls differ")


@promise("h(λ) does not depend on the other frequencies", DENOISER_PROMISES)
def _is_pointwise(trial: DenoiserTrial) -> None:
    """So that large graphs can do without their spectrum. One that keeps τ modes does depend on them."""
    if not trial.denoiser.rank:
        alone = [trial.responses(LAMBDAS[k : k + 1]) for k in range(len(LAMBDAS))]
        need(np.allclose(np.concatenate(alone, axis=1), trial.responses()), "one λ alone gives another value")


@promise("the strength has an effect", DENOISER_PROMISES)
def _strength(trial: DenoiserTrial) -> None:
    first, *others = trial.responses()
    need(any(not np.allclose(first, other) for other in others), f"strengths {trial.strengths} give one response")


@promise("its penalty is that of its response: 1/h(λ) = 1 + β₁λ + β₂λ²", DENOISER_PROMISES)
def _penalty(trial: DenoiserTrial) -> None:
    if trial.denoiser.penalty is not None:
        for strength, values in zip(trial.strengths, trial.responses()):
            beta1, beta2 = trial.denoiser.penalty(strength)
            need(np.allclose(values * (1 + beta1 * LAMBDAS + beta2 * LAMBDAS**2), 1), f"not at strength {strength}")


@promise("FedPnP trains with it", DENOISER_PROMISES)
def _trains(trial: DenoiserTrial) -> None:
    parameters: dict[str, object] = {"denoiser": trial.given, "schedule": "constant"}
    parameters |= {"tau": 3} if trial.denoiser.rank else {}
    if isinstance(trial.given, Denoiser):
        parameters["denoiser"] = trial.given.response
    algorithm = fedkin.algorithms.make("fedpnp", parameters)
    result = fedkin.train(uneven_federation(), "mlr", algorithm, graph="complete", rounds=2)
    need(np.isfinite(result.rows).all(), "rows are not finite")
