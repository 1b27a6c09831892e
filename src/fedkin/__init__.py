"""fedkin: graph-structured personalised federated learning.

One model per client; clients that are alike help each other through a graph. What is public is listed once, with its
types, in `__init__.pyi`; it is imported on first use (scientific Python's SPEC 1), so that `import fedkin` costs nothing
until training starts.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any


def _listed() -> dict[str, str]:
    """Public name → the module it is imported from."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = (line for line in stub.body if isinstance(line, ast.ImportFrom))
    return {alias.name: str(line.module) for line in imports for alias in line.names}


def _version() -> str:
    """As installed. Source that is only on the path, without an installation, has none."""
    from importlib.metadata import PackageNotFoundError, version  # as costly as the rest of the import

    try:
        return version("fedkin")
    except PackageNotFoundError:
        return "0+unknown"


_PUBLIC = _listed()
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fedkin' has no attribute {name!r}")
    home = _PUBLIC[name]
    if home == "fedkin":
        return import_module(f"fedkin.{name}")
    module = import_module(home)
    return getattr(module, name) if hasattr(module, name) else import_module(f"{home}.{name}")


def __dir__() -> list[str]:
    return __all__
