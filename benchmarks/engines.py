"""What an engine costs: the same rounds in this process and over Ray actors, side by side.

    python benchmarks/engines.py [--quick] [--json FILE]

K=1,000 clients with ten samples each and a multinomial logistic regression of 10 × 3: training is next to nothing, so what
is measured is the way to the clients and back. The figure is milliseconds per client and round, and its difference to
in_process; the limit is 0.1 ms.
"""

from __future__ import annotations

import argparse
from importlib.metadata import version
from pathlib import Path

import numpy as np
import timing
import torch

from fedkin.engines import connect
from fedkin.engines.clients import Clients
from fedkin.federation import Federation
from fedkin.models import ModelSpec
from fedkin.streams import Streams

LIMIT = 0.1


def make_federation(clients: int) -> Federation:
    rng = np.random.default_rng(0)
    data = {f"c{k}": (rng.normal(size=(10, 10)), rng.integers(0, 3, 10)) for k in range(clients)}
    return Federation.from_arrays(data, classes=[0, 1, 2], test_fraction=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats; writes no file unless asked to")
    parser.add_argument("--json", type=Path, help="where to write the numbers (default: benchmarks/engines.json)")
    arguments = parser.parse_args()
    clients = 1000
    federation = make_federation(clients)
    spec = ModelSpec.of("mlr", federation.task, torch.float32)
    rows = spec.initial_row(Streams(0)).expand(clients, -1).contiguous()
    shared = {"sgd": {"lr": 0.1, "batch_size": 10}, "round": 1}
    engines = {name: connect(name, federation, spec, Streams(0), None) for name in ("in_process", "ray")}

    def round_on(engine: Clients) -> None:
        engine.ask("train", np.arange(clients), {"rows": rows}, shared)

    tasks = {name: lambda engine=engine: round_on(engine) for name, engine in engines.items()}
    seconds = timing.medians(tasks, repeats=5 if arguments.quick else 30)
    for engine in engines.values():
        engine.close()
    records = []
    for name, value in seconds.items():
        each = 1000 * value / clients
        more = each - 1000 * seconds["in_process"] / clients
        records.append({"engine": name, "clients": clients, "ms_per_client": each, "ms_more": more})
        print(f"{name:12s} {each:.4f} ms per client and round, {more:+.4f} ms against in_process (limit {LIMIT} ms)")
    path = arguments.json or (None if arguments.quick else Path(__file__).with_suffix(".json"))
    if path:
        timing.write(path, records, limit_ms=LIMIT, ray=version("ray"))


if __name__ == "__main__":
    main()
