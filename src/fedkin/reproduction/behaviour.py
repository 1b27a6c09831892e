"""What the code does, not how it is written: a fingerprint by which a cell outlives edits that change no number.

A cell keeps what its method did in a short run: its own parameters, model and graph, in float64, on made-up clients in
the shape of its data; and what its real clients were. `fedkin reproduce --verify` tries both again: code that does the same
is taken for the same. What shows only late in a run, such as the end of a schedule, it does not see.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pkgutil import resolve_name
from typing import Any

import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.files import plain
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
"""Inputs of the sets whose clients are made up."""
PROBE_SAMPLES = 200
"""Of all made-up clients together, but at least four a client."""
DECIMALS = 7
"""Of the numbers compared, as shares of how far the models moved: far above what another order of summation changes in
float64, and enough to see FedProx's pull in two steps at rate 0.01."""
RESIDUE = 1e-12
"""Numbers smaller than this should be zero: what is left of them is rounding, which differs from processor to processor."""
CLOCKS = ("seconds", "versions")
"""Entries of what a function returns that say how long it took, or where."""


def behaviour_of(settings: Mapping[str, Any], short: Mapping[str, Any]) -> str | None:
    """A hash of what these settings do; None where that cannot be tried here.

    A function is called with the parameters of `short`, its table's smoke scale. A cell of that scale is as short as its
    fingerprint, so it needs none.
    """
    if settings == short or settings.get("data", {}).get("name", "mnist") not in SHAPES:
        return None
    return _tried(json.dumps(short if "function" in settings else settings, sort_keys=True))


@cache
def _tried(text: str) -> str | None:
    """The hash; the cells of all seeds share it."""
    settings = json.loads(text)
    try:
        if "function" in settings:
            numbers = list(_numbers(plain(resolve_name(settings["function"])(seed=0, **settings["parameters"]))))
        else:
            numbers = [*_clients(json.dumps(settings["data"], sort_keys=True)), *_run(settings)]
    except (FedkinError, OSError):
        return None
    return hashed(numbers)


def hashed(numbers: Iterable[float]) -> str:
    """
    >>> hashed([1 / 3, 0.0]) == hashed([0.33333333333, -1e-17])
    True
    """
    rounded = " ".join(f"{0.0 if abs(number) < RESIDUE else number:.{DECIMALS}g}" for number in numbers)
    return hashlib.blake2b(rounded.encode(), digest_size=6).hexdigest()


@cache
def _clients(source: str) -> tuple[float, ...]:
    """What the real clients of seed 0 are: their sizes, and sums over samples that see their order."""
    from fedkin import data

    federation = data.load(**{"seed": 0, **json.loads(source)})
    found: list[float] = []
    for part in (federation.train, federation.test):
        wave = np.cos(np.arange(1, len(part.y) + 1))
        found += part.sizes.tolist()
        found += [round(float(wave @ _means(values)), 3) for values in (part.x, part.y)]
    return tuple(found)


def _means(values: np.ndarray) -> np.ndarray:
    return np.asarray(values).reshape(len(values), -1).mean(axis=1, dtype=np.float64)


def _run(settings: Mapping[str, Any]) -> list[float]:
    """Two rounds (or until the method's period is over): sketches of the models, and how they do.

    Two epochs: in the first step of a round every pull towards the received model is zero.
    """
    from fedkin.papers.originals import as_published, published_graph
    from fedkin.result import Models
    from fedkin.run import make_run
    from fedkin.run.options import make_options

    parameters = {**settings["parameters"], "epochs": 2}
    method = as_published(settings["algorithm"], parameters)
    clients = int(settings["data"].get("clients", 20))
    truth = {"cluster": np.arange(clients) % 3}
    federation = replace(
        made_up(settings["data"]["name"], clients, max(4, PROBE_SAMPLES // clients), 0.25), truth=truth
    )
    fraction = settings["run"].get("fraction", 1.0)
    period = parameters.get("period") or 1
    rounds = 1 + (min(period) if isinstance(period, list) else int(period))
    graph = published_graph(settings["graph"], method, federation)
    options = make_options(
        rounds=rounds,
        fraction=fraction,
        workers=1,
        influence=False,
        dtype="float64",
        eval_every=rounds,
        validation="given",
    )
    run = make_run(federation, settings["model"], method, options, graph)
    result = run.run()
    tested = [float(np.nanmean(result.metrics[when][result.metric])) for when in ("pre", "post")]
    deployed = result.models.rows.numpy() if isinstance(result.models, Models) else result.rows
    spec = run.setting.spec
    moved = deployed - spec.initial_row(run.setting.streams).numpy()
    n = spec.layout.n_parameters  # apart: what batch norm counts moves much further
    return [*sketch(moved[:, :n]), *sketch(moved[:, n:]), *tested]


def sketch(moved: np.ndarray, count: int = 4) -> list[float]:
    """A few numbers that see every entry of (K, B): the norm, and as shares of it products with waves along both axes."""
    clients, weights = (np.arange(1, n + 1) for n in moved.shape)
    size = float(np.linalg.norm(moved))
    waves = [float(np.cos((1 + i) * clients) @ moved @ np.cos((2 + i) * weights)) for i in range(count)]
    return [size, *(round(wave / max(size, 1e-300), DECIMALS) for wave in waves)]


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


def _numbers(value: Any) -> Iterator[float]:
    """All numbers of a nested structure, in order."""
    if isinstance(value, Mapping):
        for key in sorted(value):
            if key not in CLOCKS:
                yield from _numbers(value[key])
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _numbers(entry)
    elif isinstance(value, bool | int | float):
        yield float(value)
