"""What the weights of FedCedar's centre graph do, option by option: the table of docs/fedcedar.md.

Run: python examples/fedcedar_contrast.py  (about two minutes on two cores)

Digits, 30 clients with two shards each, 30 % active, an MLP, 20 rounds, three seeds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import fedkin
from fedkin.algorithms import FedAvg, FedCedar

ROWS: dict[str, dict[str, Any]] = {
    "default": {},
    "sim_on=updates": {"sim_on": "updates"},
    "sim_on=centred": {"sim_on": "centred"},
    "minmax=True": {"minmax": True},
    "temperature=0.02": {"temperature": 0.02},
    "temperature=0.005": {"temperature": 0.005},
    "ablation=as1": {"ablation": "as1"},
    "ablation=as2": {"ablation": "as2"},
    "ablation=as3": {"ablation": "as3"},
    "memory=True, sim_on=centred": {"memory": True, "sim_on": "centred"},
}


def main(seeds: int = 3, rounds: int = 20) -> None:
    print("| | diagonal of R, first round | last round | off-diagonal, last | pre | post |\n|---|---|---|---|---|---|")
    for title, options in {**ROWS, "FedAvg": None}.items():
        found = []
        for seed in range(seeds):
            federation = fedkin.data.load("digits", clients=30, partition="shards:2", seed=seed)
            local: dict[str, Any] = {"lr": 0.05, "epochs": 5, "batch_size": 16}
            method = FedAvg(**local) if options is None else FedCedar(**local, **options)
            result = fedkin.train(federation, "mlp", method, rounds=rounds, fraction=0.3, seed=seed)
            first, last = result.history[0]["log"], result.history[-1]["log"]
            weights = [first.get("diagonal", np.nan), last.get("diagonal", np.nan), last.get("off_diagonal", np.nan)]
            found.append([*weights, *(100 * result.summary(when)["mean"] for when in ("pre", "post"))])
        first, last, off, pre, post = np.mean(found, axis=0)
        print(
            f"| {title} | {first:.3f} | {last:.3f} | {off:.4f} | {pre:.1f} | {post:.1f} |".replace("nan", "–"),
            flush=True,
        )


if __name__ == "__main__":
    main()
