"""Judge a design of auto without the samples that judge it later: development federations, drawn or cut anew.

    python benchmarks/auto_design.py --only tabular METR --seeds 2      the design as it is
    python benchmarks/auto_design.py --only tabular METR --one-rate     FedAvg and Kin at the rate of training alone

Generated data and MNIST are drawn anew, with seeds that benchmarks/auto.py never uses. Of digits, HAR and METR-LA the test part is dropped and
a quarter of the training samples takes its place. A line is: accuracy or −MSE, its worst 5 %, the loss, and processor time
against one FedAvg run.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from auto import ROUNDS, trained
from auto_cases import CASES, Case

from fedkin import Federation, Result
from fedkin import auto as find
from fedkin.federation.folds import folded
from fedkin.portfolio.effort import EFFORTS
from fedkin.task.losses import loss_of

ANEW = ("tabular", "clustered", "MNIST")
SEEDS = 1000
"""Design begins at this seed."""


def without_its_test(case: Case, seed: int) -> Federation:
    """The federation of a new seed; where the data are the same for all seeds, tested on a quarter of what trains."""
    federation = case.make(SEEDS + seed)
    if case.name.startswith(ANEW):
        return federation
    cut = folded(federation, 4, 1, seed)
    return replace(cut, validation=cut.test, test=cut.validation)


def loss(result: Result, federation: Federation) -> float:
    """The mean over clients of the loss of their models."""
    told = []
    for k, name in enumerate(federation.names):
        x, y = (torch.tensor(part) for part in federation.test[k])
        if len(y):
            with torch.no_grad():
                told.append(float(loss_of(federation.task)(result.models[name](x.float()), y).mean()))
    return float(np.mean(told))


def judged(case: Case, seed: int, effort: str) -> dict[str, Any]:
    federation = without_its_test(case, seed)
    begun = time.process_time()
    result = find(federation, case.model, effort, seed=seed, rounds=ROUNDS)  # type: ignore[arg-type]
    spent = time.process_time() - begun
    _, fedavg = trained(case, federation, "fedavg", {"lr": result.config["algorithm"]["lr"]}, seed)
    told, sign = result.summary("deployed"), 1 if federation.task.kind == "classification" else -1
    values = {"mean": sign * told["mean"], "worst5": sign * told["worst5"], "loss": loss(result, federation)}
    rounded = {key: round(value, 4) for key, value in values.items()}
    cost = round(spent / fedavg["cpu"], 1)
    return {"case": case.name, "seed": seed, **rounded, "cost": cost, "training": result.facts["training"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""], help="federations whose name holds one of these texts")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--effort", default="standard")
    parser.add_argument("--one-rate", action="store_true")
    options = parser.parse_args()
    if options.one_rate:
        EFFORTS[options.effort] = replace(EFFORTS[options.effort], together={})
    for case in CASES:
        if case.kind == "development" and any(text in case.name for text in options.only):
            for seed in range(options.seeds):
                print(json.dumps(judged(case, seed, options.effort)), flush=True)


if __name__ == "__main__":
    main()
