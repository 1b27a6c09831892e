"""The registry of data sets: register, list, describe, prepare, load."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from fedkin import plugins
from fedkin.data import store
from fedkin.data.federate import Recipe
from fedkin.data.progress import working
from fedkin.data.source import Arrays, Source, offline_folder
from fedkin.data.tabular import from_csv
from fedkin.errors import FedkinError, unknown
from fedkin.federation import Federation

Build = Callable[..., Federation]
_SETS: dict[str, DataSet] = {}


@dataclass(frozen=True)
class DataSet:
    """A data set: what it is, where it comes from, and how its arrays become a federation.

    `build(arrays, recipe, **options)` returns the federation; `clients` says what a natural client is ("subjects"),
    None if the set must be partitioned. `split` says what keeps test samples apart from training, `metric` by what to
    judge (empty: accuracy, or the mean squared error). A set without sources is embedded or generated.
    """

    name: str
    description: str
    size: str
    licence: str
    citation: str
    build: Build
    sources: tuple[Source, ...] = ()
    clients: str | None = None
    test_fraction: float = 0.25
    validation_fraction: float = 0.0
    split: str = "at random in each client"
    metric: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """The options of `load` that are this set's own, with their defaults."""
        return {name: p.default for name, p in list(inspect.signature(self.build).parameters.items())[2:]}


def dataset(**facts: Any) -> Callable[[Build], Build]:
    """Register a function `build(arrays, recipe, *, options…)` as a data set."""

    def register(build: Build) -> Build:
        _SETS[facts["name"]] = DataSet(build=build, **facts)
        return build

    return register


def _sets() -> dict[str, DataSet]:
    """The registered data sets by name, ours among them."""
    _register_ours()
    return _SETS


@cache
def _register_ours() -> None:
    """Importing the modules of our data sets registers them."""
    from fedkin.data import sets

    found = [f"{sets.__name__}.{module.name}" for module in pkgutil.iter_modules(sets.__path__)]
    for module in (*found, "fedkin.data.synthetic"):
        importlib.import_module(module)


def get(name: str) -> DataSet:
    """The data set of this name, or `package.module:thing` (see fedkin.plugins); near matches if there is none."""
    if not isinstance(name, str):
        raise FedkinError(f"a data set is named by text, not by {name!r}")
    found = plugins.find("data set", name, _sets())
    if not isinstance(found, DataSet):
        found = next((entry for entry in _SETS.values() if entry.build is found), None)
    if found is None:
        raise FedkinError(f"data set {name!r} is none: it must be a DataSet, or a function registered with @dataset")
    return found


def _folder(data: DataSet, source: Source) -> Path:
    return store.cache_folder() / data.name / source.kind


def _at_hand(data: DataSet) -> tuple[str, Source | None]:
    """How the set could be had without the network, and its source."""
    if not data.sources:
        return "embedded", None
    folder = offline_folder(None)
    for source in data.sources:
        if folder and source.locate(folder):
            return f"in $FEDKIN_DATA ({source.kind})", source
    for source in data.sources:
        if store.read_meta(_folder(data, source)):
            return f"in the cache ({source.kind})", source
    return "by download" if any(s.downloadable for s in data.sources) else "not at hand", None


def info(name: str) -> dict[str, Any]:
    """Everything known about one data set, ready for JSON."""
    data = get(name)
    at_hand, source = _at_hand(data)
    return {
        "name": data.name,
        "description": data.description,
        "size": data.size,
        "clients": data.clients or "none of its own: use a partition",
        "split": data.split,
        "metric": data.metric or "accuracy, or mean squared error",
        "licence": data.licence,
        "citation": data.citation,
        "at_hand": at_hand,
        "notes": list(source.notes) if source else [],
        "options": data.options,
        "sources": [
            {
                "kind": s.kind,
                "notes": list(s.notes),
                "files": [
                    {"name": f.name, "url": f.url, "hash": f.hash or f.content or "not published; contents are checked"}
                    for f in s.files
                ],
            }
            for s in data.sources
        ],
    }


def catalogue() -> list[dict[str, Any]]:
    """One entry per data set, sorted by name: name, description, size, natural clients, licence, what is at hand."""
    keys = ("name", "description", "size", "clients", "licence", "citation", "at_hand", "notes")
    return [{key: entry[key] for key in keys} for entry in plugins.every_plugin("data set", _sets(), info).values()]


def prepare(name: str, directory: str | os.PathLike[str] | None = None, force: bool = False) -> Path | None:
    """Have the raw arrays of a data set in the cache; returns their folder (None for embedded and synthetic sets).

    Files are looked for in `directory`, else in `$FEDKIN_DATA`; then the cache is used as it is; then upstream (or
    `$FEDKIN_MIRROR`) is asked. Nothing half-written is ever left in the cache.
    """
    return _prepared(get(name), directory, force)


def _prepared(data: DataSet, directory: str | os.PathLike[str] | None, force: bool = False) -> Path | None:
    if not data.sources:
        return None
    folder = offline_folder(directory)
    for source in data.sources:
        files = source.locate(folder) if folder else None
        if files:
            return _prepare_from(data, source, files, force)
    if directory is not None:
        wanted = " or ".join(", ".join(f.name for f in s.files) for s in data.sources)
        raise FedkinError(f"{directory} holds no files of {data.name!r}; expected {wanted}")
    for source in data.sources:
        target = _folder(data, source)
        if store.read_meta(target) and not force:
            return target
    for source in data.sources:
        if source.downloadable:
            return _download(data, source)
    wanted = ", ".join(f.name for f in data.sources[0].files)
    raise FedkinError(
        f"{data.name!r} has no public download; put {wanted} in a folder and name it by --from or FEDKIN_DATA"
    )


def _prepare_from(data: DataSet, source: Source, files: Mapping[str, Path], force: bool, trusted: bool = False) -> Path:
    target = _folder(data, source)
    version = store.version_of(files)
    meta = store.read_meta(target)
    if meta and meta.get("version") == version and not force:
        return target
    if not trusted:
        for file in source.files:
            file.verify(files[file.name])
    with working(f"reading {data.name}, once …"):
        arrays = source.read(files)
    store.write_cache(target, arrays, {"set": data.name, "kind": source.kind, "version": version})
    return target


def _download(data: DataSet, source: Source) -> Path:
    from fedkin.data.download import fetch

    folder = store.cache_folder() / ".downloads" / data.name
    with store.guarded(folder):
        files = {file.name: fetch(file, data.name, folder) for file in source.files}
    try:
        return _prepare_from(data, source, files, force=True, trusted=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _arrays(data: DataSet, directory: str | os.PathLike[str] | None) -> tuple[Arrays, tuple[str, ...]]:
    folder = _prepared(data, directory)
    if folder is None:
        return {}, ()
    meta = store.read_meta(folder) or {}
    source = next(s for s in data.sources if s.kind == folder.name)
    return store.read_cache(folder, meta.get("arrays", [])), source.notes


def load(
    name: str,
    clients: int | None = None,
    partition: str | None = None,
    seed: int = 0,
    test_fraction: float | None = None,
    validation_fraction: float | None = None,
    directory: str | os.PathLike[str] | None = None,
    downsample: str | None = None,
    official: bool = False,
    **options: Any,
) -> Federation:
    """A named data set as a federation.

    `clients` and `partition` say who holds what: "natural" (one client per subject, user, sensor or role, the default
    where the set has such; `clients` then draws that many of them), or a partition of the pooled samples such as
    "dirichlet:0.3" (the default elsewhere), see `fedkin.data.partition`. Each client's samples are split into train,
    validation and test at random (75/0/25 % unless told otherwise); series (70/10/20) and texts (80/0/20) in time.
    `directory` names a folder with the files (default `$FEDKIN_DATA`); without one the cache is used, then upstream.
    `downsample` is FedU's reduction of some clients: "tables" (half of them keep the last 20 % of their training
    samples), "curves" (90 %, 5 %) or "share of clients:share kept"; with `official` their test sets shrink too.
    `options` are the set's own: see `fedkin.data.info(name)["options"]`.

    >>> load("digits", clients=20, partition="dirichlet:0.3", seed=0)
    Federation(20 clients, classification with 10 classes, inputs (64,), 1350 train / 0 validation / 447 test samples)
    """
    if name == "csv":  # so that a table's `federation.source` builds it again, as that of any other set
        if (clients, partition, directory, downsample, official) != (None, None, None, None, False):
            raise FedkinError("a table names its clients itself; drop clients, partition, directory and downsample")
        absent = [key for key in ("path", "client", "target") if key not in options]
        if absent:
            raise FedkinError(f"a table needs {absent[0]!r}: load('csv', path=…, client=…, target=…)")
        fractions = {"test_fraction": test_fraction, "validation_fraction": validation_fraction}
        options |= {key: value for key, value in fractions.items() if value is not None}
        return from_csv(seed=seed, **options)
    data = get(name)
    test_fraction = data.test_fraction if test_fraction is None else test_fraction
    validation_fraction = data.validation_fraction if validation_fraction is None else validation_fraction
    for option in options:
        if option not in data.options:
            raise unknown(f"option of data set {name!r}", option, data.options or ["(none)"])
    recipe = Recipe(clients, partition, seed, test_fraction, validation_fraction, downsample, official)
    arrays, notes = _arrays(data, directory)
    federation = data.build(arrays, recipe, **options)
    source = {
        "name": name,
        "clients": clients,
        "partition": partition,
        "seed": seed,
        "test_fraction": test_fraction,
        "validation_fraction": validation_fraction,
        "directory": None if directory is None else str(Path(directory).expanduser().resolve()),
        "downsample": downsample,
        "official": official,
        **options,
    }
    source = {key: value for key, value in source.items() if value is not None}
    return replace(federation, notes=(*notes, *federation.notes), source=source)
