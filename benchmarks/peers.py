"""Rounds of FedAvg against other frameworks, side by side: the same model, data, steps, batch and clients.

    python benchmarks/peers.py [--quick] [--peers flower,pfl,fluke,fedjax,blazefl] [--models mlr,mlp,cnn] [--clients 100,1000]

Every peer has an environment of its own (made when missing) and a process of its own that does one round when told to; the
rounds of the peers are interleaved, after one warm-up round each. A round is local training of every client and the
aggregation; no evaluation, no checkpoint. All start from the same parameters, and after a round the global model must
have changed as much as fedkin's: nobody skips work. With --json, cases and peers measured before stay in the file: a case may be
measured in parts, fedkin beside the peers of each. Beside seconds by the clock stand the processor seconds of a round and the memory after it, of the worker and all processes that it started, the data,
which all map from one file, left out (`processes.py`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import processes
import timing

sys.path.insert(0, str(Path(__file__).parent / "peers"))
import fedkin_worker
import work
from environments import PEERS, Unavailable, python_of

MODELS = {"mlr": "logistic regression 784→10", "mlp": "MLP 784-100-100-10", "cnn": "FedPnP's MNIST CNN"}
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedkin" / "peers"
FIRST_ROUND, LATER_ROUNDS = 0.02, 0.10
"""How far a peer's change of the global model may be from fedkin's: 2% is less than half a step of 20; later, runs
drift apart because their batches differ."""


class Worker:
    """A peer's process, told to do rounds one at a time."""

    def __init__(self, name: str, python: str, job: list[str], log: Path, limit: float) -> None:
        self.log, self.limit = log, limit
        script = str(Path(work.__file__).with_name(f"{name}_worker.py"))
        self.process = subprocess.Popen(
            [python, *PEERS[name].launch, script, *job],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
            process_group=0,
        )
        self.changes: list[float] = []
        self.cpu: list[float] = []
        """Processor seconds of every round."""
        self.memory: list[int] = []
        """Bytes after every round."""

    def versions(self) -> dict[str, str]:
        """Wait until the worker is ready."""
        return self._answer()["ready"]

    def round(self) -> float:
        """One round; its seconds as the worker's own clock has them."""
        assert self.process.stdin is not None
        before = processes.cpu_seconds(self.process.pid)
        try:
            print("round", file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise Unavailable(self._last_words()) from None
        answer = self._answer()
        self.cpu.append(processes.cpu_seconds(self.process.pid) - before)
        self.memory.append(processes.memory(self.process.pid))
        self.changes.append(answer["change"])
        return answer["seconds"]

    def close(self) -> None:
        """Let the worker end by itself; after half a minute its process group is ended."""
        assert self.process.stdin is not None
        try:
            self.process.communicate("stop\n", timeout=30)
        except (subprocess.TimeoutExpired, OSError, ValueError):
            self._kill()
            self.process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        watch = threading.Timer(self.limit, self._kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        if not line:
            raise Unavailable(self._last_words())
        return json.loads(line)

    def _kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def _last_words(self) -> str:
        if self.process.poll() == -signal.SIGKILL:
            return f"no answer within {self.limit:.0f} s"
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if "Error" in line]
        return lines[-1] if lines else f"ended with code {self.process.wait()}"


def measure(
    model: str, clients: int, pythons: dict[str, str], data: Path, repeats: int, limit: float
) -> dict[str, Any]:
    """One case: all workers started, then their rounds in turn. Who fails is left out, with the reason."""
    job = [model, str(clients), str(data)]
    workers = {name: Worker(name, python, job, data / f"{name}.log", limit) for name, python in pythons.items()}
    failed: dict[str, str] = {}

    def one_round(name: str) -> float:
        if name in failed:
            return math.nan
        try:
            return workers[name].round()
        except Unavailable as problem:
            failed[name] = str(problem)
            return math.nan

    versions = {}
    try:
        for name, worker in workers.items():
            try:
                versions[name] = worker.versions()
            except Unavailable as problem:
                failed[name] = str(problem)
        seconds = timing.interleave({name: partial(one_round, name) for name in workers}, repeats)
    finally:
        for worker in workers.values():
            worker.close()
    for name, worker in workers.items():
        if name not in failed and (fault := other_work(worker.changes, workers["fedkin"].changes)):
            failed[name] = fault
    return {
        "model": model,
        "clients": clients,
        "repeats": repeats,
        "machine": timing.machine(),
        "versions": versions,
        "results": {
            name: {
                **told,
                "cpu_seconds_per_round": statistics.median(workers[name].cpu[1:]),
                "memory_bytes": max(workers[name].memory),
            }
            for name, told in results({n: s for n, s in seconds.items() if n not in failed}, clients).items()
        },
        "change_in_first_round": {name: worker.changes[0] for name, worker in workers.items() if worker.changes},
        "failed": failed,
    }


def other_work(changes: list[float], reference: list[float]) -> str | None:
    """What is wrong when a peer moved the global model by other amounts than fedkin did, round by round."""
    for number, (own, wanted) in enumerate(zip(changes, reference), start=1):
        allowed = FIRST_ROUND if number == 1 else LATER_ROUNDS
        if not abs(own / wanted - 1) <= allowed:
            return f"other work: in round {number} the global model changed by {own:.3g}, fedkin's by {wanted:.3g}"
    return None


def results(seconds: dict[str, list[float]], clients: int) -> dict[str, dict[str, Any]]:
    """Medians per peer, client-steps per second, and how many times fedkin's seconds that is."""
    median = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        name: {
            "seconds_per_round": value,
            "client_steps_per_second": clients * work.STEPS / value,
            "fedkin_seconds": median.get("fedkin"),
            "times_fedkin": value / median["fedkin"] if "fedkin" in median else None,
            "rounds": seconds[name],
        }
        for name, value in median.items()
    }


def shown(number: float | None, unit: float = 1) -> str:
    """A number in its unit; a dash where cases measured earlier have none."""
    return "–" if number is None else f"{number / unit:.2f}"


def table(records: list[dict[str, Any]]) -> str:
    """A Markdown table, one line per case and framework."""
    lines = [
        "| model | K | framework | seconds per round | processor seconds | memory, GiB | client-steps per second | fedkin is faster by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        case = f"| {MODELS[record['model']]} | {record['clients']:,} |"
        for name, result in record["results"].items():
            times = "" if name == "fedkin" else f"{result['times_fedkin']:.2f}×"
            lines.append(
                f"{case} {PEERS[name].title} | {result['seconds_per_round']:.2f} "
                f"| {shown(result.get('cpu_seconds_per_round'))} | {shown(result.get('memory_bytes'), 2**30)} "
                f"| {result['client_steps_per_second']:,.0f} | {times} |"
            )
        lines += [
            f"{case} {PEERS[name].title} | not measured: {why} | | | | |" for name, why in record["failed"].items()
        ]
    return "\n".join(lines)


def plot(records: list[dict[str, Any]], path: Path) -> None:
    """Client-steps per second, a panel per model; light bars are the smaller federation, dark ones the larger."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    models = [m for m in MODELS if any(r["model"] == m for r in records)]
    sizes = sorted({r["clients"] for r in records})
    names = [name for name in PEERS if any(name in r["results"] for r in records)]
    figure, panels = plt.subplots(1, len(models), figsize=(3.6 * len(models), 3), squeeze=False, sharey=True)
    for model, panel in zip(models, panels[0]):
        for i, size in enumerate(sizes):
            found: dict[str, Any] = next(
                (r["results"] for r in records if (r["model"], r["clients"]) == (model, size)), {}
            )
            rates = [found[n]["client_steps_per_second"] if n in found else 0 for n in names]
            places = np.arange(len(names)) + (i - (len(sizes) - 1) / 2) * 0.8 / len(sizes)
            shade = 0.45 + 0.55 * (i + 1) / len(sizes)
            panel.barh(places, rates, 0.8 / len(sizes), color="tab:blue", alpha=shade, label=f"K = {size:,}")
        panel.set(xscale="log", title=MODELS[model], xlabel="client-steps per second")
        panel.set_yticks(range(len(names)), [PEERS[n].title for n in names])
    panels[0][0].invert_yaxis()
    panels[0][-1].legend(fontsize="small")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def environments(names: list[str], cache: Path, install: bool) -> tuple[dict[str, str], dict[str, str]]:
    """The interpreters of the peers, and of those that are not or cannot be installed the reason."""
    pythons, missing = {}, {}
    for name in names:
        try:
            pythons[name] = python_of(name, cache, install)
        except Unavailable as problem:
            missing[name] = str(problem)
            print(f"{PEERS[name].title} is left out: {problem}", file=sys.stderr)
    return pythons, missing


def chosen(text: str, known: list[str], what: str) -> list[str]:
    names = [part for part in text.split(",") if part]
    if wrong := [name for name in names if name not in known]:
        sys.exit(f"unknown {what} {wrong[0]!r}; there are: {', '.join(known)}")
    return names


def merged(path: Path, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was measured before and not now, and what is of now, in order."""
    cases = {(r["model"], r["clients"]): r for r in (json.loads(path.read_text())["records"] if path.exists() else [])}
    for record in records:
        case = record["model"], record["clients"]
        old: dict[str, Any] = cases.get(case, {})
        asked = {*record["results"], *record["failed"]}
        kept = {
            what: {name: told for name, told in old.get(what, {}).items() if name not in asked}
            for what in ("results", "failed", "versions", "change_in_first_round")
        }
        cases[case] = record | {what: before | record[what] for what, before in kept.items()}
        for what in ("results", "failed"):
            told = cases[case][what]
            cases[case][what] = {name: told[name] for name in PEERS if name in told}
    return sorted(cases.values(), key=lambda r: (r["clients"], list(MODELS).index(r["model"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    others = [name for name in PEERS if name != "fedkin"]
    parser.add_argument(
        "--quick",
        action="store_true",
        help="logistic regression, K=100, two repeats, peers that are installed; no files unless asked",
    )
    parser.add_argument("--peers", default=",".join(others))
    parser.add_argument("--models", help="of mlr, mlp, cnn (default: all, quick: mlr)")
    parser.add_argument("--clients", help="numbers of clients (default: 100,1000)")
    parser.add_argument("--repeats", type=int, help="rounds after the warm-up (default: 5, quick: 2)")
    parser.add_argument("--limit", type=float, default=600, help="seconds a peer may take for a round")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where environments and data are kept")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    timing.begin()
    root = Path(__file__).parents[1]
    if not options.quick:
        options.json = options.json or root / "benchmarks" / "peers.json"
        options.plot = options.plot or root / "docs" / "images" / "peers.png"
    names = ["fedkin", *chosen(options.peers, others, "peer")]
    models = chosen(options.models or ("mlr" if options.quick else ",".join(MODELS)), list(MODELS), "model")
    sizes = [int(part) for part in (options.clients or ("100" if options.quick else "100,1000")).split(",")]
    options.cache.mkdir(parents=True, exist_ok=True)
    pythons, missing = environments(names, options.cache, install=not options.quick)
    records = []
    with tempfile.TemporaryDirectory(dir=options.cache) as directory:
        data = Path(directory)
        work.make_data(data, max(sizes))
        for model in models:
            np.savez(data / f"{model}.npz", *fedkin_worker.initial_parameters(model))
        for size in sizes:
            for model in models:
                repeats = options.repeats or (2 if options.quick else 5)
                record = measure(model, size, pythons, data, repeats, options.limit)
                record["failed"] |= missing
                records.append(record)
                print(
                    table([record]).partition("\n")[2].partition("\n")[2] if records[1:] else table([record]),
                    flush=True,
                )
    if options.json:
        used = {name: PEERS[name].used for name in names}
        facts = {"steps": work.STEPS, "batch": work.BATCH, "lr": work.LR, "used": used}
        everything = merged(options.json, records)
        timing.write(options.json, everything, **facts)
        if options.plot:
            plot(everything, options.plot)
    if wrong := [f"{n}: {why}" for r in records for n, why in r["failed"].items() if why.startswith("other work")]:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
