"""fedkin demo: every method on embedded data, a table and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedkin.commands import flags
from fedkin.commands.compare import finish, run_comparison

SETTINGS: dict[str, dict[str, Any]] = {
    "data": {"name": "digits", "clients": 20, "partition": "dirichlet:0.3"},
    "model": {"name": "feature-mlp:32"},
    "training": {"lr": 0.2},
    "run": {"rounds": 30, "seeds": 3, "eval_every": 5},
}


def demo(
    out: Annotated[Path, typer.Option("--out", help="folder for the runs and the report", metavar="DIR")] = Path(
        "fedkin-demo"
    ),
    seed: flags.Seed = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="how many seeds (default: 3)", show_default=False)
    ] = None,
    rounds: flags.Rounds = None,
    json: flags.Json = None,
) -> None:
    """Every method on real handwritten digits over 20 unequal clients: a table and a report. No download.

    \b
    Examples:
      fedkin demo
      fedkin demo --seeds 1 --rounds 10 --out /tmp/demo --json demo.json
    """
    from fedkin import config
    from fedkin.algorithms import names
    from fedkin.commands import show
    from fedkin.commands.report import write
    from fedkin.threads import one_thread

    layers = [SETTINGS, flags.layer(seed=seed, seeds=seeds, rounds=rounds)]
    settings = config.settle(layers, default=names())
    show.say("scikit-learn's digits over 20 clients, labels split by Dirichlet(0.3)")
    with one_thread():
        comparison = run_comparison(settings, skip_unfit=True)
    if comparison.finished:
        comparison.save(out)
    finish(comparison, settings, json)
    show.wrote(out)
    show.say(f"report: {write(list(comparison.results), out / 'report.html')}")
