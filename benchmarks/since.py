"""Whether stacked SGD became slower since another checkout: a process of each, which train a round in turn.

    git worktree add /tmp/before a639baa
    python benchmarks/since.py /tmp/before [--only CASE …] [--turns 5] [--quick] [--json FILE]

K=100 clients, 20 steps, batch 20, as in local_training.py. Two processes give two ratios (above 1: slower here): of the median
time of a round by the clock, and of the processor time that nine rounds in ten exceed, which other programs on the machine disturb
least. Where memory lies in a process moves a ratio by some percent, so each turn begins two anew; told is the median over turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import timing

CASES = {
    "logistic regression 784→10": ("mlr", (1, 28, 28)),
    "MLP 784-100-100-10": ("mlp:100,100", (1, 28, 28)),
    "FedPnP MNIST CNN": ("fedpnp-mnist", (1, 28, 28)),
    "FedPnP CIFAR-10 CNN": ("fedpnp-cifar10", (3, 32, 32)),
}

ROUNDS = """
import json, sys, time
import numpy as np
from fedkin.federation import Federation
from fedkin.local import training
from fedkin.local.shard import Shard
from fedkin.models import ModelSpec
from fedkin.streams import Streams
try:
    from fedkin.local.sgd import Sgd
except ImportError:
    from fedkin.local import Sgd
train = getattr(training, "train_rows", None) or training.train
model, shape, clients, workers = json.loads(sys.argv[1])
rng, data = np.random.default_rng(0), {}
for k in range(clients):
    data[f"c{k}"] = rng.standard_normal((400, *shape), dtype=np.float32), rng.integers(0, 10, 400)
federation = Federation.from_arrays(data, classes=list(range(10)), test_fraction=0)
shard = Shard(federation, ModelSpec.of(model, federation.task), Streams(0), workers)
rows, settings = shard.spec.initial_row(shard.streams).expand(clients, -1), Sgd(lr=0.01, epochs=1, batch_size=20)
for _ in sys.stdin:
    begun, used = time.perf_counter(), time.process_time()
    train(shard, np.arange(clients), rows, settings, round=1)
    print(json.dumps([time.perf_counter() - begun, time.process_time() - used]), flush=True)
"""


def in_turn(sources: dict[str, Path], told: list[Any], repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Per checkout, seconds by the clock and of processors of every round; two rounds before them warm up."""
    with ExitStack() as stack:
        processes: dict[str, Any] = {
            name: stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", ROUNDS, json.dumps(told)],
                    env={**os.environ, "PYTHONPATH": str(source / "src")},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for name, source in sources.items()
        }
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name in sources}
        for repeat in range(repeats + 2):
            for name in sorted(processes, reverse=bool(repeat % 2)):
                processes[name].stdin.write("round\n")
                processes[name].stdin.flush()
                clock, processor = json.loads(processes[name].stdout.readline())
                seen[name].append((clock, processor))
    return {name: rounds[2:] for name, rounds in seen.items()}


def main() -> None:
    made = timing.parser("since", __doc__, quick="fewer clients and rounds")
    made.add_argument("before", type=Path, help="the other checkout")
    made.add_argument("--only", action="append", choices=list(CASES), help="this case alone; may be repeated")
    made.add_argument("--turns", type=int, default=5, help="pairs of processes per model (default: 5)")
    made.add_argument("--workers", type=int, help="threads that train (default: one per core)")
    options = timing.parsed(made)
    clients, turns, repeats = (10, 1, 3) if options.quick else (100, options.turns, 12)
    commit = subprocess.run(
        ["git", "-C", options.before, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    records: list[dict[str, Any]] = []
    for label in options.only or CASES:
        model, shape = CASES[label]
        sources = {"before": options.before.resolve(), "here": timing.ROOT}
        found: dict[str, list[float]] = {"clock": [], "processor": [], "clock ratio": [], "processor ratio": []}
        for _ in range(turns):
            seen = in_turn(sources, [model, shape, clients, options.workers], repeats)
            clock = {name: statistics.median(once[0] for once in rounds) for name, rounds in seen.items()}
            processor = {name: sorted(once[1] for once in rounds)[len(rounds) // 10] for name, rounds in seen.items()}
            for kind, seconds in (("clock", clock), ("processor", processor)):
                found[kind].append(seconds["here"])
                found[f"{kind} ratio"].append(seconds["here"] / seconds["before"])
        told = {name: statistics.median(values) for name, values in found.items()}
        records.append({"model": label, **told, "turns": found})
        print(
            f"{label:30}{told['clock']:9.4f} s, {told['clock ratio']:.3f} times by the clock; "
            f"{told['processor']:9.4f} s, {told['processor ratio']:.3f} times of processors",
            flush=True,
        )
    timing.write(options.json, records, before=commit.stdout.strip(), rounds=repeats)


if __name__ == "__main__":
    main()
