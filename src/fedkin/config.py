"""Settings: from a TOML file and flags to what a run needs. Every key is checked; a misspelt one lists near matches.

A settings file has the sections of a run's own config.toml, so that `fedkin run RUN/config.toml` repeats a run:

    [data]              name, clients, partition, … (arguments of fedkin.data.load), or csv, client, target, …
    [model]             name
    [training]          lr, epochs, batch_size, …: local training, for every method; a method whose rate means something
                        else (pFedMe, pFedBayes, FedRelax) keeps its own lr, optimiser and momentum
    [algorithm]         name, and the method's parameters
    [algorithms.NAME]   parameters of one of several methods (`fedkin compare`)
    [graph]             name ("knn:5") or file
    [run]               rounds, seed, seeds, fraction, eval_every, …; loss, class_weight, metrics, headline

Where only the name matters a string will do: `model = "mlp"`. Flags are one more layer on top of the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from fedkin.errors import FedkinError, unknown

if TYPE_CHECKING:
    from fedkin.algorithm import Algorithm
    from fedkin.federation import Federation
    from fedkin.portfolio.contender import Auto
    from fedkin.run.options import Options
    from fedkin.tuning.space import Between, OneOf

SECTIONS = ("data", "model", "training", "algorithm", "algorithms", "graph", "run")
WRITTEN_BY_RUNS = {"versions", "fingerprint", "frozen_sha256"}
"""What a run notes in its config.toml beside its settings."""

RATE = ("lr", "optimiser", "momentum")
"""Settings of local training that mean something else to some methods (`Sgd.own_rate`)."""

Layer = Mapping[str, Mapping[str, Any]]


class NamedData(BaseModel):
    """A named data set and its partition; other keys are the set's own options."""

    model_config = ConfigDict(extra="allow")

    name: str
    clients: int | None = None
    partition: str | None = None
    seed: int | None = None
    test_fraction: float | None = None
    validation_fraction: float = 0.0
    directory: str | None = None
    downsample: str | None = None
    official: bool = False

    def load(self, seed: int) -> Federation:
        from fedkin import data

        given = self.model_dump(exclude_unset=True)
        return data.load(**{**given, "seed": seed if self.seed is None else self.seed})


class OwnTable(BaseModel):
    """A CSV, Excel or Parquet file of the user's own."""

    model_config = ConfigDict(extra="forbid")

    name: Literal["csv"] = "csv"
    path: str
    client: str
    target: str
    seed: int | None = None
    task: str | None = None
    missing: Literal["impute", "error"] = "impute"
    missing_values: list[str | int | float] = []
    decimal: str = "."
    standardise: bool = True
    drop: list[str] = []
    keep: list[str] | None = None
    id: str | None = None
    date: list[str] = []
    sep: str | None = None
    encoding: str | None = None
    max_categories: int = 100
    test_fraction: float = 0.25
    validation_fraction: float = 0.0
    classes: list[str | int] | None = None

    def load(self, seed: int) -> Federation:
        from fedkin import data

        given = self.model_dump(exclude_unset=True, exclude={"name"})
        return data.from_csv(**{**given, "seed": seed if self.seed is None else self.seed})


@dataclass(frozen=True)
class Experiment:
    """What to train on what, how, and with which seeds."""

    data: NamedData | OwnTable
    model: str
    algorithms: Mapping[str, Algorithm]
    """The chosen algorithms in order, by name."""
    graph: str | None
    options: tuple[Options, ...]
    """How a run goes, one for every seed."""
    auto: Auto | None = None
    """auto, where a comparison lists it among the algorithms."""

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(options.seed for options in self.options)

    def federation(self, seed: int) -> Federation:
        """The data; the seed also draws the partition and the split, unless [data] has a seed of its own."""
        return self.data.load(seed)


def read_toml(path: Path) -> dict[str, dict[str, Any]]:
    """The sections of a TOML file, checked. Paths in it are relative to its folder."""
    try:
        content = tomllib.loads(path.read_text())
    except OSError as problem:
        raise FedkinError(f"{path} cannot be read: {problem.strerror}; give the path of a TOML file") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise FedkinError(f"{path} is not valid TOML: {problem}") from problem
    sections: dict[str, dict[str, Any]] = {}
    for name, section in content.items():
        if name in WRITTEN_BY_RUNS:
            continue
        if name not in SECTIONS:
            raise unknown(f"section in {path}", name, SECTIONS)
        if isinstance(section, str) and name in ("data", "model", "algorithm", "graph"):
            section = {"name": section}
        if isinstance(section, list) and name in ("model", "graph"):
            section = {"name": section}
        if isinstance(section, list) and name == "algorithms":
            section = {str(method): {} for method in section}
        if not isinstance(section, dict):
            raise FedkinError(f"{path}: {name} must be a section, written [{name}]")
        sections[name] = {key: value for key, value in section.items() if key not in WRITTEN_BY_RUNS}
    _resolve_paths(sections, path.parent)
    return sections


def _resolve_paths(sections: dict[str, dict[str, Any]], folder: Path) -> None:
    data, graph = sections.get("data", {}), sections.get("graph", {})
    if "csv" in data:
        data["path"] = data.pop("csv")
    for key in ("path", "directory"):
        if isinstance(data.get(key), str):
            data[key] = str((folder / Path(data[key]).expanduser()).absolute())
    if "path" in data:
        data.setdefault("name", "csv")
    if "file" in graph:
        graph["name"] = str((folder / str(graph.pop("file"))).absolute())


def parse_assignments(texts: Sequence[str]) -> dict[str, Any]:
    """`--set key=value …`: values as in TOML, anything else is text.

    >>> parse_assignments(["lr=0.1", "fedprox.mu=1", "denoiser=soft"])
    {'lr': 0.1, 'fedprox.mu': 1, 'denoiser': 'soft'}
    """
    values: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise FedkinError(f"--set {text!r} is not an assignment; write --set key=value, for example --set lr=0.1")
        try:
            values[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            values[key.strip()] = value.strip()
    return values


def settle(
    layers: Sequence[Layer],
    assignments: Mapping[str, Any] | None = None,
    default: Sequence[str] = ("fedavg",),
    with_auto: bool = False,
) -> Experiment:
    """Put layers (file, then flags) on top of each other and make the whole. `default`: algorithms when none is named.

    In a comparison (`with_auto`) "auto" may be among the algorithms.
    """
    from fedkin.run.options import make_options
    from fedkin.streams import parse_seeds

    data = _data(layers)
    run = _merged(layers, "run")
    seed = run.pop("seed", 0)
    if not isinstance(seed, int) or seed < 0:
        raise FedkinError(f"seed is {seed!r}; it must be a whole number, 0 or more")
    seeds = parse_seeds(run.pop("seeds"), seed) if "seeds" in run else (seed,)
    model, graph = _name_of(layers, "model"), _name_of(layers, "graph")
    algorithms, auto = _algorithms(layers, assignments or {}, default, with_auto)
    options = tuple(make_options(**run, seed=seed) for seed in seeds)
    return Experiment(data, model or "mlp", algorithms, graph, options, auto)


def _merged(layers: Sequence[Layer], section: str) -> dict[str, Any]:
    return {key: value for layer in layers for key, value in layer.get(section, {}).items()}


def _name_of(layers: Sequence[Layer], section: str) -> str | None:
    found = _merged(layers, section)
    for key in found:
        if key != "name":
            raise unknown(f"key in [{section}]", key, ["name", "file"] if section == "graph" else ["name"])
    name = found.get("name")
    if isinstance(name, list):
        raise FedkinError(f"[{section}] name = {name} names several; fedkin tune tries them, run takes one")
    if name is not None and not isinstance(name, str):
        raise FedkinError(f"[{section}] name is {name!r}; it must be text")
    return name


def _data(layers: Sequence[Layer]) -> NamedData | OwnTable:
    """A layer that names other data keeps of the layers below what the new data also has."""
    found: dict[str, Any] = {}
    for layer in layers:
        new = layer.get("data", {})
        if not isinstance(new.get("name", ""), str):
            raise FedkinError(f"[data] name is {new['name']!r}; it must be text, the name of a data set")
        if "name" in new and new["name"] != found.get("name"):
            common = (OwnTable if new["name"] == "csv" else NamedData).model_fields
            found = {key: value for key, value in found.items() if key in common}
        found |= new
    if "name" not in found:
        raise FedkinError("no data; name a set with --data (see fedkin data list) or a table of your own with --csv")
    kind = OwnTable if found["name"] == "csv" else NamedData
    if kind is OwnTable:
        for key in ("client", "target"):
            if key not in found:
                raise FedkinError(f"which column holds the {key}? name it with --{key} COLUMN")
        known = [*OwnTable.model_fields]
    else:
        from fedkin.data import info

        known = [*NamedData.model_fields, *info(found["name"])["options"]]
    for key in found:
        if key not in known:
            raise unknown(f"key in [data] of {found['name']!r}", key, known)
    try:
        return kind(**found)
    except ValidationError as problem:
        from fedkin.errors import first_fault

        raise FedkinError(first_fault("data", problem)) from problem


def _algorithms(
    layers: Sequence[Layer], assignments: Mapping[str, Any], default: Sequence[str], with_auto: bool
) -> tuple[dict[str, Algorithm], Auto | None]:
    """The chosen algorithms, and auto: parameters from [training], then from their own sections, then from --set."""
    from fedkin import algorithms
    from fedkin.portfolio.contender import Auto
    from fedkin.tuning.space import refuse_lists

    chosen, own = _chosen(layers, default)
    training = _training(layers)
    auto = with_auto and Auto.name in chosen
    methods = [name for name in chosen if not auto or name != Auto.name]
    spared = {name for name in methods if algorithms.get(name).own_rate}
    given = {name: {**_meant_for(name, training, spared), **own.get(name, {})} for name in chosen}
    fields = {name: list(algorithms.get(name).model_fields) for name in methods}
    if auto:
        fields[Auto.name] = list(Auto.model_fields)
    for key, value in assignments.items():
        parameter = key.rpartition(".")[2]
        meant = _meant(key, fields)
        others = [name for name in meant if name not in spared or parameter not in RATE]
        if parameter == "robust":  # what mixes no rows has nothing to guard
            others = [name for name in others if name != Auto.name and algorithms.get(name).couples]
        for name in others or meant:  # a method alone is meant
            given[name][parameter] = value
    for name in methods:
        refuse_lists(algorithms.get(name), given[name])
    return {name: algorithms.make(name, given[name]) for name in methods}, Auto(**given[Auto.name]) if auto else None


def search(layers: Sequence[Layer], assignments: Mapping[str, Any]) -> tuple[list[Layer], dict[str, OneOf | Between]]:
    """Layers for `settle`, of one method, and apart from them what they and `--set` ask to search.

    Lists and ranges of parameters, and lists of names in [model] and [graph].
    """
    from fedkin import algorithms
    from fedkin.tuning.space import apart, searched

    chosen, own = _chosen(layers, ("fedavg",))
    if len(chosen) > 1:
        raise FedkinError(f"{', '.join(chosen)} are several methods; tune one at a time: --algorithm {chosen[0]}")
    method = algorithms.get(chosen[0])
    spared = {chosen[0]} if method.own_rate else set()
    given = {**_meant_for(chosen[0], _training(layers), spared), **own.get(chosen[0], {})}
    fields = {chosen[0]: list(method.model_fields)}
    for key, value in assignments.items():
        _meant(key, fields)
        given[key.rpartition(".")[2]] = value
    fixed, space = apart(method, given)
    parts: dict[str, dict[str, Any]] = {"model": {}, "graph": {}}
    for part, section in parts.items():
        section |= _merged(layers, part)
        if isinstance(section.get("name"), list) and (found := searched(part, section["name"], None)):
            space[part] = found
            del section["name"]
    kept = [{key: layer[key] for key in ("data", "run") if key in layer} for layer in layers]
    return [*kept, {**parts, "algorithm": {"name": chosen[0], **fixed}}], space


def _meant_for(name: str, training: Mapping[str, Any], spared: set[str]) -> dict[str, Any]:
    """What [training] has to say to a method: of rates nothing, where its own means something else."""
    return {key: value for key, value in training.items() if name not in spared or key not in RATE}


def _chosen(layers: Sequence[Layer], default: Sequence[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """The algorithms that the last layer to name any names, and what all layers say of each: name → parameters."""
    chosen: list[str] = list(default)
    own: dict[str, dict[str, Any]] = {}
    for layer in layers:
        sections = _sections(layer)
        chosen = list(sections) or chosen
        for name, parameters in sections.items():
            own[name] = {**own.get(name, {}), **parameters}
    return chosen, own


def _sections(layer: Layer) -> dict[str, dict[str, Any]]:
    """[algorithm] and every [algorithms.NAME] of a layer: name → parameters."""
    several = {name: dict(_a_section(name, own)) for name, own in layer.get("algorithms", {}).items()}
    if not layer.get("algorithm"):
        return several
    single = dict(layer["algorithm"])
    if "name" not in single:
        raise FedkinError("[algorithm] has no name; add one, for example name = 'fedavg'")
    return {str(single.pop("name")): single} | several


def _training(layers: Sequence[Layer]) -> dict[str, Any]:
    from fedkin.local.sgd import Sgd, by_field

    training = by_field(_merged(layers, "training"))
    for key in training:
        if key not in Sgd.model_fields:
            raise unknown("key in [training]", key, list(Sgd.model_fields))
    return training


def _meant(key: str, fields: Mapping[str, Sequence[str]]) -> list[str]:
    """Whom `--set key=…` is for: "fedprox.mu" for one, "lr" for all (of `fields`: name → parameters) that have it."""
    only, dot, parameter = key.rpartition(".")
    if dot and only not in fields:
        raise unknown("method in --set", only, list(fields))
    having = [only] if dot else [name for name, own in fields.items() if parameter in (*own, "schedule")]
    if not having:
        everything = sorted({field for own in fields.values() for field in own})
        raise unknown(f"parameter of {', '.join(fields)}", parameter, everything)
    return having


def _a_section(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise FedkinError(f"[algorithms] {name} must be a section of parameters, written [algorithms.{name}]")
    return value


def origins(layers: Mapping[str, Layer], section: str) -> dict[str, str]:
    """Which layer ("file", "flag") had the last word on each key of a section."""
    return {key: source for source, layer in layers.items() for key in layer.get(section, {})}
