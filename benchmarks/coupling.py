"""Cost of coupling many clients, as a ratio to a plain copy of the stacked rows, all measured in one run.

    python benchmarks/coupling.py [--quick] [--json FILE]

* Laplacian step (FedU): K=100,000 clients, average degree 10, B=1,000 float32; and K=1,000,000 with B=100.
* Soft filter (FedPnP) with uneven client sizes (conjugate gradient): the same graphs, cost per Laplacian product used.

The plain copy writes into memory that is already there (`copy_`); `clone` also pays for fresh memory, as a coupling that
returns a new tensor must. Repeats are interleaved and the median is reported, so that a busy machine disturbs all alike.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable
from pathlib import Path

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


def measure(name: str, graph: ClientGraph, columns: int, repeats: int, soft: float | None) -> list[dict[str, object]]:
    rows = torch.randn(len(graph), columns, generator=torch.Generator().manual_seed(0))
    target = torch.zeros_like(rows)
    step = LaplacianStep(graph, 0.01)
    tasks: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(rows),
        "clone": rows.clone,
        "Laplacian step": lambda: step.apply(rows),
        "Laplacian step, out=": lambda: step.apply(rows, out=target),
    }
    used = {"copy": 0.0, "clone": 0.0, "Laplacian step": 1.0, "Laplacian step, out=": 1.0}
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
        }
        for operation, value in seconds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the clients, fewer repeats")
    parser.add_argument(
        "--json", type=Path, default=Path("benchmarks/coupling.json"), help="where to write the numbers"
    )
    options = parser.parse_args()
    many, repeats = (10_000, 3) if options.quick else (100_000, 5)
    records = []
    for name, make in (("random", random_graph), ("nearby", nearby_graph)):
        records += measure(name, make(many, 10), 1_000, repeats, soft=0.005)
        records += measure(name, make(10 * many, 10), 100, repeats, soft=None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{'graph':8}{'clients':>10}{'columns':>9}  {'operation':24}{'ms':>9}{'÷ copy':>9}{'products':>10}{'÷ product':>11}"
    )
    for record in records:
        print(
            f"{record['graph']:8}{record['clients']:>10,}{record['columns']:>9,}  {record['operation']:24}"
            f"{1000 * record['seconds']:>9.1f}{record['ratio']:>9.2f}{record['products']:>10.1f}"  # type: ignore[operator]
            f"{record['ratio_per_product']:>11.2f}"
        )
    print(f"peak memory {peak:.1f} GiB, {torch.get_num_threads()} threads, torch {torch.__version__}")
    timing.write(options.json, records, peak_gib=peak)


if __name__ == "__main__":
    main()
