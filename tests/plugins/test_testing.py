"""The shipped checks find what is wrong and name it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from pydantic import Field

from fedkin import algorithms
from fedkin.algorithm import Algorithm
from fedkin.algorithms import FedAvg
from fedkin.couplings import denoisers
from fedkin.graphs import ClientGraph
from fedkin.graphs.build import specs
from fedkin.testing import check_algorithm, check_denoiser, check_graph_builder


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in algorithms.names():  # a method that a test were the first to import would be lost with its registry
        algorithms.get(name)
    monkeypatch.setattr(Algorithm, "registry", dict(Algorithm.registry))


def test_a_good_method_passes_whole() -> None:
    check_algorithm(FedAvg)


def test_a_method_that_draws_from_the_global_generator_is_named() -> None:
    class Noisy(FedAvg):
        """Adds noise from a generator that is not its own."""

        name: ClassVar[str] = "noisy"
        title: ClassVar[str] = "Noisy"

        def couple(self, state, replies, setting):  # type: ignore[no-untyped-def]
            state = super().couple(state, replies, setting)
            return state.with_arrays(rows=state.rows + np.random.normal())  # noqa: NPY002

    with pytest.raises(AssertionError, match=r"noisy: the same seed gives the same numbers.*two runs with one seed"):
        check_algorithm(Noisy, only=["the same seed gives the same numbers, another seed others"])
    with pytest.raises(AssertionError, match=r"noisy: the global random state is left alone.*numpy"):
        check_algorithm(Noisy, only=["the global random state is left alone"])


def test_a_method_that_cares_for_order_is_named() -> None:
    class First(FedAvg):
        """Everyone gets the model of whoever comes first."""

        name: ClassVar[str] = "first"
        title: ClassVar[str] = "First"

        def couple(self, state, replies, setting):  # type: ignore[no-untyped-def]
            return state.with_arrays(rows=replies["rows"][:1].expand(len(setting), -1))

    with pytest.raises(AssertionError, match=r"first: the order of clients does not matter.*other rows"):
        check_algorithm(First)


def test_a_parameter_without_effect_is_named_unless_a_reason_is_given() -> None:
    class Idle(FedAvg):
        """FedAvg with a parameter that does nothing."""

        name: ClassVar[str] = "idle"
        title: ClassVar[str] = "Idle"
        nothing: int = Field(1, description="does nothing")

    with pytest.raises(AssertionError, match=r"idle: every parameter changes the result.*nothing has no effect"):
        check_algorithm(Idle)
    check_algorithm(Idle, silent={"nothing": "it is there to be found out"})


def test_an_error_in_a_method_is_a_broken_promise() -> None:
    class Undone(Algorithm):
        """Has no coupling."""

        name: ClassVar[str] = "undone"
        title: ClassVar[str] = "Undone"

    with pytest.raises(AssertionError, match=r"undone: it trains and reports.*NotImplementedError"):
        check_algorithm(Undone)


@pytest.mark.parametrize("name", denoisers.filter_names())
def test_every_denoiser_keeps_its_promises(name: str) -> None:
    check_denoiser(name)


@pytest.mark.parametrize(
    ("response", "broken"),
    [
        (lambda lambdas, s: np.exp(-s * lambdas)[:-1], "one finite number per frequency"),
        (lambda lambdas, s: 0.9 * np.exp(-s * lambdas), "h\\(0\\) = 1.*at strength 0.5 it is h\\(0\\) = 0.9"),
        (lambda lambdas, s: 1 + s * lambdas, "amplifies nothing"),
        (
            lambda lambdas, s: np.exp(-s * lambdas / max(lambdas.max(), 1e-9)),
            "does not depend on the other frequencies",
        ),
        (lambda lambdas, s: np.exp(-lambdas), "the strength has an effect"),
    ],
)
def test_a_bad_denoiser_is_named(response, broken: str) -> None:  # type: ignore[no-untyped-def]
    response.__name__ = "bad"
    with pytest.raises(AssertionError, match=f"bad: .*{broken}"):
        check_denoiser(response)


@pytest.mark.parametrize("name", specs())
def test_every_graph_builder_keeps_its_promises(name: str) -> None:
    check_graph_builder(name)


def test_a_bad_graph_builder_is_named() -> None:
    def chain(names, disclosed, seed, option):  # type: ignore[no-untyped-def]
        return ClientGraph(np.eye(len(names), k=1) + np.eye(len(names), k=-1), names)

    with pytest.raises(AssertionError, match="chain: the order of clients does not matter"):
        check_graph_builder(chain)

    def nameless(names, disclosed, seed, option):  # type: ignore[no-untyped-def]
        return np.ones((len(names), len(names)))

    with pytest.raises(AssertionError, match=r"nameless: it gives a ClientGraph.*ndarray"):
        check_graph_builder(nameless)

    def curious(names, disclosed, seed, option):  # type: ignore[no-untyped-def]
        return ClientGraph(disclosed("samples"), names)

    with pytest.raises(AssertionError, match=r"curious: .*unknown disclosure 'samples'"):
        check_graph_builder(curious)
