"""fedkin demo: auto beside Local, FedAvg with fine-tuning and the five systems, on embedded data: a table and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedkin.commands import flags
from fedkin.commands.compare import finish_comparison, run_comparison

DEMO: dict[str, dict[str, Any]] = {
    "data": {"name": "digits", "clients": 20, "partition": "dirichlet:0.3"},
    "model": {"name": "feature-mlp:32"},
    "training": {"lr": 0.2, "steps": 10},
    "algorithms": {
        **{name: {} for name in ("local", "fedavgft", "fedpnp", "fedu", "fedcedar", "fedska", "fedrelax")},
        "auto": {"effort": "quick"},
    },
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
    """auto beside seven methods on real handwritten digits over 20 unequal clients: a table and a report. No download.

    \b
    Examples:
      fedkin demo
      fedkin demo --seeds 1 --rounds 10 --out /tmp/demo --json demo.json
    """
    from fedkin import config
    from fedkin.commands import show
    from fedkin.compute.threads import one_thread

    layers = [DEMO, flags.layer(seed=seed, seeds=seeds, rounds=rounds)]
    settings = config.settle(layers, with_auto=True)
    show.say("scikit-learn's digits over 20 clients, labels split by Dirichlet(0.3)")
    with one_thread():
        comparison = run_comparison(settings, skip_unfit=True)
    if comparison.finished:
        comparison.save(out)
    finish_comparison(comparison, settings, json)
    show.wrote(out)
    show.say(f"report: {comparison.report(out / 'report.html')}")
