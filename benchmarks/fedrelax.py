"""FedRelax for linear models: the batched run against a plain loop over clients, at the paper's size.

    python benchmarks/fedrelax.py [--iterations 500] [--json FILE]

150 clients in three clusters (dense stochastic block model), d = 100, one RMSprop step per exchange, double precision.
`plain_loop` is what one writes first: one torch module and one torch.optim.RMSprop per client, a loop over neighbours.
`careful_loop` stacks the received points and writes the gradient out in NumPy, client by client. All get the same
initial weights and must end at the same models. A few iterations of the loops are timed and scaled.
"""

from __future__ import annotations

import time

import numpy as np
import timing
import torch
from torch import nn

import fedkin
from fedkin import Federation, data
from fedkin.algorithms import FedRelax

ALPHA = 0.01


def plain_loop(federation: Federation, start: np.ndarray, iterations: int) -> np.ndarray:
    """One module and one optimiser per client; every iteration all predict, then all step. Returns weights (K, d)."""
    assert federation.graph is not None
    assert federation.public is not None
    adjacency = federation.graph.adjacency.toarray()
    public = [torch.as_tensor(federation.public[name]) for name in federation.names]
    samples = [(torch.as_tensor(x), torch.as_tensor(y)) for x, y in federation.train]
    modules, optimisers = [], []
    for row in start:
        module = nn.Linear(len(row), 1, bias=False).double()
        with torch.no_grad():
            module.weight.copy_(torch.as_tensor(row)[None])
        modules.append(module)
        optimisers.append(torch.optim.RMSprop(module.parameters(), lr=0.01, alpha=0.99, eps=1e-8))
    for _ in range(iterations):
        with torch.no_grad():
            said = [module(points)[:, 0] for module, points in zip(modules, public)]
        for i, (module, optimiser) in enumerate(zip(modules, optimisers)):
            x, y = samples[i]
            loss = (module(x)[:, 0] - y).square().mean()
            for j in np.flatnonzero(adjacency[i]):
                apart = (module(public[j])[:, 0] - said[j]).square().mean()
                loss = loss + ALPHA * adjacency[i, j] * apart
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return np.stack([module.weight.detach().numpy()[0] for module in modules])


def careful_loop(federation: Federation, start: np.ndarray, iterations: int) -> np.ndarray:
    """The same by hand in NumPy: received points stacked once per client, gradients written out. Returns (K, d)."""
    assert federation.graph is not None
    assert federation.public is not None
    adjacency = federation.graph.adjacency.toarray()
    public = [federation.public[name] for name in federation.names]
    neighbours = [np.flatnonzero(row) for row in adjacency]
    stacked = [np.concatenate([public[j] for j in row]) for row in neighbours]
    weights = [
        np.concatenate([np.full(100, ALPHA * adjacency[i, j] / 100) for j in row]) for i, row in enumerate(neighbours)
    ]
    models, squares = start.copy(), np.zeros_like(start)
    for _ in range(iterations):
        said = [points @ w for points, w in zip(public, models)]
        for i, row in enumerate(neighbours):
            (x, y), w = federation.train[i], models[i]
            apart = stacked[i] @ w - np.concatenate([said[j] for j in row])
            slope = 2 * (x.T @ (x @ w - y) / len(x) + stacked[i].T @ (weights[i] * apart))
            squares[i] = 0.99 * squares[i] + 0.01 * slope**2
            models[i] = w - 0.01 * slope / (np.sqrt(squares[i]) + 1e-8)
    return models


def batched(federation: Federation, iterations: int) -> np.ndarray:
    run = {"rounds": iterations, "dtype": "float64", "eval_every": max(iterations, 1)}
    return fedkin.train(federation, "linear", FedRelax(alpha=ALPHA), **run).rows


def measure(iterations: int, loop_iterations: int) -> tuple[float, dict[str, float], float]:
    """Seconds of fedkin and of the loops, and how far they end apart after two iterations."""
    federation = data.load("clusters", clients=150, dimension=100, noise=0.0, seed=0)
    start = batched(federation, 0)
    same = np.abs(batched(federation, 2) - plain_loop(federation, start, 2)).max()
    same = max(same, np.abs(batched(federation, 2) - careful_loop(federation, start, 2)).max())
    loops = {}
    for loop in (plain_loop, careful_loop):
        began = time.perf_counter()
        loop(federation, start, loop_iterations)
        loops[loop.__name__] = (time.perf_counter() - began) / loop_iterations * iterations
    began = time.perf_counter()
    batched(federation, iterations)
    ours = time.perf_counter() - began
    return ours, loops, float(same)


def main() -> None:
    parser = timing.parser("fedrelax", __doc__, quick="50 iterations, one of the loop")
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--loop-iterations", type=int, default=3, help="iterations of the loop that are timed")
    options = timing.parsed(parser)
    if options.quick:
        options.iterations, options.loop_iterations = 50, 1
    found = timing.case("the paper's size", options.limit, measure, options.iterations, options.loop_iterations)
    if found is None:
        timing.write(options.json, [])
        return
    ours, loops, same = found
    records = [
        {"run": name, "seconds": seconds, "times_fedkin": seconds / ours, "iterations": options.iterations}
        for name, seconds in {"fedkin": ours, **loops}.items()
    ]
    for record in records:
        print(f"{record['run']:14}{record['seconds']:>9.2f} s{record['times_fedkin']:>8.1f}×")
    print(f"largest difference of any weight after two iterations: {same:.1e}")
    timing.write(options.json, records, largest_difference_after_two_iterations=same)
    timing.bars(
        options.plot,
        f"FedRelax, 150 clients, d = 100, {options.iterations} iterations",
        "seconds ÷ fedkin's",
        [str(record["run"]).replace("_", " ") for record in records],
        {"times": [float(str(record["times_fedkin"])) for record in records]},
    )


if __name__ == "__main__":
    main()
