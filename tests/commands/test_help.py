"""The help of every command: examples that fit a terminal of 80 columns, and a way out for programs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from fedkin.cli import app

NO_NUMBERS = {
    "deploy add-site",
    "deploy remove-site",
    "deploy port",
    "deploy certificates",
    "deploy key",
    "graph convert",
}
"""What they do is files and one line; there is nothing to tell a program."""


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


ALL = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", ALL)
def test_examples_are_of_the_command_and_fit(name: str) -> None:
    examples = re.findall(rf"^ *(fedkin {name}\b.*)$", ALL[name].help, re.MULTILINE)
    assert examples
    assert [example for example in examples if len(example) > 76] == []


@pytest.mark.parametrize("name", sorted(set(ALL) - NO_NUMBERS))
def test_a_program_can_read_what_was_found(name: str) -> None:
    assert "--json" in {flag for parameter in ALL[name].params for flag in parameter.opts}


@pytest.mark.parametrize("name", ALL)
def test_arguments_say_what_they_are(name: str) -> None:
    """Not so with typer 0.20 and click 8.5, which the extra "flower" therefore keeps apart."""
    arguments = [parameter for parameter in ALL[name].params if parameter.param_type_name == "argument"]
    assert [argument.name for argument in arguments if not argument.help] == []
