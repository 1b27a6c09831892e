"""The Ray to run on: options, joining a cluster, starting one on this machine."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from typing import Any

import ray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedkin.errors import FedkinError, first_fault, unknown

CONNECT_SECONDS = 10
"""How long a cluster may take to accept a connection."""
STORE_BYTES = 2**30
"""Object store of a Ray started here; what does not fit is spilled to disk by Ray."""


class RayOptions(BaseModel):
    """What the ray engine takes besides the federation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str | None = Field(None, description="a cluster to join, for example auto or ray://host:10001")
    timeout: float = Field(3600.0, gt=0, description="seconds an actor may take for one answer")
    start_timeout: float = Field(300.0, gt=0, description="seconds the actors may take to start")


def gpus_each(device: str, actors: int, gpus: float) -> float:
    """How many GPUs an actor asks for: a whole one where there are enough, else a share; none for other devices.

    >>> gpus_each("cuda", 4, 2), gpus_each("cuda", 2, 4), gpus_each("cpu", 4, 2)
    (0.5, 1.0, 0.0)
    """
    if not device.startswith("cuda"):
        return 0.0
    if device != "cuda":
        raise FedkinError(f"device {device!r}: Ray says which GPU an actor gets; use device='cuda'")
    if gpus < 1:
        raise FedkinError("device 'cuda': the Ray cluster has no GPUs; use device='cpu', or start Ray with num_gpus")
    return min(1.0, float(int(gpus)) / actors)


def ray_options(options: Mapping[str, Any]) -> RayOptions:
    """The options of a run, or one line that says what is wrong with them."""
    for key in options:
        if key not in RayOptions.model_fields:
            raise unknown("option of engine ray", key, list(RayOptions.model_fields))
    try:
        return RayOptions(**options)
    except ValidationError as problem:
        raise FedkinError(first_fault("engine ray", problem)) from problem


def join_or_start(address: str | None) -> bool:
    """Join the cluster at `address`, or the Ray this process already has, or start one. True if it is ours to end."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        cores = len(os.sched_getaffinity(0))
        try:
            ray.init(num_cpus=cores, include_dashboard=False, object_store_memory=STORE_BYTES, **quiet)
        except Exception as problem:  # Ray gives its own processes 30 seconds, and raises a bare Exception
            ray.shutdown()
            raise FedkinError(
                f"Ray could not be started here: {first_line(problem)} Try again when the machine is less busy"
            ) from problem
        return True
    refuse_nobody(address)
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as problem:
        hint = "one that asks for a token needs RAY_AUTH_MODE=token and RAY_AUTH_TOKEN here, too"
        raise FedkinError(f"no Ray cluster at {address!r}: {first_line(problem)}; {hint}") from problem
    return True


def refuse_nobody(address: str) -> None:
    """Ray tries for minutes to reach an address where nobody listens; find out at once."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as problem:
        raise FedkinError(f"no Ray cluster at {address!r}: {problem.strerror or problem}") from problem


def first_line(problem: BaseException) -> str:
    return next((line for line in str(problem).splitlines() if line.strip()), type(problem).__name__)
