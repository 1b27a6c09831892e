"""How fast this machine trains a model: measured once by a short probe, then remembered in fedkin's cache folder."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.files import versions, write_json
from fedkin.graphs import ClientGraph

SHAPES: dict[str, tuple[int, ...]] = {
    "mnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "svhn": (3, 32, 32),
    "har": (561,),
    "harbox": (900,),
    "vehicle": (100,),
    "metr-la": (12,),
    "shakespeare": (80,),
}
"""Inputs of the sets whose models are probed."""
ENOUGH = 1.0
"""Seconds after which no further round is measured: slow models are measured well by one."""


@cache
def probe(model: str, data: str, batch_size: int) -> float:
    """Seconds (of the processor) per training sample of a data set on one core; 0 where it cannot be probed."""
    if data not in SHAPES:
        return 0.0
    path = _place(model, data, batch_size)
    with suppress(OSError, ValueError, KeyError, TypeError):
        return float(json.loads(path.read_text())["seconds"])
    seconds = measure(model, data, batch_size)
    with suppress(OSError, FedkinError):  # a cache that cannot be written costs time, nothing else
        write_json(path, {"model": model, "data": data, "batch_size": batch_size, "seconds": seconds})
    return seconds


def _place(model: str, data: str, batch_size: int) -> Path:
    """The file of a probe: another one for another machine, other versions, or other kernels."""
    from fedkin.data.store import cache_folder

    machine = [platform.node(), platform.machine(), versions(), _kernels()]
    text = json.dumps([model, data, batch_size, machine], sort_keys=True)
    return cache_folder() / ".speed" / f"{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}.json"


@cache
def _kernels() -> str:
    """A hash of the source of local training."""
    from fedkin import local

    files = sorted(Path(str(local.__file__)).parent.rglob("*.py"))
    return hashlib.blake2b(b"".join(file.read_bytes() for file in files), digest_size=8).hexdigest()


def made_up(data: str, clients: int = 16, samples: int = 60, test_fraction: float = 0.1) -> Federation:
    """Random numbers in the shape of a data set: images and signals of ten classes, series of speeds along a road, texts."""
    rng, shape = np.random.default_rng(0), (samples, *SHAPES[data])
    names = [f"client-{k}" for k in range(clients)]
    if data == "metr-la":
        series = {name: (rng.normal(size=shape), rng.normal(size=shape)) for name in names}
        road = np.eye(clients, k=1) + np.eye(clients, k=-1)
        return Federation.from_arrays(series, test_fraction=test_fraction, graph=ClientGraph(road, names=names))
    if data == "shakespeare":
        texts = {name: (rng.integers(0, 100, shape), rng.integers(0, 100, samples)) for name in names}
        return Federation.from_arrays(texts, test_fraction=test_fraction, classes=range(100), tokens=True)
    labels = [rng.permutation((np.arange(samples) + k) % 10) for k in range(clients)]
    signals = {name: (rng.normal(size=shape).astype(np.float32), y) for name, y in zip(names, labels)}
    return Federation.from_arrays(signals, test_fraction=test_fraction)


def measure(model: str, data: str, batch_size: int) -> float:
    """A round or some of FedAvg on 16 made-up clients; the fastest counts."""
    import torch

    from fedkin.algorithms import make
    from fedkin.run import prepare
    from fedkin.run.options import make_options

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        federation = made_up(data)
        method = make("fedavg", {"batch_size": batch_size})
        run = prepare(federation, model, method, make_options(rounds=4, eval_every=4, workers=1))
        rounds: list[float] = []
        while len(rounds) < 3 and sum(rounds) < ENOUGH:
            started = time.process_time()
            run._one_round()
            rounds.append(time.process_time() - started)
        run.clients.close()
    except FedkinError:
        return 0.0
    finally:
        torch.set_num_threads(threads)
    return float(min(rounds) / federation.train.sizes.sum())
