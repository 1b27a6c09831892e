"""The Ray engine on several nodes: seconds and processor seconds of a round, beside the same round in this process.

    python benchmarks/nodes.py [--quick] [--json FILE] [--plot FILE]

FedAvg's question to 200 clients (20 steps of batch 20 on 1×28×28, the MLP 784-100-100-10), answered in this process by one
worker, and on clusters of one, two and four nodes (ray.cluster_utils.Cluster) with one core each. All nodes are on this machine: no wire is
measured, but all else is, from the rows that are copied into one node's object store and fetched by another's. Each node has a core as
long as there are cores; beyond that nodes share, and "overhead", the processor seconds of the whole cluster beyond those of the training,
is what still tells something. A round is the median of several after the first.
"""

from __future__ import annotations

import os
import statistics
from importlib.metadata import version
from typing import Any

import numpy as np
import processes
import timing
import torch

from fedkin.clients import Clients
from fedkin.engines import connect
from fedkin.federation import Federation
from fedkin.models import ModelSpec
from fedkin.streams import Streams

MODEL, SAMPLES = "mlp:100,100", 400


def made(clients: int) -> Federation:
    rng = np.random.default_rng(0)
    data = {
        f"c{k}": (rng.random((SAMPLES, 1, 28, 28), dtype=np.float32), np.arange(SAMPLES) % 10) for k in range(clients)
    }
    return Federation.from_arrays(data, classes=list(range(10)), test_fraction=0)


def rounds(engine: Clients, clients: int, spec: ModelSpec, repeats: int) -> dict[str, float]:
    """Medians of a round's seconds and of the processor seconds of this process and all it started."""
    rows = spec.initial_row(Streams(0)).expand(clients, -1).contiguous()
    seconds, cpu = [], []
    for number in range(repeats + 1):
        shared = {"sgd": {"lr": 0.01, "batch_size": 20}, "round": number + 1}
        before = processes.cpu_seconds(os.getpid())
        spell = timing.seconds(
            lambda shared=shared: engine.ask("train", np.arange(clients), {"rows": rows}, shared)  # type: ignore[misc]
        )
        if number:
            seconds.append(spell)
            cpu.append(processes.cpu_seconds(os.getpid()) - before)
    return {"seconds": statistics.median(seconds), "cpu_seconds": statistics.median(cpu)}


def measure(nodes: int, clients: int, repeats: int) -> dict[str, Any]:
    """A round on so many nodes; 0: in this process."""
    torch.set_num_threads(1)
    federation = made(clients)
    spec = ModelSpec.of(MODEL, federation.task, torch.float32)
    told = {"nodes": nodes, "clients": clients, "row_bytes": 4 * spec.layout.width}
    if not nodes:
        engine = connect("in_process", federation, spec, Streams(0), 1)
        return told | rounds(engine, clients, spec, repeats)
    from ray.cluster_utils import Cluster

    store = {"object_store_memory": 2**30, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **store})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(num_cpus=1, object_store_memory=2**30)
        cluster.wait_for_nodes()
        engine = connect("ray", federation, spec, Streams(0), nodes, {"address": cluster.address})
        try:
            return told | rounds(engine, clients, spec, repeats)
        finally:
            engine.close()
    finally:
        cluster.shutdown()


def main() -> None:
    options = timing.parsed(timing.parser("nodes", __doc__, quick="fewer clients, repeats and nodes"))
    clients, repeats = (40, 2) if options.quick else (200, 5)
    records: list[dict[str, Any]] = []
    print(f"{'nodes':>12}{'round s':>10}{'cpu s':>8}{'speed-up':>10}{'overhead':>10}")
    for nodes in (0, 1, 2) if options.quick else (0, 1, 2, 4):
        found = timing.case(f"{nodes} nodes", options.limit, measure, nodes, clients, repeats)
        if found is None:
            continue
        alone = (records or [found])[0]
        found["speed_up"] = alone["seconds"] / found["seconds"]
        found["overhead"] = found["cpu_seconds"] / alone["cpu_seconds"] - 1
        records.append(found)
        print(
            f"{nodes or 'this process':>12}{found['seconds']:>10.3f}{found['cpu_seconds']:>8.2f}"
            f"{found['speed_up']:>10.2f}{found['overhead']:>10.1%}",
            flush=True,
        )
    timing.write(options.json, records, model=MODEL, ray=version("ray"))
    told = [record for record in records if record["nodes"]]
    timing.bars(
        options.plot,
        "A round on Ray nodes with a core each",
        "times one worker in this process",
        [str(record["nodes"]) for record in told],
        {"speed-up": [record["speed_up"] for record in told]},
    )


if __name__ == "__main__":
    main()
