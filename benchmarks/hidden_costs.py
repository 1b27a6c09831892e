"""What a default run spends beside its rounds: evaluation, checkpoints, logging.

    python benchmarks/hidden_costs.py [--quick] [--json FILE]

Default settings (50 rounds, ten evaluations, checkpoints when evaluating, a folder to write to, no progress bar), on the
digits of the demo and on data of the size of MNIST (100 clients with 600 training samples of 784 features each). "post" is
what evaluating *after local training* costs: one training of all clients. When all take part the next round need not train
again (fedkin/local/ahead.py), which is "saved". "observing" is what the method computes for its log, influence included;
"records" the rest of the loop: who takes part, the check for divergence, the history. All are shares of the rounds alone (50
times the median round); "together" is what the whole loop takes beyond them.

Times are processor time in one thread, which others on the machine disturb least; checkpoints, which wait for the disk, are
measured by the clock.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import timing
import torch

from fedkin import Federation, algorithm, data, train
from fedkin.algorithms import fedu
from fedkin.run import Run


def mnist_like(clients: int, samples: int) -> Federation:
    """Random images of 784 pixels in ten classes."""
    rng = np.random.default_rng(0)
    sites = {
        f"client-{k}": (rng.random((samples, 784), dtype=np.float32), np.arange(samples) % 10) for k in range(clients)
    }
    return Federation.from_arrays(sites)


@contextmanager
def watched(spent: dict[str, list[float]]) -> Iterator[None]:
    """List the seconds of every call of the parts of a run; inner parts are not counted twice."""
    inner = [0.0]

    def timed(function: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            outer, inner[0] = inner[0], 0.0
            start, clock = time.process_time(), time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                whole = time.process_time() - start
                part = name(*args)
                spent[part].append(time.perf_counter() - clock if part == "checkpoints" else whole - inner[0])
                inner[0] = outer + whole

        return call

    places: list[tuple[Any, str, Callable[..., str]]] = [
        (Run, "_one_round", lambda *_: "records"),
        (Run, "save_checkpoint", lambda *_: "checkpoints"),
        (Run, "_ask_everyone", lambda run, post, *_: "evaluation, post" if post else "evaluation, pre"),
        (algorithm.Algorithm, "round", lambda *_: "rounds"),
        (fedu.FedU, "observe", lambda *_: "observing"),
        (algorithm, "follow_influence", lambda *_: "observing"),
        (fedu, "follow_influence", lambda *_: "observing"),
        (Run, "_result", lambda *_: "result"),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for owner, name, label in places:
        setattr(owner, name, timed(getattr(owner, name), label))
    try:
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


PARTS = ("evaluation, pre", "evaluation, post", "checkpoints", "observing", "records")


def measure(title: str, federation: Federation, model: str, method: str, **options: Any) -> dict[str, Any]:
    spent: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, watched(spent):
        graph = "knn:5" if method == "fedu" else None
        train(federation, model, method, graph, out=Path(folder) / "run", workers=1, **options)
    rounds = spent["rounds"]
    alone = float(np.median(rounds)) * len(rounds)
    shares = {part: sum(spent[part]) / alone for part in PARTS}
    saved = sum(rounds) / alone - 1 if len(spent["evaluation, post"]) > 1 else 0.0
    return {
        "run": title,
        "method": method,
        "model": model,
        "round_seconds": alone / len(rounds),
        **shares,
        "saved": saved,
        "together": sum(shares.values()) + saved,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer clients and samples")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/hidden_costs.json"), help="where to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    clients, samples = (20, 200) if options.quick else (100, 800)
    digits = data.load("digits", clients=20, partition="dirichlet:0.3", seed=0)
    images = mnist_like(clients, samples)
    records = []
    train(digits, "mlp", "fedavg", rounds=1)  # what is only paid once
    for title, federation in (("digits", digits), (f"{clients} × {samples} × 784", images)):
        for method in ("fedavg", "fedu"):
            for share in (1.0, 0.1):
                name = f"{title}, {'all' if share == 1 else 'a tenth'}"
                records.append(measure(name, federation, "mlp", method, fraction=share))
    columns = (*PARTS, "saved", "together")
    print(f"{'run':26}{'method':8}{'round ms':>9}" + "".join(f"{part:>{max(10, len(part) + 2)}}" for part in columns))
    for r in records:
        shares = "".join(f"{r[part]:>{max(10, len(part) + 2)}.1%}" for part in columns)
        print(f"{r['run']:26}{r['method']:8}{1000 * r['round_seconds']:>9.1f}{shares}")
    timing.write(options.json, records)


if __name__ == "__main__":
    main()
