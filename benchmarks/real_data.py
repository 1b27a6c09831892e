"""What it takes to keep images as bytes: memory of the whole run, and seconds of a round, against a float copy.

    python benchmarks/real_data.py [--quick] [--json FILE] [--against FOLDER]

MNIST and CIFAR-10 shared out among 100 clients, two rounds of FedAvg, each in a fresh process. "data" is what federation and
shard hold of the inputs; "run" is how far the process's memory rose above what it had after its imports. `--against src` of
another checkout also times the float path there, in turn with the one here, in fresh processes of the same minutes.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import timing

CASES = (("mnist", "mlr"), ("mnist", "mlp:100"), ("cifar10", "mlr"))


def memory(name: str, model: str, floats: bool) -> dict[str, float]:
    """MiB of data and of the run, and the median seconds of a round of training."""
    import numpy as np

    from fedkin import algorithms, data
    from fedkin.federation import Split
    from fedkin.run import make_options, make_run

    before = _resident()
    federation = data.load(name, clients=100, partition="iid", seed=0)
    if floats:
        parts = {p: getattr(federation, p) for p in ("train", "validation", "test")}
        federation = replace(federation, **{p: Split(s.x, s.y, s.offsets) for p, s in parts.items()})
        del parts
    method = algorithms.make("fedavg", {"epochs": 1, "lr": 0.05})
    run = make_run(federation, model, method, make_options(rounds=2))
    host: Any = run.clients
    splits = [(getattr(federation, p), getattr(host.shard, p)) for p in ("train", "validation", "test")]
    held = {tensor.x.data_ptr(): tensor.x.nbytes for _, tensor in splits}
    held |= {split.stored.ctypes.data: split.stored.nbytes for split, _ in splits}
    result = run.run()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    accuracy = float(np.mean(result.metrics["pre"]["test_accuracy"]))
    return {
        "data": sum(held.values()) / 2**20,
        "run": (peak - before) / 2**20,
        "seconds": run.seconds / 2,
        "accuracy": accuracy,
    }


def _resident() -> int:
    import torch  # what every run has

    torch.zeros(1)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


ROUND = """
import sys, time, numpy as np, torch
from fedkin import algorithms
from fedkin.engines import connect
from fedkin.federation import Federation
from fedkin.models import ModelSpec
from fedkin.streams import Streams
model, shape = sys.argv[1], tuple(map(int, sys.argv[2].split(",")))
rng = np.random.default_rng(0)
sites = {f"c{k}": (rng.random((400, *shape), dtype=np.float32), rng.integers(0, 10, 400)) for k in range(50)}
federation = Federation.from_arrays(sites, test_fraction=0)
spec = ModelSpec.of(model, federation.task, torch.float32)
rows = spec.initial_row(Streams(0)).expand(50, -1).contiguous()
clients = connect("in_process", federation, spec, Streams(0), None)
times = []
for t in range(int(sys.argv[3])):
    started = time.perf_counter()
    clients.ask("train", np.arange(50), {"rows": rows}, {"sgd": {"lr": 0.1, "batch_size": 20, "steps": 20}, "round": t + 1})
    times.append(time.perf_counter() - started)
print(min(times[1:]))
"""
FLOAT_CASES = {"mlr": ("mlr", "784"), "mlp": ("mlp:100,100", "784"), "cnn": ("fedpnp-mnist", "1,28,28")}


def float_path(source: Path, model: str, shape: str, rounds: int) -> float:
    """The fastest of some rounds on floats with the package in a folder, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-c", ROUND, model, shape, str(rounds)]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    made = timing.parser("real_data", __doc__, quick="MNIST with logistic regression alone")
    made.add_argument("--against", type=Path, help="src folder of another checkout, to time the float path of both")
    made.add_argument("--turns", type=int, default=7, help="processes per checkout and model (default: 7)")
    options = timing.parsed(made)
    records: list[dict[str, Any]] = []
    for name, model in CASES[:1] if options.quick else CASES:
        found = {
            kind: timing.case(f"{name} {model} {kind}", options.limit, memory, name, model, kind == "floats")
            for kind in ("bytes", "floats")
        }
        if None in found.values():
            continue
        for kind, numbers in found.items():
            records.append({"set": name, "model": model, "kept": kind, **numbers})
            told = ", ".join(f"{key} {value:.4g}" for key, value in numbers.items())
            print(f"{name:8s} {model:8s} {kind:7s} {told} (MiB, MiB, s)", flush=True)
        ratios = {key: found["floats"][key] / found["bytes"][key] for key in ("data", "run", "seconds")}
        print(
            f"{name:8s} {model:8s} floats ÷ bytes: " + ", ".join(f"{k} {v:.2f}" for k, v in ratios.items()), flush=True
        )
    if options.against is not None:
        ours = timing.ROOT / "src"
        for case, (model, shape) in FLOAT_CASES.items():
            turns: dict[str, list[float]] = {"here": [], "there": []}
            for turn in range(options.turns):
                order = [("here", ours), ("there", options.against)]
                for where, source in order if turn % 2 else order[::-1]:
                    turns[where].append(float_path(source, model, shape, 6))
            here, there = (statistics.median(turns[where]) for where in ("here", "there"))
            records.append({"float_path": case, "here": here, "there": there})
            print(
                f"float path, {case}: {1000 * here:.1f} ms here, {1000 * there:.1f} ms there, × {here / there:.3f}",
                flush=True,
            )
            time.sleep(0.1)
    timing.write(options.json, records)


if __name__ == "__main__":
    main()
