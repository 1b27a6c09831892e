"""The command line. Commands live in `fedkin/commands`; here they get their names, and errors become one line.

Exit codes: 0 done, 1 a fault of ours, 2 bad input (one line says what and how to mend it), 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from operator import attrgetter
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import fedkin
from fedkin.commands import (
    algorithms,
    attack,
    auto,
    compare,
    data,
    demo,
    deploy,
    graph,
    predict,
    privacy,
    report,
    reproduce,
    run,
    runs,
    tune,
)
from fedkin.errors import FedkinError


class OneLineErrors(TyperGroup):
    """The whole command line: whatever goes wrong is said in one line on standard error."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = Parsed()

    def main(self, *args: Any, **options: Any) -> NoReturn:
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
        except FedkinError as problem:
            _refuse(str(problem))
        except (typer.Abort, KeyboardInterrupt):
            print("interrupted", file=sys.stderr)
            sys.exit(run.INTERRUPTED)
        except BrokenPipeError:
            sys.stderr.close()  # the reader (head, less) has gone; there is no one left to tell
            sys.exit(0)
        except OSError as problem:
            _refuse(f"{problem.filename or 'a file'}: {problem.strerror or problem}")
        except Exception as problem:
            # Usage errors of the parser, by what they can do: their class moved between versions of typer.
            if hasattr(problem, "format_message"):
                _refuse(problem.format_message())
            if os.environ.get("FEDKIN_DEBUG"):
                raise
            _refuse(f"{type(problem).__name__}: {problem} (a fault in fedkin; FEDKIN_DEBUG=1 shows where)", code=1)
        sys.exit(code if isinstance(code, int) else 0)


def _refuse(message: str, code: int = 2) -> NoReturn:
    print("error:", " ".join(message.split()), file=sys.stderr)
    sys.exit(code)


LOOKS: dict[str, Any] = {
    "rich_markup_mode": "rich",
    "pretty_exceptions_enable": False,
    "add_completion": False,
    "suggest_commands": False,
}
app = typer.Typer(cls=OneLineErrors, **LOOKS)


@app.callback(invoke_without_command=True)
def about(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="say the version and stop")] = False,
) -> None:
    """Graph-structured personalised federated learning: one model per client, related clients help each other.

    \b
    Start here:
      fedkin demo                                every method, table and report
      fedkin auto --data digits --clients 20     the best model for every client
      fedkin compare --data digits --clients 20  who does best, who gains
      fedkin algorithms fedprox                  a method and its parameters
    """
    if version:
        print(f"fedkin {fedkin.__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


COMMANDS = (
    demo.demo,
    auto.auto,
    auto.join,
    run.run,
    compare.compare,
    tune.tune,
    attack.attack,
    run.resume,
    report.report,
    predict.predict,
    runs.runs,
    privacy.privacy,
    reproduce.reproduce,
    algorithms.algorithms,
)
GROUPS = {"data": data.app, "graph": graph.app, "deploy": deploy.app}


class Parsed(dict[str, Any]):
    """The commands by name. A parser is made when it is asked for: those of all others would take longer than a small run."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys([*map(attrgetter("__name__"), COMMANDS), *GROUPS]))

    def __getitem__(self, name: str) -> Any:
        made = super().__getitem__(name)
        if made is None:
            alone = typer.Typer(**LOOKS)
            alone.callback()(about)  # or typer would take the only command for the whole
            if name in GROUPS:
                alone.add_typer(GROUPS[name], name=name, no_args_is_help=False)
            for command in COMMANDS:
                if command.__name__ == name:
                    alone.command()(command)
            made = typer.main.get_command(alone).commands[name]  # type: ignore[attr-defined]
            self[name] = made
        return made

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def values(self) -> Any:
        return [self[name] for name in self]

    def items(self) -> Any:
        return [(name, self[name]) for name in self]


def main() -> None:
    """The entry point of the `fedkin` script."""
    app(prog_name="fedkin")
