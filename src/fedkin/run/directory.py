"""The directory of a run: one owner at a time, every file in its manifest, no path that leads out of it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

import fedkin
from fedkin.errors import FedkinError
from fedkin.files import FileBatch, Lock, Manifest, clean_up
from fedkin.files.manifest import TENSORS
from fedkin.files.tensors import finish_commit
from fedkin.graphs import ClientGraph
from fedkin.models import ModelSpec
from fedkin.result.frozen_file import write_frozen
from fedkin.result.stored import read_config
from fedkin.run.recorded import defaults_of

READ = ("config.toml", "frozen.json", "graph.npz", "history.jsonl")
"""The files that a resumed run goes by, beside its checkpoint."""


class RunDirectory:
    """Where a run keeps what it needs to go on. `own` before writing, `release` at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: Lock | None = None

    def own(self) -> None:
        """Become the one that writes here; what a killed owner left is finished where it was whole, or removed."""
        if self._lock is None:
            self._lock = Lock(self.path / ".lock", str(self.path))
            for told in self.path.rglob("*.json"):
                finish_commit(told.with_suffix(TENSORS), owned=True)
            clean_up(self.path)

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def write_config(self, config: Mapping[str, Any], graph: ClientGraph | None, spec: ModelSpec) -> None:
        """config.toml, graph.npz and the frozen part of the model, together or not at all."""
        with FileBatch(self.path) as batch:
            batch.write(self.path / "config.toml", tomli_w.dumps(dict(config)).encode())
            if graph is not None:
                batch.write(self.path / "graph.npz", graph.to_bytes())
            write_frozen(self.path, spec, batch)

    def refuse_changes(self, accept: bool = False) -> None:
        """One line if a file that a resumed run goes by was changed by someone else, or another fedkin wrote it."""
        Manifest(self.path, accept).refuse_changes(READ, accept)
        made = read_config(self.path)["versions"].get("fedkin", fedkin.__version__)
        if made != fedkin.__version__ and not accept:
            raise FedkinError(
                f"{self.path} was begun by fedkin {made!r}, this is {fedkin.__version__}: the rest may come out otherwise; "
                f"take that version, or go on with this one: fedkin resume {self.path} --accept-changes"
            )

    def history_size(self) -> int | None:
        """How much of the history belongs to the checkpoints; None where there is no manifest to say so."""
        seen = Manifest(self.path).seen("history.jsonl")
        return None if seen is None else seen.bytes

    def refuse_other_data(self, fingerprint: str) -> None:
        """A run goes on with the data it was started on."""
        if read_config(self.path)["data"].get("fingerprint") != fingerprint:
            raise FedkinError(
                f"{self.path} was trained on other data (the fingerprint differs); give the same federation, or choose "
                "another directory"
            )


def refuse_other_settings(out: Path | None, config: Mapping[str, Any], graph: ClientGraph | None) -> None:
    """A directory belongs to one setting: never mix results of two."""
    if out is None or not (out / "config.toml").exists():
        return
    stored, ours = read_config(out), tomllib.loads(tomli_w.dumps(dict(config)))
    for section in ("data", "model", "algorithm", "run"):
        before, now = {**defaults_of(section, config), **stored.get(section, {})}, ours[section]
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key):
                was, wanted = before.get(key, "unset"), now.get(key, "unset")
                raise FedkinError(
                    f"{out} holds a run with {section}.{key} = {was}, now it is {wanted}; choose another --out"
                )
    kept = ClientGraph.load(out / "graph.npz") if (out / "graph.npz").exists() else None
    if kept != graph:
        raise FedkinError(f"{out} holds a run with another graph; choose another --out")


def trusted_parameters(out: Path, stored: Mapping[str, Any], ledger: str | None) -> dict[str, Any]:
    """The method's parameters in a run directory that a stranger may have made: a ledger elsewhere must be named again."""
    parameters, privacy = dict(stored), stored.get("privacy")
    if not isinstance(privacy, Mapping):
        return parameters
    path = privacy.get("ledger")
    if ledger is None and path is not None and not Path(str(path)).resolve().is_relative_to(out.resolve()):
        raise FedkinError(
            f"{out} names a privacy ledger outside of itself, {path}; if you want it read and written, say so again: "
            f"--ledger {path}"
        )
    return parameters | {"privacy": dict(privacy) | ({} if ledger is None else {"ledger": ledger})}


def trusted_options(
    out: Path, stored: Mapping[str, Any], rows_file: str | None, engine_options: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The options of a run directory that a stranger may have made: what leads out of it must be said again."""
    options = dict(stored)
    path = options.get("rows_file")
    if rows_file is not None:
        options["rows_file"] = str(rows_file)
    elif path is not None:
        inside = (out / str(path)).resolve()
        if Path(str(path)).is_absolute() or not inside.is_relative_to(out.resolve()):
            raise FedkinError(
                f"{out} names a rows file outside of itself, {path}; if you want it written, say so again: --rows-file {path}"
            )
        options["rows_file"] = str(inside)
    if engine_options is not None:
        options["engine_options"] = dict(engine_options)
    elif address := dict(options.get("engine_options") or {}).get("address"):
        raise FedkinError(
            f"{out} names a cluster to connect to, {address}; if you trust it, say so again: --ray-address {address}"
        )
    return options
