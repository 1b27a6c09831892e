"""auto for models that share no weights: a third of the clients has forests, a third ridge regressions, a third trees.

    python benchmarks/auto_mixed.py --seeds 3

A line of a Markdown table per federation: mean and worst 5 % of the clients' own estimators, of the mean of everybody's, and of auto; how many
clients are significantly worse than their own (than both fits of it, with two seeds), and the same for the second fit.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from auto import Scores, line
from auto_cases import CASES

from fedkin import Federation, Result
from fedkin import auto as find
from fedkin.result.blended import Blends

MODELS = ("forest:50", "ridge", "tree")
FEDERATIONS = (
    "tabular, 4 contrary kinds (40)",
    "clustered regression (45)",
    "heart (4 hospitals)",
    "wisdm (36 people)",
)


def scores_of(models: Blends, federation: Federation) -> Scores:
    """As benchmarks/auto.py has them, per client and test sample."""
    found = []
    for k, name in enumerate(federation.names):
        x, y = federation.test[k]
        said = models[name].predict(x.reshape(len(x), -1))
        found.append((said == y).astype(float) if models.classes else -((said - y.reshape(said.shape)) ** 2))
    return found


def with_weights(result: Result, weights: torch.Tensor) -> Blends:
    """The same estimators under other weights (K, K)."""
    kept: Any = result.models
    return Blends(kept.names, kept.fitted, weights, kept.sizes, kept.classes)


def measured(name: str, seeds: int) -> dict[str, Any]:
    case = next(case for case in CASES if case.name == name)
    rows: dict[str, list[dict[str, Any]]] = {}
    for seed in range(seeds):
        federation = case.make(seed)
        models = {client: MODELS[k % len(MODELS)] for k, client in enumerate(federation.names)}
        result, again = (find(federation, models, seed=own) for own in (seed, seed + 1000))
        size = len(federation)
        own, mean = torch.eye(size, dtype=torch.float64), torch.full((size, size), 1 / size, dtype=torch.float64)
        locals_ = [scores_of(with_weights(each, own), federation) for each in (result, again)]
        told = {
            "own": locals_[0],
            "second fit": locals_[1],
            "mean of all": scores_of(with_weights(result, mean), federation),
            "auto": scores_of(with_weights(result, result.extras["blend_weights"]), federation),
        }
        for key, found in told.items():
            rows.setdefault(key, []).append(line(federation, found, locals_))
    averaged = {key: {what: float(np.mean([r[what] for r in runs])) for what in runs[0]} for key, runs in rows.items()}
    return {"classes": federation.task.kind == "classification", **averaged}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[""], help="federations whose name holds one of these texts")
    options = parser.parse_args()
    print("| federation | own | mean of all | auto | worse than own (both) | second fit |\n|---|---|---|---|---|---|")
    for name in FEDERATIONS:
        if not any(text in name for text in options.only):
            continue
        told = measured(name, options.seeds)

        def cell(key: str, told: dict[str, Any] = told) -> str:
            mean, worst = told[key]["mean"], told[key]["worst5"]
            return f"{100 * mean:.1f}/{100 * worst:.1f}" if told["classes"] else f"{mean:.3f}/{worst:.3f}"

        harm = f"{told['auto']['worse']:.2g} ({told['auto']['worse_both']:.2g})"
        cells = [name, *map(cell, ("own", "mean of all", "auto")), harm, f"{told['second fit']['worse']:.2g}"]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
