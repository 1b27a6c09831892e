"""Things of others by name: from the entry points of installed packages, or imported as `package.module:thing`.

A package announces what it adds under one entry-point group, in its pyproject.toml:

    [project.entry-points.fedkin]
    "algorithm.half" = "my_package.half:Half"   # KIND.NAME = an object
    everything = "my_package"                   # or a module that registers on import (@denoiser, @builder, @dataset, …)

Nothing of it is imported until a name is asked for that fedkin does not know, or a list is made.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import Any, TypeVar

from fedkin.errors import FedkinError, unknown

GROUP = "fedkin"
PLUGIN_KINDS = ("algorithm", "denoiser", "graph", "data set", "model", "loss", "metric", "engine")
"""What can be added. An entry point writes a hyphen for the space: "data-set.rings"."""

Thing = TypeVar("Thing")
_PATH = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?::(.*))?")


def find(kind: str, name: str, known: Mapping[str, Any], also: Iterable[str] = ()) -> Any:
    """The thing of this name: one of the `known`, one of an installed package, or `package.module:thing`.

    `also` are names that the caller understands itself; an error lists them. What is found outside `known` may be
    anything: the caller checks that it can be used.

    >>> find("number", "one", {"one": 1})
    1
    >>> find("function", "math:sqrt", {})(4.0)
    2.0
    """
    if name in known:
        return known[name]
    if name in _announced(kind):
        return _load(_announced(kind)[name])
    if is_path(name):
        return _imported(kind, name)
    broken = _register()
    if name in known:
        return known[name]
    refusal = unknown(kind, name, [*sorted({*known, *_announced(kind)}), *also])
    raise FedkinError("; ".join([str(refusal), *broken]))


def split_name(kind: str, spec: str, known: Collection[str]) -> tuple[str, str]:
    """A name and the option after it: "knn:5", or "package.module:thing:5".

    >>> split_name("graph", "knn:5", ["knn"]), split_name("graph", "my_package.roads:near:5", ["knn"])
    (('knn', '5'), ('my_package.roads:near', '5'))
    """
    first, _, option = spec.partition(":")
    path = _PATH.fullmatch(spec)
    if path is None or first in known or first in _announced(kind):
        return first, option
    _register()
    return (first, option) if first in known else (path[1], path[2] or "")


def is_path(name: str) -> bool:
    """Whether a name has the form `package.module:thing` (with or without an option after it)."""
    return _PATH.fullmatch(name) is not None


def plugin_names(kind: str, known: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of all things of a kind, those of installed packages last; a broken package gives a warning."""
    for line in _register():
        warnings.warn(line, stacklevel=2)
    return tuple(dict.fromkeys([*known, *_announced(kind)]))


def every_plugin(kind: str, known: Mapping[str, Any], get: Callable[[str], Thing]) -> dict[str, Thing]:
    """All things of a kind by name, in the order of their names; a broken one is left out with a warning."""
    found = {}
    for name in sorted(plugin_names(kind, known)):
        try:
            found[name] = get(name)
        except FedkinError as problem:
            if name in known:
                raise
            warnings.warn(str(problem), stacklevel=2)
    return found


@cache
def _points() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP))


def _kind_of(point: EntryPoint) -> str:
    """What an entry point announces by its name; "" for one that is imported for what it registers."""
    kind, dot, name = point.name.partition(".")
    kind = kind.replace("-", " ")
    return kind if dot and name and kind in PLUGIN_KINDS else ""


def _announced(kind: str) -> dict[str, EntryPoint]:
    return {point.name.partition(".")[2]: point for point in _points() if _kind_of(point) == kind}


@cache
def _register() -> tuple[str, ...]:
    """Import the modules that register on import, once; one line for each that is broken."""
    broken = []
    for point in _points():
        if not _kind_of(point):
            try:
                _load(point)
            except FedkinError as problem:
                broken.append(str(problem))
    return tuple(broken)


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as problem:
        package = point.dist.name if point.dist else "unknown package"
        raise FedkinError(
            f"plug-in {package}: its entry point {point.name} = {point.value} is broken: {_line(problem)}"
        ) from problem


def _imported(kind: str, path: str) -> Any:
    module, _, thing = path.partition(":")
    try:
        found = import_module(module)
    except ModuleNotFoundError as problem:
        absent = str(problem.name)
        hint = (
            "is its package installed, or on PYTHONPATH?" if f"{module}.".startswith(f"{absent}.") else _line(problem)
        )
        raise FedkinError(f"{kind} {path!r}: there is no module {absent!r}; {hint}") from problem
    except Exception as problem:
        raise FedkinError(f"{kind} {path!r}: importing {module!r} failed: {_line(problem)}") from problem
    try:
        return attrgetter(thing)(found)
    except AttributeError as problem:
        public = [name for name in vars(found) if not name.startswith("_")]
        raise unknown(f"name in {module}, for the {kind},", thing, public) from problem


def _line(problem: Exception) -> str:
    return " ".join(f"{type(problem).__name__}: {problem}".split())
