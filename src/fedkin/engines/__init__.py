"""Engines: who runs the clients. All of them keep the same contract (`fedkin.engines.clients`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedkin.errors import unknown

if TYPE_CHECKING:
    from fedkin.engines.clients import Clients
    from fedkin.federation import Federation
    from fedkin.models import ModelSpec
    from fedkin.streams import Streams


def _in_process(federation: Federation, spec: ModelSpec, streams: Streams, workers: int | None) -> Clients:
    from fedkin.engines.in_process import InProcess

    return InProcess(federation, spec, streams, workers)


ENGINES: dict[str, Callable[..., Clients]] = {"in_process": _in_process}


def connect(name: str, federation: Federation, spec: ModelSpec, streams: Streams, workers: int | None) -> Clients:
    """The clients of a federation, run by the engine with this name."""
    if name not in ENGINES:
        raise unknown("engine", name, sorted(ENGINES))
    return ENGINES[name](federation, spec, streams, workers)
