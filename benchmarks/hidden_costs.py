"""What a default run spends beside its rounds: evaluation, checkpoints, logging.

    python benchmarks/hidden_costs.py [--quick] [--epochs N] [--json FILE] [--plot FILE]

Default settings (50 rounds, tests and checkpoints at the default cadence, a folder to write to, no progress bar), on the
digits of the demo and on data of the size of MNIST (100 clients with 600 training samples of 784 features each). "post" is
what testing *after local training* costs: one training of all clients. When all take part the next round need not train
again (fedkin/local/ahead.py), which is "saved". "log" is what the method computes for its log, influence included;
"loop" the rest: who takes part, the check for divergence, the history. All are shares of the rounds alone (50 times the
median round); "together" is what the whole loop takes beyond them. "end" is not part of it: after the last round every
client makes the models it could deploy, received and locally trained, tests them, and all is saved.

Times are processor time in one thread, which others on the machine disturb least; checkpoints, which wait for the disk, are
measured by the clock.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import timing
import torch

from fedkin import Federation, algorithm, data, train
from fedkin.algorithm import Algorithm
from fedkin.algorithms import fedpnp, fedu, make
from fedkin.run import Run


def mnist_like(clients: int, samples: int) -> Federation:
    """Random images of 784 pixels in ten classes."""
    rng = np.random.default_rng(0)
    sites = {
        f"client-{k}": (rng.random((samples, 784), dtype=np.float32), np.arange(samples) % 10) for k in range(clients)
    }
    return Federation.from_arrays(sites)


PLACES: list[timing.Place] = [
    (Run, "_one_round", lambda *_: "loop"),
    (Run, "save_checkpoint", lambda run: "end" if run.state.round == run.options.rounds else "checkpoints"),
    (Run, "_ask_everyone", lambda run, post, disclose: "end" if disclose else ("post" if post else "pre")),
    (algorithm.Algorithm, "round", lambda *_: "rounds"),
    (fedu, "total_variation", lambda *_: "log"),
    (fedpnp, "total_variations", lambda *_: "log"),
    (algorithm, "follow_influence", lambda *_: "log"),
    (fedu, "follow_influence", lambda *_: "log"),
    (Run, "_result", lambda *_: "result"),
]
PARTS = ("pre", "post", "checkpoints", "log", "loop")


def measure(title: str, federation: Federation, model: str, method: Algorithm, **options: Any) -> dict[str, Any]:
    spent: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, timing.watched(PLACES, spent, clocks=frozenset({"save_checkpoint"})):
        graph = None if method.name == "fedavg" else "knn:5"
        train(federation, model, method, graph, out=Path(folder) / "run", workers=1, validation="given", **options)
    rounds = spent["rounds"]
    alone = float(np.median(rounds)) * len(rounds)
    shares = {part: sum(spent[part]) / alone for part in PARTS}
    known = [spell for spell in rounds if spell < np.median(rounds) / 2] if spent["post"] else []
    saved = sum(known) / alone - len(known) / len(rounds)  # rounds that followed a test, beside a median round each
    return {
        "run": title,
        "method": method.name,
        "model": model,
        "round_seconds": alone / len(rounds),
        **shares,
        "saved": saved,
        "together": sum(shares.values()) + saved,
        "end": sum(spent["end"]) / alone,
    }


def measure_all(title: str, clients: int, samples: int, epochs: int | None) -> list[dict[str, Any]]:
    """Three methods on one data set, with all clients in every round and with a tenth of them."""
    torch.set_num_threads(1)
    digits = data.load("digits", clients=20, partition="dirichlet:0.3", seed=0)
    train(digits, "mlp", "fedavg", rounds=1)  # what is only paid once
    federation = digits if title == "digits" else mnist_like(clients, samples)
    return [
        measure(
            f"{title}, {share}",
            federation,
            "mlp",
            make(method, {"epochs": epochs} if epochs else {}),
            fraction=fraction,
        )
        for method in ("fedavg", "fedu", "fedpnp")
        for share, fraction in (("all", 1.0), ("a tenth", 0.1))
    ]


def main() -> None:
    parser = timing.parser("hidden_costs", __doc__, quick="fewer clients and samples")
    parser.add_argument("--epochs", type=int, help="passes over the data in a round (default: the methods' own)")
    options = timing.parsed(parser)
    clients, samples = (20, 200) if options.quick else (100, 800)
    records = []
    for title in ("digits", f"{clients} × {samples} × 784"):
        found = timing.case(title, options.limit, measure_all, title, clients, samples, options.epochs)
        records += found or []
    columns = (*PARTS, "saved", "together", "end")
    print(f"{'run':26}{'method':8}{'round ms':>9}" + "".join(f"{part:>{len(part) + 5}}" for part in columns))
    for r in records:
        shares = "".join(f"{r[part]:>{len(part) + 5}.1%}" for part in columns)
        print(f"{r['run']:26}{r['method']:8}{1000 * r['round_seconds']:>9.1f}{shares}")
    timing.write(options.json, records)
    timing.bars(
        options.plot,
        "Testing, saving and logging in a default run",
        "% of the rounds",
        [f"{r['run']}".replace(", ", "\n").replace(" × ", "×") for r in records if r["method"] == "fedavg"],
        {
            method: [100 * r["together"] for r in records if r["method"] == method]
            for method in ("fedavg", "fedu", "fedpnp")
        },
        goal=15,
    )


if __name__ == "__main__":
    main()
