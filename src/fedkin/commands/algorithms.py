"""fedkin algorithms: the methods and their parameters."""

from __future__ import annotations

import inspect
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedkin.commands import flags

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from fedkin.algorithm import Algorithm


def algorithms(
    name: Annotated[str | None, typer.Argument(help="a method; all of them without", show_default=False)] = None,
    json: flags.Json = None,
) -> None:
    """List the methods, or the parameters of one.

    \b
    Examples:
      fedkin algorithms
      fedkin algorithms fedprox
      fedkin algorithms --json methods.json
    """
    from fedkin import algorithms as methods
    from fedkin.commands import show
    from fedkin.files import write_json

    with show.warnings():
        chosen = [methods.get(name)] if name else methods.every().values()
    described = [describe_algorithm(each) for each in chosen]
    screen = show.console()
    if name:
        entry = described[0]
        show.say(f"{entry['title']}: {entry['summary']}", "", entry["text"], "")
        found = show.table("parameter", "default", "allowed", "meaning")
        for column in found.columns[1:]:
            column.justify = "left"
        found.columns[3].no_wrap = False
        for parameter in entry["parameters"]:
            found.add_row(*(str(parameter[key]) for key in ("name", "default", "allowed", "description")))
        screen.print(found)
    else:
        found = show.table("name", "title", "what it does", "reference")
        for column in found.columns[1:]:
            column.justify, column.no_wrap = "left", False
        for entry in described:
            found.add_row(entry["name"], entry["title"], entry["summary"], entry["reference"] or "")
        screen.print(found)
    if json is not None:
        write_json(json, described[0] if name else {"algorithms": described})
    show.wrote(json)


def describe_algorithm(method: type[Algorithm]) -> dict[str, Any]:
    """A method as plain values: name, title, one line, reference, graph, parameters."""
    summary = inspect.getdoc(sys.modules[method.__module__]) or inspect.getdoc(method) or ""
    return {
        "name": method.name,
        "title": method.title,
        "summary": summary.split("\n")[0].partition(": ")[2] or summary.split("\n")[0],
        "text": inspect.getdoc(method) or "",
        "reference": reference(method),
        "deploys": method.deploys,
        "graph": method.graph_spec,
        "parameters": [_parameter(name, field) for name, field in method.model_fields.items()],
    }


def reference(method: type[Algorithm]) -> str | None:
    """The papers, from the "Reference:" or "References:" of the docstring of the method, or of the method it builds on."""
    for owner in method.__mro__:
        text = " ".join((owner.__doc__ or "").split())
        if found := re.search(r"References?: (.*)", text):
            return found[1].strip()
    return None


def _parameter(name: str, field: FieldInfo) -> dict[str, Any]:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {getattr(limit, key):g}"
        for limit in field.metadata
        for key, sign in signs.items()
        if getattr(limit, key, None) is not None
    ]
    kind = field.annotation.__name__ if isinstance(field.annotation, type) else str(field.annotation)
    kind = kind.replace("typing.", "").replace("Literal", "one of ")
    return {
        "name": name,
        "default": field.get_default(call_default_factory=True),
        "type": kind,
        "allowed": ", ".join([kind, *bounds]),
        "description": field.description or "",
    }
