"""What the code does, not how it is written: a fingerprint by which a cell outlives edits that change no number.

The source of a cell's code (`fedkin.reproduction.code`) changes with every edit of a shared module; most edits change no
result. So a cell also keeps what its method did in a short run: its own parameters, model and graph, in float64, on
made-up clients in the shape of its data. Code that does the same there is taken for the same. What shows only late in a run,
such as the end of a schedule, it does not see.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np

from fedkin.errors import FedkinError
from fedkin.files import plain, write_json
from fedkin.reproduction import code
from fedkin.reproduction.speed import SHAPES, made_up

SAMPLES = 200
"""Of all made-up clients together, but at least four a client."""
DECIMALS = 7
"""Of the numbers compared, as shares of how far the models moved: far above what another order of summation changes in
float64, and enough to see FedProx's pull in two steps at rate 0.01."""
CLOCKS = ("seconds", "versions")
"""Entries of what a function returns that say how long it took, or where."""


def fingerprint(settings: Mapping[str, Any], short: Mapping[str, Any]) -> str | None:
    """A hash of what these settings do; None where that cannot be tried here. Remembered for the source at hand.

    A function is called with the parameters of `short`, its table's smoke scale. A cell of that scale is as short as its
    fingerprint, so it needs none.
    """
    if settings == short or settings.get("data", {}).get("name", "mnist") not in SHAPES:
        return None
    tried = short if "function" in settings else settings
    sources = [code.version(settings), code.source(__name__), code.source(made_up.__module__)]
    path = _place(json.dumps([tried, *sources], sort_keys=True))
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(path.read_text())["fingerprint"])
    try:
        numbers = list(_numbers(_call(tried))) if "function" in tried else _run(tried)
    except (FedkinError, OSError):
        return None
    rounded = " ".join(f"{number:.{DECIMALS}g}" for number in numbers)
    found = hashlib.blake2b(f"{_data_version(settings)} {rounded}".encode(), digest_size=6).hexdigest()
    with suppress(OSError, FedkinError):  # a cache that cannot be written costs time, nothing else
        write_json(path, {"fingerprint": found})
    return found


def _place(text: str) -> Path:
    from fedkin.data.store import cache_folder

    return cache_folder() / ".behaviour" / f"{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}.json"


def _data_version(settings: Mapping[str, Any]) -> str:
    """Made-up clients say nothing of how real ones are made: the source of that counts as it is written."""
    return "" if "function" in settings else code.data_version(settings["data"]["name"])


def _run(settings: Mapping[str, Any]) -> list[float]:
    """Two rounds (or until the method's period is over): sketches of the models, and how they do.

    Two epochs: in the first step of a round every pull towards the received model is zero.
    """
    from fedkin import algorithms
    from fedkin.result import Models
    from fedkin.run import prepare
    from fedkin.run.options import make_options

    parameters = {**settings["parameters"], "epochs": 2}
    method = algorithms.make(settings["algorithm"], parameters)
    clients = int(settings["data"].get("clients", 20))
    truth = {"cluster": np.arange(clients) % 3}
    federation = replace(made_up(settings["data"]["name"], clients, max(4, SAMPLES // clients), 0.25), truth=truth)
    fraction = settings["run"].get("fraction", 1.0)
    rounds = 1 + int(parameters.get("period") or 1)
    graph = settings["graph"] if method.default_graph() is not None else None
    options = make_options(
        rounds=rounds, fraction=fraction, workers=1, influence=False, dtype="float64", eval_every=rounds
    )
    run = prepare(federation, settings["model"], method, options, graph)
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


def _call(settings: Mapping[str, Any]) -> Any:
    return plain(resolve_name(settings["function"])(seed=0, **settings["parameters"]))


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
