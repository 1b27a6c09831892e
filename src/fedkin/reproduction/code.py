"""The version of the code that matters for a cell: its method, its data, and everything these import.

Comments, docstrings and layout do not count, nor do modules that only talk to the user. Where this has changed,
`fedkin.reproduction.behaviour` tells whether what the code does has.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SPEECH = ("errors", "files", "callbacks", "history", "checkpoint", "reports", "commands", "cli", "config", "compare")
"""Rooms of fedkin that change no number."""
FASTER = "fedkin.local.kernels"
"""Ways to compute the same gradients: the tests hold every kernel to the plain loop, so a faster one changes no cell."""
LOOP = ("fedkin.run", "fedkin.result.summary", "fedkin.engines.in_process")


def version(settings: Mapping[str, Any]) -> str:
    """A short hash of the source that these settings (see `Table.settings`) run through."""
    if "function" in settings:
        roots = {settings["function"].partition(":")[0]}
    else:
        from fedkin.data.registry import get

        roots = {f"fedkin.algorithms.{settings['algorithm']}", get(settings["data"]["name"]).build.__module__}
        roots |= {"fedkin.models.spec", "fedkin.data.federate", *LOOP}
    return _hash(roots)


def data_version(name: str) -> str:
    """A short hash of the source that makes the clients of a data set: its reader and the partitions."""
    from fedkin.data.registry import get

    return _hash({get(name).build.__module__, "fedkin.data.federate"}, within=("fedkin.data",))


def source(module: str) -> str:
    """A hash of the source of one module."""
    found = _read(module)
    return "" if found is None else found[1]


def _hash(roots: set[str], within: tuple[str, ...] = ("fedkin",)) -> str:
    """A short hash of the source of these modules and of all that they import."""
    seen: dict[str, str] = {}
    waiting = sorted(roots)
    while waiting:
        module = waiting.pop()
        silent = module.removeprefix("fedkin.").split(".")[0] in SPEECH or module.startswith(FASTER)
        source = None if module in seen or silent or not module.startswith(within) else _read(module)
        if source is not None:
            imported, seen[module] = source
            if module != "fedkin.run":  # it knows every method; what a cell needs of it comes from the other roots
                waiting += imported
    text = "\n".join(f"{module} {seen[module]}" for module in sorted(seen))
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


@cache
def _read(module: str) -> tuple[tuple[str, ...], str] | None:
    """What a module of fedkin imports, and a hash of its source; None for names that are no modules."""
    try:
        spec = find_spec(module)
    except (ModuleNotFoundError, ValueError):
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [entry for entry in body if not _is_text(entry)]  # type: ignore[attr-defined]
    imported = tuple(sorted(set(_imported(tree))))
    return imported, hashlib.blake2b(ast.dump(tree).encode(), digest_size=12).hexdigest()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _imported(tree: ast.Module) -> Iterator[str]:
    """The modules of fedkin that a module imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.startswith("fedkin."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedkin"):
            if node.module != "fedkin":
                yield str(node.module)
            yield from (f"{node.module}.{name.name}" for name in node.names)
