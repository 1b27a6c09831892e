"""Memory and seconds of a round with a frozen part of ten million numbers and a head of 5,010, against one module per client.

    python benchmarks/frozen.py [--quick] [--json FILE]

FedAvg on clients with 20 training and 5 test samples of 256 numbers, ten classes. The backbone (256 → 2,000 → 3,792 → 500,
ReLU between) is frozen, the head (500 → 10) is trained, one epoch per round in batches of 10. Every case runs in a process
of its own:

    kept     fedkin as it is: features of the frozen part are computed once per sample and kept
    passed   cache_features="off": every batch passes the frozen part again, which all clients share
    loop     the plain loop: a list of nn.Modules, one per client, each with a backbone of its own, and torch.optim

"peak" is the largest resident memory of the process (getrusage) beyond what it had when the data were made, so beyond torch
and the data. The first round of "kept" computes the features. For 1,000 clients the loop would hold 40 GB of backbones: it
is not run, and the ratio is to its 100 clients. (--quick: a hundredth of the backbone, 20 and 40 clients.)
"""

from __future__ import annotations

import resource
import time
from itertools import pairwise
from typing import Any

import numpy as np
import timing

FEATURES, CLASSES, TRAIN, TEST, ROUNDS = 256, 10, 20, 5, 4
WHOLE, QUICK = (2000, 3792, 500), (200, 260, 50)
HEAD = f"{'clients':>8} {'way':8} {'frozen':>11} {'head':>6} {'peak MiB':>9} {'first round s':>14} {'round s':>9}"


def peak() -> int:
    """Bytes: the largest resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def clients_of(count: int) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Client → its splits, float32; labels by a linear map of the inputs."""
    rng = np.random.default_rng(0)
    teacher = rng.normal(size=(FEATURES, CLASSES))

    def split(n: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(n, FEATURES)).astype(np.float32)
        return x, (x @ teacher).argmax(axis=1)

    return {f"client-{k:04d}": {"train": split(TRAIN), "test": split(TEST)} for k in range(count)}


def network(widths: tuple[int, ...]) -> Any:
    """The backbone, frozen, and the head."""
    from collections import OrderedDict

    import torch
    from torch import nn

    torch.manual_seed(0)
    sizes = (FEATURES, *widths)
    layers = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())]
    backbone = nn.Sequential(*layers).requires_grad_(False)
    return nn.Sequential(OrderedDict(features=backbone, classifier=nn.Linear(widths[-1], CLASSES)))


def one(count: int, way: str, widths: tuple[int, ...]) -> dict[str, Any]:
    """One case, in this process."""
    import fedkin
    from fedkin.algorithms import make

    federation = fedkin.Federation.from_arrays(clients_of(count), classes=list(range(CLASSES)))
    begun = peak()
    net = network(widths)
    frozen = sum(p.numel() for p in net.parameters() if not p.requires_grad)
    head = sum(p.numel() for p in net.parameters() if p.requires_grad)
    if way == "loop":
        rounds = plain_loop(federation, widths)
    else:
        method = make("fedavg", {"lr": 0.1, "epochs": 1, "batch_size": 10})
        cache = "auto" if way == "kept" else "off"
        how: dict[str, Any] = {"rounds": ROUNDS, "post": "last", "eval_every": ROUNDS, "influence": False}
        result = fedkin.train(federation, net, method, cache_features=cache, **how)
        rounds = np.diff([0.0, *(record["seconds"] for record in result.history)]).tolist()
    told = {"clients": count, "way": way, "frozen": frozen, "head": head, "peak": peak() - begun}
    return {**told, "first": rounds[0], "round": float(np.median(rounds[1:]))}


def plain_loop(federation: Any, widths: tuple[int, ...]) -> list[float]:
    """FedAvg as users write it: one module per client. Seconds of every round."""
    import copy

    import torch

    common = network(widths)
    models = [copy.deepcopy(common) for _ in federation.names]
    splits = [(torch.from_numpy(np.asarray(x, dtype=np.float32)), torch.from_numpy(y)) for x, y in federation.train]
    taken = []
    for t in range(ROUNDS):
        began = time.perf_counter()
        for k, (model, (x, y)) in enumerate(zip(models, splits)):
            optimiser = torch.optim.SGD(model.classifier.parameters(), lr=0.1)
            order = torch.from_numpy(np.random.default_rng([t, k]).permutation(len(y)))
            for batch in order.split(10):
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimiser.step()
        with torch.no_grad():
            for name, value in common.classifier.named_parameters():
                mean = torch.stack([dict(model.classifier.named_parameters())[name] for model in models]).mean(dim=0)
                for model in models:
                    dict(model.classifier.named_parameters())[name].copy_(mean)
                value.copy_(mean)
        taken.append(time.perf_counter() - began)
    return taken


def line(r: dict[str, Any]) -> str:
    numbers = f"{r['peak'] / 2**20:9,.0f} {r['first']:14.2f} {r['round']:9.4f}"
    return f"{r['clients']:8,} {r['way']:8} {r['frozen']:11,} {r['head']:6,} {numbers}"


def table(facts: dict[str, Any]) -> str:
    """The lines of docs/real-size.md."""
    rows = ["| clients | way | peak beyond the data | first round | later rounds |", "|---|---|---|---|---|"]
    for r in facts["records"]:
        sizes = f"{r['peak'] / 2**20:,.0f} MiB | {r['first']:.2f} s | {r['round']:.3f} s"
        rows.append(f"| {r['clients']:,} | {r['way']} | {sizes} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    options = timing.parsed(timing.parser("frozen", __doc__, "a hundredth of the backbone, 20 and 40 clients"))
    widths, few, many = (QUICK, 20, 40) if options.quick else (WHOLE, 100, 1000)
    records = []
    print(HEAD)
    for count, way in ((few, "loop"), (few, "passed"), (few, "kept"), (many, "kept")):
        record = timing.case(f"{count} clients, {way}", options.limit, one, count, way, widths)
        if record is not None:
            records.append(record)
            print(line(record), flush=True)
    timing.write(options.json, records)


if __name__ == "__main__":
    main()
