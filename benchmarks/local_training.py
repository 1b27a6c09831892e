"""Stacked local training against the plain per-client nn.Module + torch.optim loop, side by side in one run.

    python benchmarks/local_training.py [--quick] [--only CASE …] [--json FILE] [--plot FILE] [--limit SECONDS]
    python benchmarks/local_training.py --show      prints the table of docs/benchmarks.md and draws the plot, from the JSON file

K=100 clients (20 for the modules of no particular shape), 20 steps, batch 20. Two baselines: the loop as users write it (torch's default
threads), and the loop with one single-threaded process per core, which holds its own clients. All do the same steps on the same
batches; with another optimiser than SGD, fedkin with SGD is measured beside it. Every model is measured in a fresh process, its
repeats interleaved, and given up after --limit seconds. --only measures some cases, and leaves the others in the JSON file as they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import timing
import torch
from torch import Tensor, nn

from fedkin.federation import Federation
from fedkin.local.oracle import train_by_loop
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.training import train_rows
from fedkin.models import ModelSpec
from fedkin.streams import Streams

STEPS, BATCH = 20, 20
SETTINGS = Sgd(lr=0.01, epochs=1, batch_size=BATCH)
OPTIMISERS = {"MLP, Adam": SETTINGS.model_copy(update={"optimiser": "adam"})}
"""Cases that are not trained by SGD."""


class Residual(nn.Module):
    """A network with a shortcut: no chain of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(784, 64), nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.flatten(1)).relu()
        return self.last(hidden + self.inner(hidden).relu())


class Recurrent(nn.Module):
    """Rows of an image as a sequence."""

    def __init__(self, kind: type[nn.RNNBase] = nn.GRU) -> None:
        super().__init__()
        self.cell, self.last = kind(28, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cell(x[:, 0])[0][:, -1])


class Attention(nn.Module):
    """A transformer's block, 64 wide with four heads, on the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.place = nn.Linear(28, 64), nn.Parameter(torch.zeros(28, 64))
        self.block = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(self.first(x[:, 0]) + self.place).mean(1))


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(8, channels)


class Shortcut(nn.Module):
    """Two convolutions and a way past them."""

    def __init__(self, channels: int, out: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        stride = 1 if channels == out else 2
        first, second = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.inner = nn.Sequential(first, norm(out), nn.ReLU(), second, norm(out))
        self.past = (
            nn.Identity() if stride == 1 else nn.Sequential(nn.Conv2d(channels, out, 1, 2, bias=False), norm(out))
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.inner(x) + self.past(x))


def resnet(blocks: int, norm: Callable[[int], nn.Module]) -> nn.Module:
    """He et al., Deep Residual Learning, 2016, for 32×32 images: 6·blocks + 2 layers, 16, 32 and 64 channels."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), norm(16), nn.ReLU()]
    channels = 16
    for out in (16, 32, 64):
        for _ in range(blocks):
            layers.append(Shortcut(channels, out, norm))
            channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def wide() -> nn.Module:
    """Convolutions too wide to be grouped."""
    first, second = nn.Conv2d(1, 48, 5, padding=2), nn.Conv2d(48, 64, 5, padding=2)
    pool = nn.MaxPool2d(2)
    return nn.Sequential(first, nn.ReLU(), pool, second, nn.ReLU(), pool, nn.Flatten(), nn.Linear(3136, 10))


def dropping() -> nn.Module:
    """Dropout in a plain chain: masks from the clients' own streams."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Dropout(0.2), nn.Linear(100, 10))


def normed() -> nn.Module:
    """Layer norm between linear layers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.LayerNorm(100), nn.ReLU(), nn.Linear(100, 10))


CASES = {
    "logistic regression 784→10": ("mlr", (1, 28, 28)),
    "MLP 784-100-100-10": ("mlp:100,100", (1, 28, 28)),
    "MLP, Adam": ("mlp:100,100", (1, 28, 28)),
    "FedPnP MNIST CNN": ("fedpnp-mnist", (1, 28, 28)),
    "FedPnP CIFAR-10 CNN": ("fedpnp-cifar10", (3, 32, 32)),
}
OTHERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "shortcut": (Residual, (1, 28, 28)),
    "GRU": (Recurrent, (1, 28, 28)),
    "LSTM": (partial(Recurrent, nn.LSTM), (1, 28, 28)),
    "layer norm": (normed, (1, 28, 28)),
    "dropout": (dropping, (1, 28, 28)),
    "wide CNN": (wide, (1, 28, 28)),
    "transformer block": (Attention, (1, 28, 28)),
    "ResNet-8, batch norm": (partial(resnet, 1, nn.BatchNorm2d), (3, 32, 32)),
    "ResNet-8, group norm": (partial(resnet, 1, group_norm), (3, 32, 32)),
    "ResNet-20, batch norm": (partial(resnet, 3, nn.BatchNorm2d), (3, 32, 32)),
    "ResNet-20, group norm": (partial(resnet, 3, group_norm), (3, 32, 32)),
}


def make_shard(label: str, clients: Iterable[int]) -> Shard:
    """Random samples of these clients, the same in whichever process they are made."""
    model, shape = {**CASES, **OTHERS}[label]
    n, data = STEPS * BATCH, {}
    for k in clients:
        rng = np.random.default_rng([0, k])
        data[f"c{k}"] = rng.standard_normal((n, *shape), dtype=np.float32), rng.integers(0, 10, n)
    federation = Federation.from_arrays(data, classes=list(range(10)), test_fraction=0)
    return Shard(federation, ModelSpec.of(model, federation.task), Streams(0))


def by_loop(shard: Shard, settings: Sgd) -> None:
    train_by_loop(shard, np.arange(len(shard)), _start(shard), settings, round=1)


def _start(shard: Shard) -> Tensor:
    return shard.spec.initial_row(shard.streams).expand(len(shard), -1)


_own: list[tuple[Shard, Sgd]] = []
"""In a process of its own: the clients it holds, and how they train."""


def _hold(label: str, clients: list[int]) -> None:
    torch.set_num_threads(1)
    _own.append((make_shard(label, clients), OPTIMISERS.get(label, SETTINGS)))


def _train_own() -> None:
    by_loop(*_own[0])


def measure(label: str, clients: int, repeats: int) -> dict[str, Any]:
    shard, cores = make_shard(label, range(clients)), len(os.sched_getaffinity(0))
    ids, rows, settings = np.arange(clients), _start(shard), OPTIMISERS.get(label, SETTINGS)
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                ProcessPoolExecutor(1, timing.FRESH, initializer=_hold, initargs=(label, share.tolist()))
            )
            for share in np.array_split(ids, cores)
        ]

        def side_by_side() -> None:
            for done in wait([process.submit(_train_own) for process in processes]).done:
                done.result()

        tasks: dict[str, Callable[[], object]] = {
            "fedkin": lambda: train_rows(shard, ids, rows, settings, round=1),
            "loop": lambda: by_loop(shard, settings),
            "loop, a process per core": side_by_side,
        }
        if settings != SETTINGS:
            tasks["fedkin, SGD"] = lambda: train_rows(shard, ids, rows, SETTINGS, round=1)
        seconds = timing.medians(tasks, repeats)
    work = clients * STEPS
    beside = {"times_sgd": seconds["fedkin"] / seconds["fedkin, SGD"]} if "fedkin, SGD" in seconds else {}
    return {
        "model": label,
        "kernel": shard.choice.name,
        "clients": clients,
        "client_steps_per_second": {name: work / value for name, value in seconds.items()},
        "times_the_loop": seconds["loop"] / seconds["fedkin"],
        "times_a_process_per_core": seconds["loop, a process per core"] / seconds["fedkin"],
        **beside,
    }


HEAD = ("model", "kernel", "fedkin", "plain loop", "loop, one process per core", "× loop", "× process per core")


def table(records: list[dict[str, Any]]) -> str:
    """Client-steps per second and their ratios as a Markdown table."""
    rows = [HEAD, ("---",) * len(HEAD)]
    for record in records:
        rate = record["client_steps_per_second"]
        numbers = [f"{rate[way]:,.0f}" for way in ("fedkin", "loop", "loop, a process per core")]
        ratios = [f"{record[name]:.1f}" for name in ("times_the_loop", "times_a_process_per_core")]
        rows.append((record["model"], record["kernel"], *numbers, *ratios))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def draw(path: Path | None, records: list[dict[str, Any]]) -> None:
    timing.bars(
        path,
        "Local training: client-steps per second, as a multiple of",
        "times",
        [record["model"].replace(" ", "\n").replace("100-100", "100-\n100") for record in records],
        {
            "the loop as users write it": [record["times_the_loop"] for record in records],
            "the loop, one process per core": [record["times_a_process_per_core"] for record in records],
        },
        goal=1,
    )


def main() -> None:
    made = timing.parser("local_training", __doc__, quick="fewer clients and repeats")
    made.add_argument("--show", action="store_true", help="print the table and draw the plot of the JSON file")
    made.add_argument(
        "--only", action="append", choices=[*CASES, *OTHERS], help="measure this case alone; may be repeated"
    )
    options = timing.parsed(made)
    if options.show:
        records = json.loads(options.json.read_text())["records"]
        print(table(records))
        draw(options.plot, records)
        return
    records = {}
    if options.only and options.json and options.json.exists():
        records = {record["model"]: record for record in json.loads(options.json.read_text())["records"]}
    print(f"{'model':30}{'kernel':>8}{'fedkin':>10}{'loop':>9}{'per core':>10}{'× loop':>9}{'× per core':>12}")
    for label in options.only or (*CASES, *OTHERS):
        short = label in OTHERS
        clients, repeats = (4, 1) if options.quick else (20, 5) if short else (100, 7)
        record = timing.case(label, options.limit, measure, label, clients, repeats)
        if record is None:
            continue
        rate = record["client_steps_per_second"]
        beside = f"   {record['times_sgd']:.2f} × the time of SGD" if "times_sgd" in record else ""
        print(
            f"{label:30}{record['kernel']:>8}{rate['fedkin']:>10,.0f}{rate['loop']:>9,.0f}"
            f"{rate['loop, a process per core']:>10,.0f}{record['times_the_loop']:>9.1f}"
            f"{record['times_a_process_per_core']:>12.1f}{beside}",
            flush=True,
        )
        records[label] = record
    told = [records[label] for label in (*CASES, *OTHERS) if label in records]
    timing.write(options.json, told, steps=STEPS, batch=BATCH)
    draw(options.plot, told)


if __name__ == "__main__":
    main()
