"""The methods, one file each. A new file here is a new method: nothing else needs editing. What methods share may stand
beside them in files whose names begin with an underscore.

`fedkin.algorithms.FedAvg`, or by the name used on the command line: `fedkin.algorithms.get("fedavg")`.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from fedkin.errors import unknown

if TYPE_CHECKING:
    from fedkin.algorithm import Algorithm


def names() -> list[str]:
    """The names of all methods in this package, found by file name without importing them (`_parts.py` is no method)."""
    return sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))


def get(name: str) -> type[Algorithm]:
    """The method with this command-line name: one of this package, or a user's own subclass of `Algorithm`."""
    from fedkin.algorithm import Algorithm

    if name in names():
        import_module(f"{__name__}.{name}")
    if name not in Algorithm.registry:
        raise unknown("algorithm", name, sorted({*names(), *Algorithm.registry}))
    return Algorithm.registry[name]


def make(name: str, parameters: dict[str, Any] | None = None) -> Algorithm:
    """A method with these parameters; a wrong one is refused with its name, its value and what is allowed.

    >>> make("fedprox", {"mu": 0.1})  # doctest: +ELLIPSIS
    FedProx(... mu=0.1)
    """
    return get(name)(**(parameters or {}))


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
