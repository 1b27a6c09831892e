"""Does the metric change the choice of method? Plain loss by accuracy, beside class-weighted loss by AUROC.

    python benchmarks/metrics_choice.py               measures, and writes metrics_choice.json here
    python benchmarks/metrics_choice.py --show        prints the table for docs/learning.md from the JSON

Two real sets (heart: 4 hospitals, wisdm: people with a telephone) and a made table with 4 % positives. The method is chosen
by the mean over clients and seeds on validation samples; what is told of it is measured on test samples. Its lead over the next
is told with the standard error over seeds (every seed draws the split and the weights anew), both methods on the same splits.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedkin import Federation, algorithms, compare, data
from fedkin.files import versions, write_json
from fedkin.task.metrics import find_metric

HERE = Path(__file__).resolve().parent
METHODS = ("local", "fedavg", "fedavgft", "fedpnp", "fedu", "ditto")
TRAINING: dict[str, Any] = {"lr": 0.1, "steps": 10, "batch_size": 32}
ROUNDS, SEEDS = 20, (0, 1, 2, 3, 4)
METRICS = ("accuracy", "auroc")
WAYS: dict[str, dict[str, Any]] = {
    "plain loss, by accuracy": {"headline": "accuracy"},
    "weighted loss, by AUROC": {"headline": "auroc", "class_weight": "balanced"},
}


def rare(seed: int, clinics: int = 12, patients: int = 400) -> Federation:
    """A made table: 12 clinics of two sorts, which differ in three of eight effects; about 4 % of patients are positive."""
    rng = np.random.default_rng([seed, 4])
    common, sort = rng.normal(size=8), rng.normal(size=(2, 3))
    tables = []
    for k in range(clinics):
        x = rng.normal(size=(patients, 8))
        effect = np.concatenate([common[:5], sort[k % 2]])
        score = x @ effect / np.linalg.norm(effect) + 0.5 * rng.normal(size=patients)
        y = (score > np.quantile(score, 1 - rng.uniform(0.025, 0.055))).astype(int)
        table = pd.DataFrame(x, columns=[f"x{j}" for j in range(8)])
        tables.append(table.assign(clinic=f"clinic {k + 1}", ill=y))
    return Federation.from_frame(pd.concat(tables), "clinic", "ill", validation_fraction=0.25, seed=seed)


def load(name: str, seed: int) -> Federation:
    return rare(seed) if name == "made" else data.load(name, seed=seed, validation_fraction=0.25)


SETS = {"heart": "mlp:16", "wisdm": "mlp:32", "made": "mlp:16"}


def measure(name: str, way: str) -> dict[str, dict[str, Any]]:
    """Per method and seed, the mean over clients of both metrics, on validation and on test samples."""
    made = [algorithms.make(method, TRAINING) for method in METHODS]
    options = {"metrics": METRICS, "rounds": ROUNDS, "eval_every": ROUNDS, **WAYS[way]}
    found = compare(lambda seed: load(name, seed), SETS[name], made, SEEDS, **options)
    lines: dict[str, dict[str, Any]] = {}
    for method in METHODS:
        finals = [result.metrics["deployed"] for result in found.results if result.algorithm == method]
        keys = [f"{part}_{metric}" for part in ("validation", "test") for metric in METRICS]
        values = {key: np.array([final[key] for final in finals], dtype=float) for key in keys}  # (seeds, clients)
        lines[method] = {key: np.nanmean(value, axis=1).tolist() for key, value in values.items()}
        lines[method]["valued"] = int(np.isfinite(values["test_auroc"]).sum())
        lines[method]["clients"] = int(values["test_auroc"].size)
    return lines


def chosen(lines: dict[str, dict[str, Any]], headline: str) -> tuple[str, float, float]:
    """The method that is best on validation samples (of equals the first), its lead over the next, and the lead's standard error."""
    sign = 1 if find_metric(headline).larger_is_better else -1
    scores = {method: sign * np.array(own[f"validation_{headline}"]) for method, own in lines.items()}
    first, second = sorted(scores, key=lambda method: -float(scores[method].mean()))[:2]
    lead = scores[first] - scores[second]
    return first, float(lead.mean()), float(lead.std(ddof=1) / np.sqrt(len(lead)))


HEAD = ("Data", "Chosen", "Method", "Ahead of the next, validation", "Test accuracy", "Test AUROC", "Have an AUROC")


def table(found: dict[str, Any]) -> str:
    """The choices as a Markdown table, in % and points."""
    rows = [HEAD, ("---",) * len(HEAD)]
    for name, ways in found["sets"].items():
        for way, lines in ways.items():
            method, ahead, error = chosen(lines, WAYS[way]["headline"])
            own = lines[method]
            tested = (f"{100 * np.mean(own[f'test_{metric}']):.1f}" for metric in METRICS)
            rows.append(
                (
                    name,
                    way,
                    method,
                    f"{100 * ahead:.2f} ± {100 * error:.2f}",
                    *tested,
                    f"{own['valued']} of {own['clients']}",
                )
            )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--show", action="store_true", help="print the table of the JSON")
    asked.add_argument("--json", type=Path, default=HERE / "metrics_choice.json")
    given = asked.parse_args()
    if not given.show:
        sets = {name: {way: measure(name, way) for way in WAYS} for name in SETS}
        how = {"rounds": ROUNDS, "seeds": SEEDS, "training": TRAINING, "models": SETS}
        write_json(given.json, {"sets": sets, **how, "versions": versions()})
    print(table(json.loads(given.json.read_text())))


if __name__ == "__main__":
    main()
