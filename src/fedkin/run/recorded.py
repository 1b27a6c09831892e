"""The settings of a run as its directory records them: config.toml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkin.algorithm import Algorithm
from fedkin.algorithms import get, name_of
from fedkin.files import plain, versions
from fedkin.graphs import ClientGraph
from fedkin.models import ModelSpec
from fedkin.models.frozen import frozen_hash
from fedkin.result.frozen_file import FROZEN_HASH
from fedkin.roster import Roster
from fedkin.run.options import Options


def config_of(
    roster: Roster,
    spec: ModelSpec,
    algorithm: Algorithm,
    options: Options,
    graph: ClientGraph | None,
    out: Path | None = None,
) -> dict[str, Any]:
    """Everything needed to repeat a run, as written to config.toml."""
    sections: dict[str, Any] = {
        "data": {**roster.source, "fingerprint": roster.fingerprint},
        "model": {"name": spec.name or "custom", FROZEN_HASH: frozen_hash(spec.frozen) or None},
        "algorithm": {"name": name_of(type(algorithm)), **algorithm.model_dump()},
        "graph": {} if graph is None else {"file": "graph.npz"},
        "run": told_paths(out, options.model_dump()),
        "versions": versions(),
    }
    return {key: without_none(plain(value)) for key, value in sections.items()}


def defaults_of(section: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of a section: what older versions did not write was at its default."""
    if section == "run":
        fields = Options.model_fields
    elif section == "algorithm":
        fields = get(str(config["algorithm"]["name"])).model_fields
    else:
        return {}
    given = {name: field.default for name, field in fields.items() if not field.is_required()}
    return dict(without_none(plain(given)))


def without_none(value: Any) -> Any:
    """TOML has no null: leave such entries out."""
    if not isinstance(value, dict):
        return value
    told = {}
    for key, entry in value.items():
        if entry is not None:
            told[key] = without_none(entry) if isinstance(entry, dict) else entry
    return told


def told_paths(out: Path | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Run options as config.toml holds them: a rows file inside the directory by its place in there."""
    path = options.get("rows_file")
    if out is None or path is None:
        return dict(options)
    inside = Path(path).resolve().is_relative_to(out.resolve())
    return {**options, "rows_file": str(Path(path).resolve().relative_to(out.resolve())) if inside else str(path)}
