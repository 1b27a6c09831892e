"""The methods, one file each. A new file here is a new method: nothing else needs editing. What methods share may stand
beside them in files whose names begin with an underscore.

`fedkin.algorithms.FedAvg`, or by the name used on the command line: `fedkin.algorithms.get("fedavg")`.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from fedkin import plugins
from fedkin.errors import FedkinError

if TYPE_CHECKING:
    from fedkin.algorithm import Algorithm


def names() -> list[str]:
    """The names of all methods in this package, found by file name without importing them (`_parts.py` is no method)."""
    return sorted([module.name for module in iter_modules(__path__) if not module.name.startswith("_")])


_PATHS: dict[type[Algorithm], str] = {}
"""Methods that were asked for as `package.module:Class`."""


def get(name: str) -> type[Algorithm]:
    """The method with this command-line name: one of this package, a user's own subclass of `Algorithm`, that of an
    installed package, or `package.module:Class` (see fedkin.plugins)."""
    from fedkin.algorithm import Algorithm

    if name in names():
        import_module(f"{__name__}.{name}")
        return Algorithm.registry[name]
    found = plugins.find("algorithm", name, Algorithm.registry, also=names())
    if not (isinstance(found, type) and issubclass(found, Algorithm) and found.name):
        raise FedkinError(f"algorithm {name!r} is no method: it must be a subclass of fedkin's Algorithm with a name")
    if plugins.is_path(name):
        _PATHS[found] = name
    return found


def name_of(method: type[Algorithm]) -> str:
    """The name by which another process finds a method: its own, or the `package.module:Class` it was asked for by."""
    return _PATHS.get(method, method.name)


def every() -> dict[str, type[Algorithm]]:
    """All methods by name: those of this package and those of installed ones."""
    from fedkin.algorithm import Algorithm

    own = {name: get(name) for name in names()}
    return own | plugins.every_plugin("algorithm", Algorithm.registry, get)


def make(name: str, parameters: dict[str, Any] | None = None) -> Algorithm:
    """A method with these parameters; a wrong one is refused with its name, its value and what is allowed.

    >>> make("fedprox", {"mu": 0.1})  # doctest: +ELLIPSIS
    FedProx(... mu=0.1)
    """
    return get(name)(**(parameters or {}))


def method_of(given: Algorithm | type[Algorithm] | str) -> Algorithm:
    """A method from an object, from its class (with its defaults) or from its name.

    >>> method_of("fedavg") == method_of(get("fedavg")) == get("fedavg")()
    True
    """
    from fedkin.algorithm import Algorithm

    if isinstance(given, str):
        return make(given)
    found = given() if isinstance(given, type) and issubclass(given, Algorithm) else given
    if not isinstance(found, Algorithm):
        raise FedkinError(f"{given!r} is no method; give one such as FedAvg(), or a name such as 'fedavg'")
    return found


def with_parameters(method: Algorithm, **changed: Any) -> Algorithm:
    """The method with some parameters changed, checked as if all had been given."""
    given = {name: getattr(method, name) for name in method.model_fields_set}
    return type(method)(**{**given, **changed})


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    for method in names():
        found = get(method)
        if found.__name__ == name:
            return found
    raise AttributeError(f"fedkin.algorithms has no method {name!r}; it has {', '.join(__dir__())}")


def __dir__() -> list[str]:
    return sorted(get(name).__name__ for name in names())
