"""Register: who may speak for whom. Flower binds a node to a key; the register binds clients to the node they came with.

`sites.json` in the run's folder, written when sites first join: {"sites": {node: {client: hash of its data}}}, and what the
clients said then, so that a run goes on while some of them are away. Later a client speaks through that node alone and with the same data, unless the operator accepts it again (`accept` in [federation]).
Who knows the nodes beforehand (`flwr supernode register` tells them) writes whose clients are whose under `owners`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fedkin.engines.flower.messages import Name
from fedkin.errors import FedkinError
from fedkin.files import write_json

FILE = "sites.json"
EVERYONE = "*"
UNKNOWN = ""


class Begun(BaseModel):
    """What a run began with: its clients in order, their sizes and models, the task."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: list[Name]
    train: list[int]
    validation: list[int]
    test: list[int]
    fingerprint: str
    own: dict[Name, str | None]
    task: dict[str, Any]
    inputs: list[dict[str, Any]] = []
    """How raw tables were prepared (`scheme.py`)."""


class SitesFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sites: dict[int, dict[Name, str]]
    begun: Begun | None = None


@dataclass
class Register:
    """Node → its clients and the hashes of their data."""

    path: Path
    accept: Sequence[str] = ()
    """Clients whose new node or new data the operator accepts; "*" for all."""
    sites: dict[int, dict[str, str]] = field(default_factory=dict)
    begun: Begun | None = None

    @classmethod
    def read(
        cls, folder: Path, accept: Sequence[str] = (), owners: Mapping[int, Sequence[str]] | None = None
    ) -> Register:
        """The register of a run. If it has none yet it holds the `owners` that the operator names, data unknown."""
        path = folder / FILE
        if not path.exists():
            return cls(path, accept, {node: dict.fromkeys(names, UNKNOWN) for node, names in (owners or {}).items()})
        try:
            known = SitesFile.model_validate(json.loads(path.read_text()))
            return cls(path, accept, known.sites, known.begun)
        except (OSError, ValueError, ValidationError, RecursionError) as problem:
            raise FedkinError(
                f"{path} cannot be read; put it back, or remove it to register the sites anew"
            ) from problem

    def owner(self, client: str) -> int | None:
        """The node that a client is registered with."""
        return next((node for node, own in self.sites.items() if client in own), None)

    def fault(self, node: int, told: Mapping[str, str | None]) -> str | None:
        """Why a node may not speak for these clients (name → hash, None if not told yet), or None if it may."""
        for name, fingerprint in told.items():
            owner = self.owner(name)
            if owner is None or name in self.accept or EVERYONE in self.accept:
                continue
            if owner != node:
                return (
                    f"client {name!r} is registered with another site's key; if it has moved, let federation.toml say "
                    f"accept = [{name!r}] under [federation]"
                )
            if fingerprint is not None and self.sites[owner][name] not in (UNKNOWN, fingerprint):
                return (
                    f"the data of client {name!r} are not those it was registered with; if that is right, let "
                    f"federation.toml say accept = [{name!r}] under [federation]"
                )
        return None

    def enter(self, joined: Mapping[int, Mapping[str, str]], begun: Begun | None = None) -> None:
        """Keep who joined through which node; clients that were accepted again move to their new one."""
        moved = {name for own in joined.values() for name in own}
        kept = {node: {name: f for name, f in own.items() if name not in moved} for node, own in self.sites.items()}
        for node, own in joined.items():
            kept[node] = {**kept.get(node, {}), **own}
        found = {node: own for node, own in kept.items() if own}
        if found != self.sites or begun is not None:
            self.sites, self.begun = found, begun or self.begun
            told = None if self.begun is None else self.begun.model_dump()
            write_json(self.path, {"sites": found, "begun": told})
