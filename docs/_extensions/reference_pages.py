"""Pages of the reference that are made from the code when the site is built, under docs/reference/ (not in git)."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from pydantic import BaseModel
from sphinx.application import Sphinx

import fedkin
from fedkin import algorithms
from fedkin.cli import app as commands
from fedkin.commands.algorithms import describe_algorithm
from fedkin.config import NamedData, OwnTable
from fedkin.engines.flower.policy import Policy
from fedkin.engines.flower.roll import FederationSettings
from fedkin.engines.flower.site_file import SiteFile
from fedkin.run.options import Options

SETTINGS = {
    "[data] of a named set": NamedData,
    "[data] of your own table": OwnTable,
    "[run]": Options,
    "federation.toml, the server of a deployment": FederationSettings,
    "site.toml, one site": SiteFile,
    "[policy] of site.toml": Policy,
}
API = {
    "Train and decide": ("train", "auto", "compare", "tune", "resume", "load", "join", "predict"),
    "What they give": ("Result", "Comparison"),
    "What they take": ("Federation", "ClientGraph", "Task", "Options", "Callback", "Algorithm"),
    "Your own parts": ("loss", "metric", "FedkinError"),
}
"""The public names by what they are for; `everything_public` sees that none is left out."""


def everything_public() -> tuple[set[str], set[str]]:
    """(modules, other names) that `fedkin/__init__.pyi` lists."""
    stub = Path(fedkin.__file__).with_suffix(".pyi").read_text()
    listed = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    modules = {name.name for node in listed if node.module == "fedkin" for name in node.names}
    return modules, {name.asname or name.name for node in listed for name in node.names} - modules


def cell(text: Any) -> str:
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(map(cell, row))} |" for row in rows)
    yield ""


def usage(command: Any, path: str, level: int = 2) -> Iterator[str]:
    """A command, its arguments and options, and the commands below it."""
    yield from (f"{'#' * level} {path}", "")
    about = inspect.cleandoc(command.help or "").replace("\b\n", "")
    words, _, examples = about.partition("Examples:")
    yield from (words.strip(), "")
    if examples.strip():
        yield from (
            "```console",
            *(f"$ {line.strip()}" for line in examples.strip().splitlines() if line.strip()),
            "```",
            "",
        )
    shown = [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
    if shown:
        named = [
            (f"`{', '.join(p.opts) if p.param_type_name == 'option' else p.human_readable_name}`", p.help or "")
            for p in shown
        ]
        yield from table(("option", "meaning"), named)
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from usage(below, f"{path} {name}", level + 1 if level > 2 or path == "fedkin" else level)


def cli() -> Iterator[str]:
    yield from (
        "# Commands",
        "",
        "Exit codes: 0 done, 1 a fault of ours, 2 bad input (one line says what and how to mend it),",
        "130 interrupted.",
        "",
    )
    whole = typer.main.get_command(commands)
    for name, command in sorted(whole.commands.items()):  # type: ignore[attr-defined]
        yield from usage(command, f"fedkin {name}")


def keys(model: type[BaseModel]) -> list[tuple[Any, ...]]:
    found = []
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else f"`{field.get_default(call_default_factory=True)!r}`"
        found.append((f"`{name}`", default, field.description or ""))
    return found


def toml() -> Iterator[str]:
    yield from ("# Settings files", "", inspect.getdoc(inspect.getmodule(NamedData)) or "", "")
    for title, model in SETTINGS.items():
        yield from (f"## {title}", "", inspect.cleandoc(vars(model).get("__doc__") or ""), "")
        yield from table(("key", "default", "meaning"), keys(model))


def methods() -> Iterator[str]:
    yield from ("# Methods and their parameters", "", "As `fedkin algorithms NAME` shows them.", "")
    for method in algorithms.every().values():
        entry = describe_algorithm(method)
        yield from (f"## {entry['title']} (`{entry['name']}`)", "", cell(entry["summary"]), "")
        if entry["reference"]:
            yield from (f"Reference: {cell(entry['reference'])}", "")
        rows = [(f"`{p['name']}`", f"`{p['default']}`", p["allowed"], p["description"]) for p in entry["parameters"]]
        yield from table(("parameter", "default", "allowed", "meaning"), rows)


def api() -> Iterator[str]:
    modules, names = everything_public()
    grouped = {name for group in API.values() for name in group}
    if lost := (grouped ^ names) - {"theory"}:
        raise ValueError(f"docs/_extensions/reference_pages.py groups other names than fedkin lists: {sorted(lost)}")
    yield from ("# Python", "", "Everything here is imported from `fedkin`; it is listed in `fedkin/__init__.pyi`.", "")
    for title, group in API.items():
        yield from (f"## {title}", "")
        for name in group:
            kind = "autoclass" if inspect.isclass(getattr(fedkin, name)) else "autofunction"
            members = ["   :members:"] if kind == "autoclass" and name not in ("Options", "FedkinError") else []
            yield from ("```{eval-rst}", f".. {kind}:: fedkin.{name}", *members, "```", "")
    yield from ("## Modules", "")
    rows = [
        (f"`fedkin.{name}`", (inspect.getdoc(getattr(fedkin, name)) or "").split("\n")[0]) for name in sorted(modules)
    ]
    yield from table(("module", "what it has"), rows)


PAGES = {"commands": cli, "settings": toml, "parameters": methods, "python": api}


def write_pages(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        text = "\n".join(page()) + "\n"
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:  # an unchanged page is not built again
            path.write_text(text)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", write_pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
