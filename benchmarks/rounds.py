"""How long a round of each method takes beside one of FedAvg: 50 clients of MNIST, an MLP with 100 hidden units.

    python benchmarks/rounds.py            measures, and writes rounds.json and the list in docs/methods.md
    python benchmarks/rounds.py --only fedproto --turns 1      one method beside FedAvg; the file keeps the others
    python benchmarks/rounds.py --quick    two methods, three rounds

Every method trains at its defaults; methods take turns, so that a busy machine disturbs all alike. A method's time is its shortest
round from the third on, by the clock and of the processor (all threads); what is done once (FedALA learns its weights in the second
round) is told apart as its longest.
"""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import timing

from fedkin import algorithms, data, train

METHODS = (
    *(
        "pfedgraph",
        "fedfomo",
        "knnper",
        "feddbe",
        "fedala",
        "mrmtl",
        "fedbabu",
        "fedrod",
        "lgfedavg",
        "fedproto",
        "cfl",
    ),
    "networklasso",
)
ROUNDS, TURNS = 6, 3
QUIET = 1.0
"""Up to this load the clock is believed."""
PAGE = timing.ROOT / "docs" / "methods.md"
BEGIN, END = "<!-- rounds: begin, written by benchmarks/rounds.py -->", "<!-- rounds: end -->"


def seconds_of(name: str, federation: Any, rounds: int) -> list[tuple[float, float]]:
    """The time of every round, by the clock and of the processor."""
    method, spent = algorithms.make(name, {}), [time.process_time()]
    own = [lambda run, record: spent.append(time.process_time())]
    result = train(federation, "feature-mlp:100", method, rounds=rounds, seed=0, eval_every=rounds, callbacks=own)
    ends = [0.0, *(record["seconds"] for record in result.history.records)]
    by_clock, of_processor = ([after - before for before, after in pairwise(each)] for each in (ends, spent))
    return list(zip(by_clock, of_processor))


def measured(methods: tuple[str, ...], rounds: int, turns: int) -> list[dict[str, Any]]:
    federation = data.load("mnist", clients=50, samples=6000, partition="dirichlet:0.5", seed=0)
    seconds_of("fedavg", federation, 1)  # so that no measurement pays for imports
    times: dict[str, list[list[tuple[float, float]]]] = {}
    for _ in range(turns):
        for name in ("fedavg", *methods):
            times.setdefault(name, []).append(seconds_of(name, federation, rounds))
    rows = []
    for name, turned in times.items():
        clock, processor = (min(second[i] for turn in turned for second in turn[2:]) for i in (0, 1))
        longest = min(max(second[1] for second in turn[1:]) for turn in turned)
        rows.append({"method": name, "seconds": clock, "cpu": processor, "longest": longest})
    base = rows[0]
    told = {"base": base["cpu"], "load": timing.LOAD}
    return [
        {**row, **told, "times": row["seconds"] / base["seconds"], "cpu_times": row["cpu"] / base["cpu"]}
        for row in rows
    ]


def told(facts: dict[str, Any]) -> str:
    """The sentences of the page: by the clock if the machine was quiet, else of the processor."""
    records = {record["method"]: record for record in facts["records"]}
    busy = max(record["load"] for record in records.values())
    key, what = ("times", "Time") if busy < QUIET else ("cpu_times", "Processor time")
    order = sorted((name for name in records if name != "fedavg"), key=lambda name: records[name][key])
    ratios = ", ".join(f"{algorithms.get(name).title} {records[name][key]:.1f}" for name in order)
    over = [algorithms.get(name).title for name in order if records[name][key] > 3]
    limit = f"Over three times FedAvg's: {', '.join(over)}." if over else "None is over three times FedAvg's."
    machine = f"{facts['machine']['cores']} cores, load {busy:.1f}" + (
        "" if busy < QUIET else ", so that the clock says nothing"
    )
    return (
        f"{what} of a round on an MLP with 50 clients of MNIST at each method's defaults, FedAvg = 1 (shortest of {ROUNDS - 2} rounds in "
        f"{facts['turns']} turn{'s' if facts['turns'] > 1 else ''}; {machine}): {ratios}. {limit} FedALA takes {records['fedala']['longest'] / records['fedala']['base']:.0f} in the "
        "round in which it first learns A_k, by ten passes over the data."
    )


def written(page: Path, facts: dict[str, Any]) -> None:
    """Put the sentences between the page's markers."""
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{told(facts)}\n{END}{rest.partition(END)[2]}")


def main() -> None:
    parser = timing.parser("rounds", __doc__, "two methods, three rounds")
    parser.add_argument(
        "--only", nargs="*", default=list(METHODS), help="measure these, keep what the file says of others"
    )
    parser.add_argument("--turns", type=int, default=TURNS)
    options = timing.parsed(parser)
    methods, rounds, turns = tuple(options.only), ROUNDS, options.turns
    if options.quick:
        methods, rounds, turns = ("fedrod", "fedproto"), 3, 1
    records = measured(methods, rounds, turns)
    for record in records:
        print(
            f"{record['method']:14s} {record['seconds']:.3f} s  {record['times']:.2f}  of the processor {record['cpu_times']:.2f}"
        )
    if options.json is not None and options.json.exists() and set(methods) < set(METHODS):
        new = {record["method"] for record in records}
        kept = json.loads(options.json.read_text())["records"]
        records += [record for record in kept if record["method"] not in new and "cpu_times" in record]
    timing.write(options.json, records, rounds=rounds, turns=turns)
    if options.json is not None and not options.quick and {record["method"] for record in records} > set(METHODS):
        written(PAGE, json.loads(options.json.read_text()))


if __name__ == "__main__":
    main()
