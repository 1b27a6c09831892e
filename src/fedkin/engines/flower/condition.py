"""A site's condition, told before anything is trained: its tables, versions, clock, certificate and disk, all faults at once.

What it tells of its data is what it says at the start of a run anyway (names, shapes, columns, labels, sizes), and the
target's name.
"""

from __future__ import annotations

import shutil
import sys
import time
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, ValidationError

from fedkin.engines.flower.messages import Count, Described, Name, Reason, Said
from fedkin.engines.flower.policy import Policy
from fedkin.engines.flower.raw_table import raw_columns
from fedkin.engines.flower.site_file import ClientFile, SiteFile, load_arrays, table_faults, told_of
from fedkin.errors import FedkinError

PACKAGES = ("fedkin", "flwr", "torch", "numpy", "pandas")
"""Whose versions are compared."""


class ClientCondition(Said):
    """One client: as it would be described at the start of a run, or what is wrong with its data."""

    name: Name
    samples: Count = 0
    target: Annotated[str, Field(max_length=1000)] | None = None
    described: Described | None = None
    faults: Annotated[list[Reason], Field(max_length=1000)]


class Condition(Said):
    """A site before a run."""

    kind: ClassVar[str] = "check"

    site: Name
    clients: Annotated[list[ClientCondition], Field(max_length=100_000)]
    faults: Annotated[list[Reason], Field(max_length=1000)]
    versions: dict[Name, Annotated[str, Field(max_length=100)]]
    clock: Annotated[float, Field(ge=0, le=1e11)]
    """Seconds since 1970, as the site's clock has them."""
    disk: Annotated[int, Field(ge=0, le=2**60)]
    """Free bytes where the site keeps its state."""
    certificate_ends: Annotated[float, Field(ge=0, le=1e12)] | None = None
    """When the authority's certificate beside site.toml ends, in seconds since 1970."""


def condition_at(path: Path, prepare: bool = False) -> dict[str, Any]:
    """The condition of the site described in a file, as JSON can hold it; `prepare`: its tables are raw."""
    folder = path.absolute().parent
    settings, faults = _settings(path)
    clients = [_client(client, folder, prepare, settings.policy) for client in settings.clients] if settings else []
    if settings and not clients:
        faults.append("site.toml names no client; add a [[clients]] section")
    told = {
        "site": folder.name or "site",
        "clients": clients,
        "faults": faults,
        "versions": installed_versions(),
        "clock": time.time(),
        "disk": shutil.disk_usage(folder).free,
    }
    return told | ({"certificate_ends": ends} if (ends := certificate_ends(folder / "ca.pem")) is not None else {})


def installed_versions() -> dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


def certificate_ends(path: Path) -> float | None:
    """When a certificate ends, in seconds since 1970; None where there is none that can be read."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
    except (OSError, ValueError):
        return None


def _settings(path: Path) -> tuple[SiteFile | None, list[str]]:
    try:
        return SiteFile(**tomllib.loads(path.read_text())), []
    except OSError as problem:
        return None, [f"site.toml cannot be read: {problem.strerror}"]
    except tomllib.TOMLDecodeError as problem:
        return None, [f"site.toml is no valid TOML: {problem}"]
    except ValidationError as problem:
        told = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg'].lower()}" for fault in problem.errors())
        return None, [f"site.toml, {line}" for line in told]


def _client(client: ClientFile, folder: Path, prepare: bool, policy: Policy) -> dict[str, Any]:
    own: dict[str, Any] = {"name": client.name}
    if prepare:
        own["target"] = client.target
        try:
            columns, y = raw_columns(client, folder)
            policy.check_columns()
        except FedkinError as problem:
            return own | {"faults": [str(problem).removeprefix(f"client {client.name!r}: ")]}
        told = {"name": client.name, "input_shape": [len(columns)], "output_shape": [], "columns": list(columns)}
        labels = {"labels": np.unique(y).tolist()} if y.dtype.kind in "biuUSO" else {}
        return own | {"samples": len(y), "described": told | labels, "faults": []}
    if client.data.endswith(".csv"):
        own["target"] = client.target
        faults = table_faults(client, folder)
        if faults:
            return own | {"faults": faults}
    try:
        data = load_arrays(client, folder)
        parts = list(data.values()) if isinstance(data, dict) else [data]
        told = told_of(client, folder, parts[0])
        wrong = [f"{word} hold values that are missing or infinite" for word, part in zip(("inputs", "targets"), zip(*parts))
                 if any(a.dtype.kind == "f" and not np.isfinite(a).all() for a in part)]  # fmt: skip
        return own | {"samples": sum(len(y) for _, y in parts), "described": told, "faults": wrong}
    except FedkinError as problem:
        return own | {"faults": [str(problem).removeprefix(f"client {client.name!r}: ")]}
