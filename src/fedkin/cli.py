"""The command line. Commands live in `fedkin/commands`; here they get their names, and errors become one line.

Exit codes: 0 done, 1 a fault of ours, 2 bad input (one line says what and how to mend it), 130 interrupted.
"""

from __future__ import annotations

import os
import sys
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


app = typer.Typer(
    cls=OneLineErrors,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    suggest_commands=False,
)


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
)
for command in (*COMMANDS, algorithms.algorithms):
    app.command()(command)
app.add_typer(data.app, name="data", no_args_is_help=False)
app.add_typer(graph.app, name="graph", no_args_is_help=False)
app.add_typer(deploy.app, name="deploy", no_args_is_help=False)


def main() -> None:
    """The entry point of the `fedkin` script."""
    app(prog_name="fedkin")
