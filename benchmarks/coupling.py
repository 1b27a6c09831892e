"""Cost of coupling many clients, as a ratio to a plain copy of the stacked rows, all measured in one run.

    python benchmarks/coupling.py [--quick] [--json FILE] [--plot FILE]

* Laplacian step (FedU): K=100,000 clients, average degree 10, B=1,000 float32; and K=1,000,000 with B=100. "Into the old
  rows" is what a round of all clients does; the graph "ordered" is "nearby" with its clients in the order of
  `ClientGraph.order`.
* Soft filter (FedPnP) with uneven client sizes (conjugate gradient): the same graphs, cost per Laplacian product used.
* Dense filter (up to 3,000 clients): against one matrix product of the same shape.
* Influence: the share of a round of FedU, all clients taking part, that goes into the K×K matrix of who shaped whom.

The plain copy writes into memory that is already there (`copy_`); `clone` also pays for fresh memory, as a coupling that
returns a new tensor must. Repeats are interleaved and the median is reported, so that a busy machine disturbs all alike.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import timing
import torch

from fedkin.couplings import GraphFilter, LaplacianStep
from fedkin.graphs import ClientGraph, knn


def random_graph(clients: int, degree: int, seed: int = 0) -> ClientGraph:
    """Edges between random pairs: no locality at all, the worst case for a cache."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, clients, size=(2, clients * degree // 2))
    i, j = ends[:, ends[0] != ends[1]]
    half = sp.coo_array((np.ones(len(i)), (i, j)), shape=(clients, clients)).tocsr()
    joined = half + half.T
    joined.data[:] = 1.0
    return ClientGraph(joined)


def nearby_graph(clients: int, degree: int, seed: int = 0) -> ClientGraph:
    """Places in the plane, each joined to its nearest, numbered at random: locality that has to be found."""
    return knn(np.random.default_rng(seed).random((clients, 2)), round(0.8 * degree))


def products(graph_filter: GraphFilter, rows: torch.Tensor) -> float:
    """Laplacian products one application uses per column, counted by running it."""
    calls, addmm = [0.0], torch.addmm

    def counting(*args: object, **kwargs: object) -> torch.Tensor:
        calls[0] += args[2].shape[1]  # type: ignore[attr-defined]
        return addmm(*args, **kwargs)  # type: ignore[arg-type]

    torch.addmm = counting  # type: ignore[assignment]
    try:
        graph_filter.apply(rows)
    finally:
        torch.addmm = addmm
    return calls[0] / rows.shape[1]


INTO = "… into the old rows"


def ordered_graph(clients: int, degree: int, seed: int = 0) -> ClientGraph:
    """The same places, numbered so that neighbours are near each other."""
    graph = nearby_graph(clients, degree, seed)
    return graph.take(graph.order())


def dense_filter(clients: int, columns: int, repeats: int) -> dict[str, object]:
    """FedPnP's soft filter as one K×K matrix, and the bare product."""
    sizes = np.random.default_rng(1).integers(50, 1_000, clients)
    graph_filter = GraphFilter(nearby_graph(clients, 10), "soft", 0.1, sizes)
    rows = torch.randn(clients, columns, generator=torch.Generator().manual_seed(0))
    matrix = torch.from_numpy(graph_filter.matrix()).float()
    seconds = timing.medians({"filter": lambda: graph_filter.apply(rows), "gemm": lambda: matrix @ rows}, repeats)
    return {"clients": clients, "columns": columns, **seconds, "ratio": seconds["filter"] / seconds["gemm"]}


def influence_share(clients: int, model: str, rounds: int) -> dict[str, object]:
    """Median seconds of a round and of keeping the influence matrix in it; 784 features, 20 samples per client."""
    from fedkin import Federation, algorithm, train
    from fedkin.algorithms import FedU, fedu

    rng = np.random.default_rng(0)
    data = {f"c{k}": (rng.standard_normal((25, 784), dtype=np.float32), np.arange(25) % 10) for k in range(clients)}
    federation, spent = Federation.from_arrays(data, test_fraction=0.2), []

    def timed(*args: object) -> algorithm.State:
        start = time.perf_counter()
        try:
            return algorithm.follow_influence(*args)  # type: ignore[arg-type]
        finally:
            spent.append(time.perf_counter() - start)

    graph = nearby_graph(clients, 10)
    fedu.follow_influence = timed  # type: ignore[assignment]
    try:
        options = {"rounds": rounds, "eval_every": rounds, "influence": True, "validation": "given"}
        result = train(federation, model, FedU(eta=0.01), ClientGraph(graph.adjacency, federation.names), **options)
    finally:
        fedu.follow_influence = algorithm.follow_influence
    whole = np.diff([record["seconds"] for record in result.history])
    share = float(np.median(spent[1:]) / np.median(whole))
    return {"clients": clients, "model": model, "round": float(np.median(whole)), "influence": share}


GRAPHS = {"random": random_graph, "nearby": nearby_graph, "ordered": ordered_graph}


def measure(name: str, clients: int, columns: int, repeats: int, soft: float | None) -> list[dict[str, object]]:
    graph = GRAPHS[name](clients, 10)
    rows = torch.randn(len(graph), columns, generator=torch.Generator().manual_seed(0))
    target = torch.zeros_like(rows)
    step = LaplacianStep(graph, 0.01)
    tasks: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(rows),
        "clone": rows.clone,
        "Laplacian step": lambda: step.apply(rows),
        INTO: lambda: step.apply(rows, out=target),
    }
    used = {"copy": 0.0, "clone": 0.0, "Laplacian step": 1.0, INTO: 1.0}
    if soft is not None:
        label = f"soft filter β={soft:g}"
        sizes = np.random.default_rng(1).integers(50, 1_000, len(graph))
        graph_filter = GraphFilter(graph, "soft", soft, sizes)
        used[label] = products(graph_filter, rows)
        tasks[label] = lambda: graph_filter.apply(rows)
    seconds = timing.medians(tasks, repeats)
    degree = graph.adjacency.nnz / len(graph)
    return [
        {
            "graph": name,
            "clients": len(graph),
            "degree": round(degree, 2),
            "columns": columns,
            "operation": operation,
            "seconds": value,
            "ratio": value / seconds["copy"],
            "products": used[operation],
            "ratio_per_product": value / seconds["copy"] / max(used[operation], 1.0),
            "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        }
        for operation, value in seconds.items()
    ]


def draw(path: Path | None, records: list[dict[str, object]]) -> None:
    """Copies per operation, a group per graph and size, and the goal of five."""
    groups = list(dict.fromkeys((r["graph"], r["clients"], r["columns"]) for r in records))
    ratio = {(r["graph"], r["clients"], r["columns"], r["operation"]): float(str(r["ratio"])) for r in records}
    timing.bars(
        path,
        "Coupling many clients, average degree 10",
        "÷ copy of the rows",
        [f"{graph}\n{clients:,} × {columns:,}" for graph, clients, columns in groups],
        {name: [ratio[(*group, name)] for group in groups] for name in ("clone", "Laplacian step", INTO)},
        goal=5,
    )


def main() -> None:
    options = timing.parsed(timing.parser("coupling", __doc__, quick="a tenth of the clients, fewer repeats"))
    many, repeats = (10_000, 2) if options.quick else (100_000, 5)
    filtered = ("nearby",) if options.quick else ("random", "nearby")
    records: list[dict[str, object]] = []

    def case(function: Callable[..., Any], *args: object) -> Any:
        return timing.case(f"{function.__name__} {args}", options.limit, function, *args)

    for name in GRAPHS:
        soft = 0.005 if name in filtered else None
        records += case(measure, name, many, 1_000, repeats, soft) or []
        records += case(measure, name, 10 * many, 100, repeats, None) or []
    dense = [case(dense_filter, clients, 10_000, repeats) for clients in ((300,) if options.quick else (300, 3_000))]
    shares = [case(influence_share, k, "mlr", 12) for k in ((100, 1_000) if options.quick else (100, 1_000, 1_500))]
    dense, shares = [found for found in dense if found], [found for found in shares if found]
    peak = max((float(str(record["peak_gib"])) for record in records), default=0.0)
    print(
        f"{'graph':8}{'clients':>10}{'columns':>9}  {'operation':24}{'ms':>9}{'÷ copy':>9}{'products':>10}{'÷ product':>11}"
    )
    for record in records:
        print(
            f"{record['graph']:8}{record['clients']:>10,}{record['columns']:>9,}  {record['operation']:24}"
            f"{1000 * record['seconds']:>9.1f}{record['ratio']:>9.2f}{record['products']:>10.1f}"  # type: ignore[operator]
            f"{record['ratio_per_product']:>11.2f}"
        )
    for found in dense:
        print(
            f"dense filter, {found['clients']:,} clients, {found['columns']:,} columns: {found['ratio']:.2f} products"
        )
    for found in shares:
        print(f"influence, {found['clients']:,} clients, {found['model']}: {found['influence']:.1%} of a round")
    print(f"peak memory {peak:.1f} GiB, {torch.get_num_threads()} threads, torch {torch.__version__}")
    timing.write(options.json, records, peak_gib=peak, dense=dense, influence=shares)
    draw(options.plot, records)


if __name__ == "__main__":
    main()
