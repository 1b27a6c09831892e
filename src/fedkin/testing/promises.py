"""Promises: named checks whose failures say who broke which one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from fedkin.errors import FedkinError, unknown


class HasName(Protocol):
    """Whatever is put to the test."""

    @property
    def name(self) -> str: ...


Promise = Callable[[Any], None]


def need(holds: object, otherwise: str) -> None:
    """An `assert` that also holds under python -O."""
    if not holds:
        raise AssertionError(otherwise)


def numpys_state() -> np.ndarray:
    """The words and the position of numpy's global generator."""
    state = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    return np.append(state["key"], state["pos"])


@contextmanager
def refused(match: str) -> Iterator[None]:
    """What is done here must be refused, with a FedkinError that says `match`."""
    try:
        yield
    except FedkinError as problem:
        need(match in str(problem), f"it is refused with {str(problem)!r}, which does not say {match!r}")
    else:
        raise AssertionError(f"it is not refused with a FedkinError that says {match!r}")


def promise(
    text: str, kept_in: dict[str, Promise] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Name a check, a function of what is put to the test; any error in it becomes an AssertionError with that name."""

    def register(check: Callable[..., None]) -> Callable[..., None]:
        def named(subject: HasName, *more: Any) -> None:
            try:
                check(subject, *more)
            except Exception as problem:
                what = str(problem) if isinstance(problem, AssertionError) else f"{type(problem).__name__}: {problem}"
                raise AssertionError(f"{subject.name}: {text} – not kept: {what}") from problem

        named.__doc__ = check.__doc__
        if kept_in is not None:
            kept_in[text] = named
        return named

    return register


def selected(promises: Mapping[str, Promise], only: Iterable[str] | None) -> list[Promise]:
    """The checks of these promises; all of them without."""
    for text in only or ():
        if text not in promises:
            raise unknown("promise", text, promises)
    return list(promises.values()) if only is None else [promises[text] for text in only]
