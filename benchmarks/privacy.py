"""Private training: how fast, and what it costs in accuracy.

    python benchmarks/privacy.py [speed] [school] [price] [--quick] [--seeds N] [--rounds N]

speed    DP-SGD on stacked MLPs against plain SGD in the same kernel, and against Opacus, client after client, on the same work
         (one thread, CPU seconds).
school   ε = 6, δ = 10⁻³ for every school: FedAvg, Local and MR-MTL with the settings that the authors give for their numbers
         (Liu et al. 2022), and these, FedU and FedPnP with settings chosen here.
price    ε = 1, 3, 10 and none on school, HAR and digits.

What is chosen (rates, batches, strengths) is chosen on a fold inside training (`folded`, a third of every client's training samples
held out); test samples are seen once. The choice itself is not private: it is not counted in ε. Numbers go to privacy.json here; what is there already is not measured again. HAR and school are taken from $FEDKIN_DATA, the cache or upstream
(docs/data.md).
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedkin import algorithms, data, train
from fedkin.data.sets.school import read_cells
from fedkin.federation import Federation
from fedkin.federation.folds import folded
from fedkin.files import versions, write_json
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.training import train_rows
from fedkin.models import ModelSpec
from fedkin.streams import Streams

FILE = Path(__file__).resolve().with_suffix(".json")
PUBLISHED = {"fedavg": 0.02564, "local": 0.02628, "mrmtl": 0.02394}
"""Test MSE on school, ε = 6, δ = 10⁻³ (Liu et al. 2022)."""
AUTHORS: dict[str, Any] = {"lr": 0.005, "batch_size": 32, "epochs": 1}
"""Theirs for these numbers, by the README of their code: rate 0.01, clip 1, λ = 1 for half the squared error, so half the rate,
twice the clip and twice λ for the squared error. They train for 201 rounds and give every school its size as weight."""
AUTHORS_OWN: dict[str, dict[str, Any]] = {"fedavg": {}, "local": {}, "mrmtl": {"lam": 2.0}}
SCHOOL_ROUNDS, SCHOOL_PRIVACY = 201, {"level": "sample", "epsilon": 6.0, "delta": 1e-3, "clip": 2.0}
Grid = dict[str, list[Any]]
SCHOOL: Grid = {"lr": [0.0015, 0.005, 0.015], "batch_size": [32, 1024]}
SCHOOL_OWN: dict[str, Grid] = {
    "fedavg": {},
    "local": {},
    "mrmtl": {"lam": [0.6, 2.0, 6.0]},
    "fedu": {"eta": [0.003, 0.03, 0.3]},
    "fedpnp": {"beta": [0.00001, 0.0001, 0.001, 0.03]},  # 139 joined nodes: 0.001 all but averages
}
PRICE: Grid = {"lr": [0.02, 0.1, 0.5, 2.0], "batch_size": [32, 1024]}
PRICE_OWN: dict[str, Grid] = {"local": {}, "fedavg": {}, "mrmtl": {"lam": [0.1, 0.3, 1.0]}}
MODEL, DELTA = "zero-mlr", 1e-3


# --- speed ------------------------------------------------------------------------------------------------------------


def random_clients(clients: int, samples: int) -> Federation:
    rng = np.random.default_rng(0)
    parts = {
        f"c{k:02d}": (rng.normal(size=(samples, 784)).astype(np.float32), rng.integers(0, 10, samples))
        for k in range(clients)
    }
    return Federation.from_arrays(parts, test_fraction=0.1)


def best_of(repeats: int, *works: Callable[[], None]) -> list[float]:
    """The least CPU seconds of each piece of work, taken in turns: what other processes do to the caches matters least there."""
    for work in works:
        work()
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for found, work in zip(times, works):
            began = time.process_time()
            work()
            found.append(time.process_time() - began)
    return [min(found) for found in times]


def opacus_epoch(federation: Federation, batch: int) -> None:
    """One epoch of every client in turn, as Opacus's own examples do it."""
    import opacus
    from torch.utils.data import DataLoader, TensorDataset

    for k in range(len(federation)):
        x, y = (torch.as_tensor(values) for values in federation.train[k])
        module = torch.nn.Sequential(torch.nn.Linear(784, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
        optimiser = torch.optim.SGD(module.parameters(), lr=0.05)
        loader = DataLoader(TensorDataset(x, y), batch_size=batch)
        engine = opacus.PrivacyEngine(accountant="rdp")
        module, optimiser, loader = engine.make_private(
            module=module, optimizer=optimiser, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
        )
        for inputs, targets in loader:
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(module(inputs), targets).backward()
            optimiser.step()


def speed(quick: bool) -> dict[str, Any]:
    clients, samples = (8, 300) if quick else (40, 700)
    federation = random_clients(clients, samples)
    spec = ModelSpec.of("mlp:100", federation.task, torch.float32)
    rows = spec.initial_row(Streams(0)).expand(clients, -1)
    privacy = {"level": "sample", "epsilon": 1e9, "delta": 1e-5, "clip": 1.0, "noise": 1.0}
    found: dict[str, Any] = {"clients": clients, "samples": samples, "model": "784-100-10", "batches": {}}
    shard = Shard(federation, spec, Streams(0), workers=1)
    torch.set_num_threads(1)
    for batch in (20, 32, 64, 128):

        def epoch(settings: Sgd) -> Callable[[], None]:
            return lambda: train_rows(shard, np.arange(clients), rows, settings, 1) and None

        plain, private = Sgd(epochs=1, batch_size=batch), Sgd(epochs=1, batch_size=batch, privacy=privacy)  # type: ignore[arg-type]
        works = [epoch(plain), epoch(private), lambda batch=batch: opacus_epoch(federation, batch)]
        seconds = best_of(1 if quick else 5, *works)
        found["batches"][batch] = dict(zip(("plain", "private", "opacus"), seconds))
        slower, faster = seconds[1] / seconds[0], seconds[2] / seconds[1]
        print(
            f"batch {batch}: plain {seconds[0]:.3f} s, private {slower:.2f} × that, Opacus {faster:.1f} × private",
            flush=True,
        )
    shard.close()
    return found


# --- accuracy ---------------------------------------------------------------------------------------------------------


def published_school(seed: int) -> Federation:
    """As their code has it: 80/20, features standardised within each school, scores from [1, 70] to [0, 1]."""
    found = read_cells({"school": _school_file()})
    rng, parts = np.random.default_rng(seed), {}
    for number in np.unique(found["school"]):
        mine = rng.permutation(np.flatnonzero(found["school"] == number))
        cut = len(mine) - -(-len(mine) // 5)
        x, y = found["x"][mine], (found["y"][mine] - 1) / 69
        mean, std = x[:cut].mean(axis=0), x[:cut].std(axis=0)
        x = (x - mean) / np.where(std > 1e-6, std, 1)
        parts[f"school-{number:03d}"] = {"train": (x[:cut], y[:cut]), "test": (x[cut:], y[cut:])}
    return Federation.from_arrays(parts, task="regression")


def _school_file() -> Path:
    import os

    found = sorted(Path(os.environ["FEDKIN_DATA"]).rglob("school.mat"))
    if not found:
        raise SystemExit("school.mat is not below $FEDKIN_DATA")
    return found[0]


def run(
    federation: Federation,
    method: str,
    parameters: dict[str, Any],
    privacy: dict[str, Any] | None,
    rounds: int,
    seed: int,
) -> Any:
    made = algorithms.make(method, {"epochs": 1, **parameters})
    graph = "complete" if made.default_graph() else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(
            federation,
            MODEL,
            made,
            graph=graph,
            rounds=rounds,
            seed=seed,
            privacy=privacy,
            eval_every=rounds,
            influence=False,
        )


def mean_over(result: Any, metric: str, sizes: np.ndarray, by_size: bool) -> float:
    """The mean of a metric over clients, counted alike or by their samples."""
    values = np.array(result.metrics["deployed"][metric], dtype=float)
    known = np.isfinite(values)
    return float(np.average(values[known], weights=sizes[known] if by_size else None))


def chosen(
    federation: Federation, method: str, grid: Grid, privacy: dict[str, Any] | None, rounds: int, by_size: bool = False
) -> dict[str, Any]:
    """The parameters of the grid with the smallest loss on a fold inside training."""
    inside = folded(federation, 3, used=1)
    best: tuple[float, dict[str, Any]] = (np.inf, {})
    for values in itertools.product(*grid.values()):
        parameters = dict(zip(grid, values))
        try:
            result = run(inside, method, parameters, privacy, rounds, 0)
        except Exception as problem:  # diverged
            print("   ", method, parameters, str(problem)[:80], flush=True)
            continue
        loss = mean_over(result, "validation_loss", inside.validation.sizes, by_size)
        best = min(best, (loss, parameters), key=lambda entry: entry[0])
    return best[1]


def measured(
    make: Callable[[int], Federation],
    method: str,
    parameters: dict[str, Any],
    privacy: dict[str, Any] | None,
    rounds: int,
    seeds: int,
    by_size: bool = False,
) -> dict[str, Any]:
    """The metric on test samples of as many seeds, each with its own split and start."""
    values, metric = [], ""
    for seed in range(seeds):
        federation = make(seed)
        result = run(federation, method, parameters, privacy, rounds, seed)
        metric = result.metric
        values.append(mean_over(result, metric, federation.test.sizes, by_size))
    told = {"parameters": parameters, "values": values, "mean": statistics.mean(values), "metric": metric}
    print(f"  {method}: {told['mean']:.5f} {parameters}", flush=True)
    return told


def school(facts: dict[str, Any], seeds: int) -> None:
    """Fill in what `facts` lack; it is written after every method, so that a run broken off goes on."""
    head = {"rounds": SCHOOL_ROUNDS, "privacy": SCHOOL_PRIVACY, "published": PUBLISHED, "authors": {}, "chosen": {}}
    found, how = facts.setdefault("school", head), (SCHOOL_PRIVACY, SCHOOL_ROUNDS)
    for method, own in AUTHORS_OWN.items():
        if method not in found["authors"]:
            given = {**AUTHORS, **own}
            found["authors"][method] = measured(published_school, method, given, *how, seeds, by_size=True)
            write_json(FILE, facts)
    for method, grid in SCHOOL_OWN.items():
        if method not in found["chosen"]:
            given = chosen(published_school(0), method, {**SCHOOL, **grid}, *how, by_size=True)
            found["chosen"][method] = measured(published_school, method, given, *how, seeds, by_size=True)
            write_json(FILE, facts)


def price(facts: dict[str, Any], rounds: int, seeds: int, only: list[str]) -> None:
    """As `school`, for every data set, ε and method."""
    cases: dict[str, Callable[[int], Federation]] = {
        "digits": lambda seed: data.load("digits", clients=10, partition="dirichlet:1.0", seed=seed),
        "har": lambda seed: data.load("har", seed=seed),
        "school": lambda seed: data.load("school", seed=seed),
    }
    for name, make in cases.items():
        if only and name not in only:
            continue
        found = facts.setdefault("price", {}).setdefault(name, {"rounds": rounds, "delta": DELTA, "cells": {}})
        for epsilon, method in itertools.product((1.0, 3.0, 10.0, None), PRICE_OWN):
            privacy = None if epsilon is None else {"level": "sample", "epsilon": epsilon, "delta": DELTA, "clip": 1.0}
            cells = found["cells"].setdefault(str(epsilon), {})
            if method not in cells:
                print(f"{name}, ε = {epsilon}", flush=True)
                given = chosen(make(0), method, {**PRICE, **PRICE_OWN[method]}, privacy, rounds)
                cells[method] = measured(make, method, given, privacy, rounds, seeds)
                write_json(FILE, facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="*", help="speed, school, price (default: all)")
    parser.add_argument("--quick", action="store_true", help="the speed of little work, alone; writes nothing")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=50, help="of price")
    parser.add_argument("--cases", nargs="*", default=[], help="of price: school, har, digits")
    options = parser.parse_args()
    if options.quick:
        speed(quick=True)
        return
    what = options.what or ["speed", "school", "price"]
    facts: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    facts["versions"] = versions()
    if "speed" in what:
        facts["speed"] = speed(quick=False)
        write_json(FILE, facts)
    if "school" in what:
        school(facts, options.seeds)
    if "price" in what:
        price(facts, options.rounds, options.seeds, options.cases)


if __name__ == "__main__":
    main()
