"""Trees, linear models and networks in one federation: who gains from agreeing on predictions?

Run: python examples/mixed_models.py [--clients 9] [--rounds 20] [--alpha 0.1]   (about a minute on two cores)

The handwritten digits of scikit-learn (1,797 real scans, 8×8 pixels) are dealt out unevenly. Every third client fits a
decision tree, the next a logistic regression, the third a torch network. They exchange predictions on 40 of their own
scans each, never weights. The table shows every client beside itself training alone.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from torch import nn

import fedkin
from fedkin import Federation
from fedkin.algorithms import FedRelax
from fedkin.result.summary import gains


def network() -> nn.Module:
    """A small network for 64 pixels and 10 digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def models(federation: Federation) -> dict[str, Any]:
    """A tree, a linear model, a network, a tree, …"""
    kinds: list[Any] = ["tree:8", "ridge", network]
    return {name: kinds[k % 3] for k, name in enumerate(federation.names)}


def main() -> None:
    parser = argparse.ArgumentParser(description="trees + linear models + networks, agreeing on predictions")
    parser.add_argument("--clients", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    federation = fedkin.data.load("digits", clients=options.clients, partition="dirichlet:0.5", seed=options.seed)

    def train(alpha: float) -> fedkin.Result:
        method = FedRelax(alpha=alpha, inner_steps=10, public_size=40, distil_from="data")
        return fedkin.train(federation, models(federation), method, "labels", rounds=options.rounds, seed=options.seed)

    alone, together = train(0.0), train(options.alpha)
    before, after = (np.array(run.metrics["deployed"]["test_accuracy"]) for run in (alone, together))
    print(f"{'client':<12}{'model':<26}{'samples':>8}{'alone':>9}{'together':>10}{'gain':>8}")
    for k, name in enumerate(federation.names):
        kind = type(together.models[name]).__name__
        gain = after[k] - before[k]
        print(f"{name:<12}{kind:<26}{together.sizes[k]:>8}{before[k]:>9.1%}{after[k]:>10.1%}{gain:>+8.1%}")
    found = gains(after, before)
    print(
        f"\nmean {before.mean():.1%} alone, {after.mean():.1%} together; {found['gained']} gained, {found['lost']} lost"
    )
    sent = together.facts["bytes"] / 1e6
    print(f"{sent:.1f} MB of public points and predictions travelled, and no weight")


if __name__ == "__main__":
    main()
