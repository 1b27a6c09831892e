"""What a run's directory says of its settings: config.toml, and the refusal to mix two settings in one directory."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedkin.algorithm import Algorithm
from fedkin.algorithms import get, name_of
from fedkin.errors import FedkinError
from fedkin.files import plain, versions
from fedkin.graphs import ClientGraph
from fedkin.models import ModelSpec
from fedkin.roster import Roster
from fedkin.run.options import Options


def config_of(
    roster: Roster, spec: ModelSpec, algorithm: Algorithm, options: Options, graph: ClientGraph | None
) -> dict[str, Any]:
    """Everything needed to repeat a run, as written to config.toml."""
    sections: dict[str, Any] = {
        "data": {**roster.source, "fingerprint": roster.fingerprint},
        "model": {"name": spec.name or "custom"},
        "algorithm": {"name": name_of(type(algorithm)), **algorithm.model_dump()},
        "graph": {} if graph is None else {"file": "graph.npz"},
        "run": options.model_dump(),
        "versions": versions(),
    }
    return {key: _without_none(plain(value)) for key, value in sections.items()}


def refuse_other_settings(out: Path | None, config: Mapping[str, Any], graph: ClientGraph | None) -> None:
    """A directory belongs to one setting: never mix results of two."""
    if out is None or not (out / "config.toml").exists():
        return
    stored = tomllib.loads((out / "config.toml").read_text())
    ours = tomllib.loads(tomli_w.dumps(config))
    for section in ("data", "model", "algorithm", "run"):
        before, now = {**_unset(section, config), **stored.get(section, {})}, ours[section]
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key):
                was, wanted = before.get(key, "unset"), now.get(key, "unset")
                raise FedkinError(
                    f"{out} holds a run with {section}.{key} = {was}, now it is {wanted}; choose another --out"
                )
    kept = ClientGraph.load(out / "graph.npz") if (out / "graph.npz").exists() else None
    if kept != graph:
        raise FedkinError(f"{out} holds a run with another graph; choose another --out")


def _unset(section: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of a section: what older versions did not write was at its default."""
    if section == "run":
        fields = Options.model_fields
    elif section == "algorithm":
        fields = get(str(config["algorithm"]["name"])).model_fields
    else:
        return {}
    given = {name: field.default for name, field in fields.items() if not field.is_required()}
    return dict(_without_none(plain(given)))


def _without_none(value: Any) -> Any:
    """TOML has no null: leave such entries out."""
    if isinstance(value, dict):
        return {key: _without_none(entry) for key, entry in value.items() if entry is not None}
    return value
