"""Seconds and memory of a round as clients become many, up to a million.

    python benchmarks/growth.py [--quick] [--json FILE] [--plot FILE]

FedU with a tenth of the clients per round on a graph of nearest neighbours (10 each, by a vector of two numbers per
client), logistic regression of 20 features on 10 classes (B = 210), 20 training and 5 test samples per client. Each number
of clients runs in a process of its own, with checkpoints and the result written to disk, at the cadence of a default run
of 50 rounds; a callback ends it after six of them, then all clients are tested before and after local training.

Two more lines keep the rows in a file (`rows_file`): a million clients once more, and 200,000 clients with 400 features
(B = 4,010), a hundredth of them per round, in a process that may have less memory of its own (RLIMIT_DATA) than the rows
take. Pages of the file that are in memory count in "peak", though the system takes them back when it needs them.

"peak" is the largest resident memory of the process (getrusage), all clients' data included; "÷ rows" is what it has beyond
an idle process and the data, as a multiple of K·B·4 bytes. A round is the median of the rounds after the first.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import timing

FEATURES, CLASSES, TRAIN, TEST, NEIGHBOURS = 20, 10, 20, 5, 10
ROUNDS, SHARE = 6, 0.1


def peak() -> int:
    """Bytes: the largest resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def federation(clients: int, features: int, samples: int, held_out: int) -> tuple[Any, np.ndarray]:
    """Clients with a place in the plane that decides their labels: neighbours have similar models. And the places."""
    from fedkin import Federation
    from fedkin.federation import Split
    from fedkin.task import Task

    rng = np.random.default_rng(0)
    places = rng.random((clients, 2), dtype=np.float32)
    base, slope = rng.normal(size=(CLASSES, features)), rng.normal(size=(2, CLASSES, features))

    def split(n: int) -> Split:
        x = np.empty((clients, n, features), dtype=np.float32)
        y = np.empty((clients, n), dtype=np.int64)
        for at in range(0, clients, 2_000):  # a few clients at a time, so that making the data is not the peak
            some = slice(at, at + 2_000)
            weights = (base + np.einsum("kd,dcf->kcf", places[some], slope)).astype(np.float32)
            x[some] = rng.standard_normal((len(weights), n, features), dtype=np.float32)
            y[some] = (x[some] @ weights.transpose(0, 2, 1)).argmax(axis=2)
        return Split(x.reshape(-1, features), y.ravel(), np.arange(clients + 1, dtype=np.int64) * n)

    names = tuple(f"client-{k}" for k in range(clients))
    task = Task("classification", (features,), classes=tuple(range(CLASSES)))
    nothing = np.zeros(clients + 1, dtype=np.int64)
    train, test = split(samples), split(held_out)
    validation = Split(train.x[:0], train.y[:0], nothing)
    return Federation(names, task, train, validation, test), places


def one(clients: int, rows_file: bool = False, wide: bool = False, limit: float | None = None) -> dict[str, Any]:
    """One run, in this process."""
    from fedkin import train
    from fedkin.algorithms import FedU
    from fedkin.graphs import knn
    from fedkin.run import Run
    from fedkin.run.callbacks import Callback

    idle = peak()
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit * 2**30),) * 2)
    features = 400 if wide else FEATURES
    started = time.perf_counter()
    data, places = federation(clients, features, 2 if wide else TRAIN, 1 if wide else TEST)
    made = time.perf_counter()
    graph = knn(places, min(NEIGHBOURS, clients - 1), data.names)
    built = time.perf_counter()
    loaded = peak()

    class Watch(Callback):
        """When rounds began and ended, and the memory they took; a few are enough."""

        def __init__(self) -> None:
            self.started = self.after = 0.0

        def on_start(self, run: Run) -> None:
            self.started = time.perf_counter()

        def on_round(self, run: Run, record: dict[str, Any]) -> bool:
            self.after = time.perf_counter()
            self.peak = peak()
            return record["round"] == ROUNDS

    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"rows_file": str(Path(folder) / "rows.bin")} if rows_file else {}
        options["validation"] = "given"
        method = FedU(eta=0.1, lr=0.05, epochs=1)
        options |= {"fraction": 0.01 if wide else SHARE, "out": None if wide else Path(folder) / "run"}
        result = train(data, "mlr", method, graph, callbacks=[watch], **options)
        done = time.perf_counter()
    totals = [record["seconds"] for record in result.history]
    rounds = np.diff(totals)
    participants = result.history[-1]["participants"]
    columns = result.server_rows.shape[1]
    rows = clients * columns * 4
    held = sum(part.x.nbytes + part.y.nbytes for part in (data.train, data.test))
    return {
        "clients": clients,
        "columns": columns,
        "participants": participants,
        "edges": graph.n_edges,
        "rows_file": rows_file,
        "limit_gib": limit,
        "round_seconds": statistics.median(rounds),
        "first_round_seconds": totals[0],
        "microseconds_per_participant": 1e6 * statistics.median(rounds) / participants,
        "evaluation_seconds": result.history[-1]["evaluation_seconds"],
        "data_seconds": made - started,
        "graph_seconds": built - made,
        "setup_seconds": watch.started - built,
        "rounds_seconds": watch.after - watch.started,
        "result_seconds": done - watch.after,
        "rows_bytes": rows,
        "data_bytes": held,
        "idle_bytes": idle,
        "loaded_bytes": loaded,
        "rounds_peak_bytes": watch.peak,
        "peak_bytes": peak(),
        "bytes_per_client": (peak() - idle - held) / clients,
        "times_rows": (peak() - idle - held) / rows,
        "rounds_times_rows": (watch.peak - idle - held) / rows,
        "loss": float(np.mean(result.metrics["pre"]["test_loss"])),
    }


def where(record: dict[str, Any]) -> str:
    if not record["rows_file"]:
        return "memory"
    return "a file" + (f", {record['limit_gib']:g} GiB allowed" if record["limit_gib"] else "")


HEAD = (
    f"{'clients':>10}{'per round':>11}{'rows GiB':>10}{'graph s':>9}{'setup s':>9}{'round s':>9}{'µs each':>9}"
    f"{'peak GiB':>10}{'÷ rows':>8}  rows in"
)


def line(r: dict[str, Any]) -> str:
    return (
        f"{r['clients']:>10,}{r['participants']:>11,}{r['rows_bytes'] / 2**30:>10.3f}{r['graph_seconds']:>9.2f}"
        f"{r['setup_seconds']:>9.2f}{r['round_seconds']:>9.3f}{r['microseconds_per_participant']:>9.1f}"
        f"{r['peak_bytes'] / 2**30:>10.2f}{r['times_rows']:>8.1f}  {where(r)}"
    )


def draw(path: Path, records: list[dict[str, Any]]) -> None:
    """Seconds per round and peak memory against the number of clients, with lines of slope one."""
    from matplotlib.figure import Figure

    plain = [r for r in records if not r["rows_file"]]
    clients = np.array([r["clients"] for r in plain])
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    seconds = np.array([r["round_seconds"] for r in plain])
    left.loglog(clients, seconds, "o-", label="a round")
    left.loglog(clients, seconds[-1] * clients / clients[-1], "--", color="grey", label="linear in the participants")
    left.set(xlabel="clients, a tenth per round", ylabel="seconds", title="time")
    right.loglog(clients, [r["peak_bytes"] / 2**30 for r in plain], "o-", label="peak of the process")
    right.loglog(clients, [r["data_bytes"] / 2**30 for r in plain], ".:", label="the clients' data")
    right.loglog(clients, [r["rows_bytes"] / 2**30 for r in plain], ".--", color="grey", label="the rows, K·B·4 bytes")
    right.set(xlabel="clients", ylabel="GiB", title="memory")
    for ax in (left, right):
        ax.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    quick = "up to 10,000 clients, and those with rows in a file"
    options = timing.parsed(timing.parser("growth", __doc__, quick))
    most = 4 if options.quick else 6
    cases: list[tuple[Any, ...]] = [(10**e,) for e in range(2, most + 1)]
    cases += [(10**most, True)]
    cases += [] if options.quick else [(200_000, True, True, 2.0)]
    records = []
    print(HEAD)
    for case in cases:
        record = timing.case(f"{case[0]:,} clients", options.limit, one, *case)
        if record is not None:
            records.append(record)
            print(line(record), flush=True)
    timing.write(options.json, records)
    if options.plot:
        draw(options.plot, records)


if __name__ == "__main__":
    main()
