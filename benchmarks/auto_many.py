"""auto with many clients: does its cost grow with their number, or faster?

    python benchmarks/auto_many.py                           1,000, 2,000, 5,000 and 10,000 clients
    python benchmarks/auto_many.py --clients 500 1000 --json many.json

Clients of ten kinds, each with its own linear relation of five inputs and 16 training samples; effort quick, 6 rounds. Every
model visits at most 20 candidates, so questions, bytes and seconds should grow with K alone: `per client` stays level.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedkin import Federation, auto
from fedkin.files import write_json

KINDS, INPUTS, SAMPLES = 10, 5, 16


def kinds_of_clients(clients: int, seed: int = 0) -> Federation:
    """Client k is of kind k mod 10: y = x·w_kind + noise; 16 samples to train on and 8 to test."""
    rng = np.random.default_rng(seed)
    slopes = 2 * rng.normal(size=(KINDS, INPUTS))
    x = rng.normal(size=(clients, SAMPLES + 8, INPUTS))
    y = np.einsum("kni,ki->kn", x, slopes[np.arange(clients) % KINDS]) + rng.normal(size=x.shape[:2])
    parts = {"train": slice(0, SAMPLES), "test": slice(SAMPLES, None)}
    made = {f"c{k}": {part: (x[k, rows], y[k, rows]) for part, rows in parts.items()} for k in range(clients)}
    return Federation.from_arrays(made)


def measured(clients: int, rounds: int) -> dict[str, Any]:
    federation = kinds_of_clients(clients)
    before = time.process_time()
    result = auto(federation, "linear", "quick", rounds=rounds, lr=0.1)
    seconds = time.process_time() - before
    kin = result.kin
    same = 0.0
    for k in range(min(clients, 200)):
        row = kin[[k]].toarray()[0] if not isinstance(kin, np.ndarray) and kin is not None else np.asarray(kin)[k]
        same += float(row[np.arange(clients) % KINDS == k % KINDS].sum()) / min(clients, 200)
    return {
        "clients": clients,
        "cpu": round(seconds, 1),
        "cpu_ms_per_client": round(1000 * seconds / clients, 2),
        "bytes_per_client": round(result.facts["bytes"] / clients),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "alone": float(np.mean(result.facts["alone"]["test_mse"])),
        "together": float(result.summary()["mean"]),
        "own_kind": round(same, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="*", default=[1000, 2000, 5000, 10000])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    print(
        "| clients | processor time | per client | bytes per client | peak memory | MSE alone | together | weight on own kind |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for clients in options.clients:
        found.append(one := measured(clients, options.rounds))
        print(
            f"| {clients:,} | {one['cpu']} s | {one['cpu_ms_per_client']} ms | {one['bytes_per_client']:,} | {one['peak_mb']:,} MB | "
            f"{one['alone']:.2f} | {one['together']:.2f} | {100 * one['own_kind']:.0f} % |",
            flush=True,
        )  # fmt: skip
    if options.json:
        write_json(options.json, found)


if __name__ == "__main__":
    main()
