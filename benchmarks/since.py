"""Whether stacked SGD became slower since another checkout: the two in turn, each time in a fresh process.

    git worktree add /tmp/before a639baa
    python benchmarks/since.py /tmp/before [--turns 5] [--quick] [--json FILE]

K=100 clients, 20 steps, batch 20, as in local_training.py; the median over turns of a process's median, and their ratio (above 1: slower
here). Processor time is told beside, which other programs on the machine disturb less.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import timing

MODELS = {
    "logistic regression 784→10": ("mlr", (1, 28, 28)),
    "MLP 784-100-100-10": ("mlp:100,100", (1, 28, 28)),
    "FedPnP MNIST CNN": ("fedpnp-mnist", (1, 28, 28)),
    "FedPnP CIFAR-10 CNN": ("fedpnp-cifar10", (3, 32, 32)),
}

ONCE = """
import json, statistics, sys, time
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
model, shape, clients, repeats = json.loads(sys.argv[1])
rng, data = np.random.default_rng(0), {}
for k in range(clients):
    data[f"c{k}"] = rng.standard_normal((400, *shape), dtype=np.float32), rng.integers(0, 10, 400)
federation = Federation.from_arrays(data, classes=list(range(10)), test_fraction=0)
shard = Shard(federation, ModelSpec.of(model, federation.task), Streams(0))
rows, settings = shard.spec.initial_row(shard.streams).expand(clients, -1), Sgd(lr=0.01, epochs=1, batch_size=20)
clock, processor = [], []
for _ in range(repeats + 2):
    begun, used = time.perf_counter(), time.process_time()
    train(shard, np.arange(clients), rows, settings, round=1)
    clock.append(time.perf_counter() - begun)
    processor.append(time.process_time() - used)
print(json.dumps([statistics.median(clock[2:]), statistics.median(processor[2:])]))
"""


def once(source: Path, model: str, shape: tuple[int, ...], clients: int, repeats: int) -> tuple[float, float]:
    """Seconds by the clock and of processors that one round of local training takes, in a process of its own."""
    told = json.dumps([model, shape, clients, repeats])
    surroundings = {**os.environ, "PYTHONPATH": str(source / "src")}
    done = subprocess.run(
        [sys.executable, "-c", ONCE, told], env=surroundings, capture_output=True, text=True, check=True
    )
    clock, processor = json.loads(done.stdout)
    return clock, processor


def main() -> None:
    made = timing.parser("since", __doc__, quick="fewer clients, one turn")
    made.add_argument("before", type=Path, help="the other checkout")
    made.add_argument("--turns", type=int, default=5, help="processes per checkout and model (default: 5)")
    options = timing.parsed(made)
    clients, repeats, turns = (10, 2, 1) if options.quick else (100, 9, options.turns)
    commit = subprocess.run(
        ["git", "-C", options.before, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    records: list[dict[str, Any]] = []
    for label, (model, shape) in MODELS.items():
        seen: dict[str, list[tuple[float, float]]] = {"before": [], "here": []}
        for _ in range(turns):
            for name, source in (("before", options.before.resolve()), ("here", timing.ROOT)):
                seen[name].append(once(source, model, shape, clients, repeats))
        clock, processor = (
            {name: statistics.median(pair[which] for pair in pairs) for name, pairs in seen.items()} for which in (0, 1)
        )
        ratio, used = clock["here"] / clock["before"], processor["here"] / processor["before"]
        records.append(
            {"model": label, "seconds": clock, "ratio": ratio, "processor_seconds": processor, "processor_ratio": used}
        )
        print(
            f"{label:30}{clock['before']:9.4f} s{clock['here']:9.4f} s  {ratio:.2f} by the clock, {used:.2f} of processors",
            flush=True,
        )
    timing.write(options.json, records, before=commit.stdout.strip(), turns=turns)


if __name__ == "__main__":
    main()
