"""Adapters per role: a small transformer that all roles share, and low-rank adapters that each role has for itself.

Run: python examples/shakespeare_adapters.py [--roles 20] [--rounds 20] [--rank 4]
(About ten minutes on two cores. The text is downloaded, or taken from the folder FEDKIN_DATA.)

The transformer is built from its configuration and first trained by all roles together (FedAvg on the whole model): that
takes the place of a pretrained one, without any download. Then it is frozen. A row is a role's adapters, mixed over a graph
that joins roles with alike next characters. Printed: accuracy of the deployed models, and bytes per round beside those of
the whole model.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import fedkin
from fedkin import algorithms

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "adapters, each role alone": ("local", {}),
    "adapters, FedAvg": ("fedavg", {}),
    "adapters, FedAvg, B at home (FedSA-LoRA)": ("fedavg", {"private": "*.lora_B"}),
    "adapters, FedU on the graph of roles": ("fedu", {"graph": "labels"}),
    "adapters, FedPnP on the graph of roles": ("fedpnp", {"graph": "labels"}),
    "adapters, FedCedar": ("fedcedar", {}),
}


def study(
    federation: fedkin.Federation, rounds: int, pretrain: int, rank: int, model: str = "transformer-text", seed: int = 0
) -> list[tuple[str, float, float, int]]:
    """(what, mean test accuracy as deployed, bytes per round, numbers in a row) of the whole model and of each method."""
    training: dict[str, Any] = {"lr": 0.002, "optimiser": "adam", "epochs": 1, "batch_size": 32}
    common = fedkin.train(federation, model, algorithms.make("fedavg", training), rounds=pretrain, seed=seed)
    lines = [("whole model, FedAvg", common)]
    adapted = fedkin.models.lora(common.models[federation.names[0]], rank, targets="features.0.blocks")
    for what, (name, options) in METHODS.items():
        method = algorithms.make(name, {**training, **({"clusters": 3} if name == "fedcedar" else {})})
        lines.append((what, fedkin.train(federation, adapted, method, rounds=rounds, seed=seed, **options)))
    return [
        (what, result.summary()["mean"], result.facts["bytes"] / max(1, result.facts["rounds"]), result.rows.shape[1])
        for what, result in lines
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="tiny-shakespeare")
    parser.add_argument("--roles", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pretrain", type=int, default=20)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--length", type=int, default=40, help="characters that the next is guessed from")
    given = parser.parse_args(arguments)
    federation = fedkin.data.load(given.data, length=given.length, stride=10, minimum=2000)
    federation = federation.take(range(min(given.roles, len(federation))))
    print(f"{'':45} {'accuracy':>9} {'bytes per round':>16} {'numbers in a row':>17}")
    for what, accuracy, size, numbers in study(federation, given.rounds, given.pretrain, given.rank):
        print(f"{what:45} {accuracy:9.4f} {size:16,.0f} {numbers:17,}")


if __name__ == "__main__":
    main()
