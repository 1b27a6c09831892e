"""What an engine costs: the same rounds in this process and over Ray actors, side by side.

    python benchmarks/engines.py [--quick] [--json FILE]

K=1,000 clients with ten samples each and a multinomial logistic regression of 10 × 3: training is next to nothing, so what
is measured is the way to the clients and back. The figure is milliseconds per client and round, and its difference to
in_process; the limit is 0.1 ms.
"""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import timing
import torch

from fedkin.clients import Clients
from fedkin.engines import connect
from fedkin.federation import Federation
from fedkin.models import ModelSpec
from fedkin.streams import Streams

LIMIT = 0.1


def make_federation(clients: int) -> Federation:
    rng = np.random.default_rng(0)
    data = {f"c{k}": (rng.normal(size=(10, 10)), rng.integers(0, 3, 10)) for k in range(clients)}
    return Federation.from_arrays(data, classes=[0, 1, 2], test_fraction=0)


def measure(clients: int, repeats: int) -> dict[str, float]:
    """Seconds of a round, per engine."""
    federation = make_federation(clients)
    spec = ModelSpec.of("mlr", federation.task, torch.float32)
    rows = spec.initial_row(Streams(0)).expand(clients, -1).contiguous()
    shared = {"sgd": {"lr": 0.1, "batch_size": 10}, "round": 1}
    engines = {name: connect(name, federation, spec, Streams(0), None) for name in ("in_process", "ray")}

    def round_on(engine: Clients) -> None:
        engine.ask("train", np.arange(clients), {"rows": rows}, shared)

    tasks = {name: lambda engine=engine: round_on(engine) for name, engine in engines.items()}
    seconds = timing.medians(tasks, repeats)
    for engine in engines.values():
        engine.close()
    return seconds


def main() -> None:
    options = timing.parsed(timing.parser("engines", __doc__, quick="fewer repeats"))
    clients = 1000
    seconds = timing.case("1,000 clients", options.limit, measure, clients, 5 if options.quick else 30) or {}
    records = []
    for name, value in seconds.items():
        each = 1000 * value / clients
        more = each - 1000 * seconds["in_process"] / clients
        records.append({"engine": name, "clients": clients, "ms_per_client": each, "ms_more": more})
        print(f"{name:12s} {each:.4f} ms per client and round, {more:+.4f} ms against in_process (limit {LIMIT} ms)")
    timing.write(options.json, records, limit_ms=LIMIT, ray=version("ray"))
    timing.bars(
        options.plot,
        "A round of 1,000 clients with a tiny model",
        "ms per client",
        [str(record["engine"]) for record in records],
        {"ms": [float(str(record["ms_per_client"])) for record in records]},
        goal=LIMIT,
    )


if __name__ == "__main__":
    main()
