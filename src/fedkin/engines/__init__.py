"""Engines: who runs the clients. All of them keep the same contract (`fedkin.clients`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fedkin import plugins
from fedkin.errors import FedkinError

if TYPE_CHECKING:
    from fedkin.clients import Clients
    from fedkin.federation import Federation
    from fedkin.models import ModelSpec
    from fedkin.streams import Streams


def _in_process(federation: Federation, spec: ModelSpec, streams: Streams, workers: int | None) -> Clients:
    from fedkin.engines.in_process import InProcess

    return InProcess(federation, spec, streams, workers)


def _ray(federation: Federation, spec: ModelSpec, streams: Streams, workers: int | None, **options: Any) -> Clients:
    try:
        from fedkin.engines.ray.clients import RayClients
    except ImportError as problem:
        raise FedkinError("engine 'ray' needs Ray; install it with: pip install 'fedkin[ray]'") from problem
    return RayClients(federation, spec, streams, workers, **options)


def _flower(*_: Any, **__: Any) -> Clients:
    raise FedkinError(
        "engine 'flower' trains where the data are, started by flwr run; begin with: fedkin deploy init DIR"
    )


ENGINES: dict[str, Callable[..., Clients]] = {"in_process": _in_process, "ray": _ray, "flower": _flower}


def connect(
    name: str,
    federation: Federation,
    spec: ModelSpec,
    streams: Streams,
    workers: int | None,
    options: Mapping[str, Any] | None = None,
) -> Clients:
    """The clients of a federation, run by the engine with this name; `options` are the engine's own.

    An engine of one's own is a callable like those of `ENGINES`, named as fedkin.plugins says.
    """
    engine = plugins.find("engine", name, ENGINES)
    if not callable(engine):
        raise FedkinError(f"engine {name!r} is a {type(engine).__name__}, not a function that returns Clients")
    if options and name == "in_process":
        raise FedkinError(f"engine 'in_process' takes no options; leave out {next(iter(options))!r}")
    return engine(federation, spec, streams, workers, **(options or {}))
