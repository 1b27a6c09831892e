"""Where the time of a round goes: what is the training itself, and what is around it.

    python benchmarks/round_parts.py [--quick] [--only MODEL …] [--json FILE] [--plot FILE]

Whole rounds of FedAvg, FedU, FedPnP and Kin, in which 100 and 1,000 clients take 20 steps of batch 20 each, on 400 samples of
1×28×28 (1,000 clients with the CNN: 100 samples in four epochs). FedU has its default, all pairs of equal weight; "full" is
all pairs of random weights, "sparse" ten neighbours; FedPnP's filter is a full matrix on any graph. No round is tested or saved.
Processor time of one thread.

"kernel" is the arithmetic of training, gathering each batch's samples included; "plan" makes the plan of batches; "blocks" copies a
chunk's rows in and out, makes its blocks and steps through its batches; "host" is what a host does around training (rows, norms,
finite answers, private state); "trying" is Kin's trying of its candidates' models, which some rounds have; "coupling" is the
product with the coupling's matrix, "influence" who shaped whom, "server" the rest of the method's round (placing rows, making the coupling,
the log), "loop" what the run adds (the cohort, the check for divergence, the history). The first two rounds, which take fresh memory,
are left out.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import Any

import numpy as np
import timing
import torch

from fedkin import Federation, algorithm, algorithms, train
from fedkin.algorithms import fedpnp, fedu
from fedkin.algorithms.kin import Kin
from fedkin.couplings import Average, GraphFilter, LaplacianStep
from fedkin.couplings.mixing import Mixing
from fedkin.engines import asking, host
from fedkin.local import training
from fedkin.local.kernels import chain
from fedkin.local.kernels.grouped import GroupedKernel
from fedkin.run import Run
from fedkin.run.callbacks import Callback

MODELS = {"logistic regression": "mlr", "MLP 784-100-100-10": "mlp:100,100", "FedPnP MNIST CNN": "fedpnp-mnist"}
GRAPHS = {
    "fedavg": None,
    "fedu": None,
    "fedu, full": "random:0.1",
    "fedu, sparse": "knn:10",
    "fedpnp": "random:0.1",
    "kin": None,
}
"""Methods, and over which graph, where it is not the default."""
FRESH = 2
"""So many rounds are left out."""
PARTS = ("kernel", "plan", "blocks", "host", "trying", "coupling", "influence", "server", "loop")
PLACES: list[timing.Place] = [
    (Run, "_one_round", lambda *_, **__: "loop"),
    (algorithm.Algorithm, "round", lambda *_, **__: "server"),
    (Kin, "round", lambda *_, **__: "server"),
    (Kin, "estimated", lambda *_, **__: "trying"),
    (asking.Asking, "ask", lambda *_, **__: "host"),
    (host.Host, "answer", lambda _self, task, *_: "host" if task == "train" else "trying"),
    (training, "train_chunks", lambda *_, **__: "blocks"),
    (training, "plan_batches", lambda *_, **__: "plan"),
    (training.Chunk, "descend", lambda *_, **__: "blocks"),
    (chain, "descend_chain", lambda *_, **__: "kernel"),
    (GroupedKernel, "gradient", lambda *_, **__: "kernel"),
    (Average, "apply", lambda *_, **__: "coupling"),
    (LaplacianStep, "moved", lambda *_, **__: "coupling"),
    (GraphFilter, "apply", lambda *_, **__: "coupling"),
    (Mixing, "apply", lambda *_, **__: "coupling"),
    (algorithm, "follow_influence", lambda *_, **__: "influence"),
    (fedu, "follow_influence", lambda *_, **__: "influence"),
    (fedu, "total_variation", lambda *_, **__: "server"),
    (fedpnp, "total_variations", lambda *_, **__: "server"),
]


def made(clients: int, samples: int) -> Federation:
    """Random images in ten classes."""
    rng = np.random.default_rng(0)
    sites = {
        f"client-{k}": (rng.random((samples, 1, 28, 28), dtype=np.float32), np.arange(samples) % 10)
        for k in range(clients)
    }
    return Federation.from_arrays(sites, classes=list(range(10)), test_fraction=0)


class Enough(Exception):
    """The rounds that are counted are over."""


class Counted(Callback):
    """Leaves out what the first rounds pay alone, and ends the run before anything is tested."""

    def __init__(self, spent: dict[str, list[float]], last: int) -> None:
        self.spent, self.last = spent, last

    def on_round(self, run: Run, record: dict[str, Any]) -> None:
        if record["round"] == FRESH:
            self.spent.clear()
        if record["round"] == self.last:
            raise Enough


def measure(label: str, clients: int, samples: int, epochs: int, last: int) -> list[dict[str, Any]]:
    """Every method on one model and number of clients."""
    torch.set_num_threads(1)
    federation, records = made(clients, samples), []
    for name, graph in GRAPHS.items():
        spent: dict[str, list[float]] = defaultdict(list)
        own = {"peers": 5} if name == "kin" else {}
        method = algorithms.make(name.partition(",")[0], {"epochs": epochs, "batch_size": 20, "lr": 0.01, **own})
        how: dict[str, Any] = {"rounds": 8, "eval_every": 8, "seed": 0, "workers": 1}
        with timing.watched(PLACES, spent), contextlib.suppress(Enough):
            train(federation, MODELS[label], method, graph, callbacks=[Counted(spent, last)], **how)
        total = {part: sum(spent[part]) for part in PARTS}
        whole = sum(total.values())
        records.append(
            {
                "model": label,
                "method": name,
                "clients": clients,
                "samples": samples,
                "epochs": epochs,
                "round_seconds": whole / (last - FRESH),
                **{part: value / whole for part, value in total.items()},
                "outside": 1 - total["kernel"] / (whole - total["trying"]),
            }
        )
    return records


def main() -> None:
    made_parser = timing.parser("round_parts", __doc__, quick="100 clients with 100 samples, two rounds")
    made_parser.add_argument(
        "--only", action="append", choices=[*MODELS], help="measure this model alone; may be repeated"
    )
    options = timing.parsed(made_parser)
    records = []
    print(f"{'model':22}{'K':>6}  {'method':13}{'round s':>8}" + "".join(f"{part:>11}" for part in (*PARTS, "outside")))
    for label in options.only or MODELS:
        for clients in (100,) if options.quick else (100, 1000):
            few = clients == 1000 and "CNN" in label
            how = (100, 4, FRESH + 2) if few else (100, 1, FRESH + 2) if options.quick else (400, 1, FRESH + 4)
            for r in timing.case(f"{label}, {clients}", options.limit, measure, label, clients, *how) or ():
                shares = "".join(f"{r[part]:>11.1%}" for part in (*PARTS, "outside"))
                print(f"{label:22}{clients:>6}  {r['method']:13}{r['round_seconds']:>8.3f}{shares}", flush=True)
                records.append(r)
    timing.write(options.json, records, batch=20)
    timing.bars(
        options.plot,
        "What of a round is not the kernel",
        "%",
        [f"{label.replace(' 784', chr(10) + '784')}\n{clients} clients" for label in MODELS for clients in (100, 1000)],
        {
            name: [
                100
                * sum(
                    r["outside"] for r in records if (r["model"], r["clients"], r["method"]) == (label, clients, name)
                )
                for label in MODELS
                for clients in (100, 1000)
            ]
            for name in GRAPHS
        },
        goal=10,
    )


if __name__ == "__main__":
    main()
