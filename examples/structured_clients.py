"""FedCedar on structured clients: does it find the groups, and which groups are related? The picture of docs/fedcedar.md.

Run: python examples/structured_clients.py [--rounds 40] [--topology 1] [--topology "0,1|1,2|5,6"]
(All three topologies take about five minutes on two cores. MNIST is downloaded, or taken from the folder FEDKIN_DATA.)

Each group of 20 clients holds a label set of its own, and two groups are related where their sets intersect. Nobody tells the
server. Every fifth round samples 30 % of each group, other rounds 30 % of all clients; the Rand index compares the clusters of
a round's clients with their true groups.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

import fedkin
from fedkin.algorithms import FedCedar
from fedkin.data.topology import groups_of
from fedkin.diagnostics.structure import Structure, recovered, true_structure
from fedkin.result.history import History

PER_GROUP, PERIOD, FRACTION = 20, 5, 0.3
COLOURS = np.array(["#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#bab0ac"])


def study(data: str, topology: str, rounds: int, seed: int) -> tuple[fedkin.Federation, fedkin.Result]:
    """FedCedar with one cluster per group, and otherwise the settings of the paper, on an MLP."""
    groups = len(groups_of(topology))
    federation = fedkin.data.load(data, clients=PER_GROUP * groups, partition=f"topology:{topology}", seed=seed)
    method = FedCedar(clusters=groups, period=PERIOD, lr=0.01, epochs=5, batch_size=16)
    return federation, fedkin.train(federation, "mlp", method, rounds=rounds, fraction=FRACTION, seed=seed)


def draw_rand_index(history: History, ax: Axes) -> None:
    rounds, values = zip(*((r["round"], r["log"]["rand_index"]) for r in history))
    sampled = [t % PERIOD == 0 for t in rounds]
    ax.plot(rounds, values, color="#bab0ac", zorder=1)
    ax.scatter(np.array(rounds)[sampled], np.array(values)[sampled], zorder=2, s=18)
    ax.set(xlabel="round (dots: every group sampled)", ylabel="Rand index", ylim=(0, 1.05))


def report(topology: str, true: Structure, found: Structure, history: History) -> None:
    """The figures behind the picture, as one line per topology."""
    at_home = np.mean(
        [true.cluster[true.clients.index(name)] == code for name, code in zip(found.clients, found.cluster)]
    )
    apart = ~np.eye(len(true.weights), dtype=bool)
    related, others = (found.weights[apart & (true.weights == joined)] for joined in (1, 0))
    values = np.array([record["log"]["rand_index"] for record in history])
    log, last = history[-1]["log"], history[-1]
    pre, post = (np.nanmean(last[when]["test_accuracy"]) for when in ("pre", "post"))
    print(
        f"topology {topology}: Rand index, smallest in rounds that sample every group {values[PERIOD - 1 :: PERIOD].min():.2f}, "
        f"in all {values.min():.2f}; {at_home:.0%} of {len(found.clients)} clients in the cluster of their group; "
        f"R: diagonal {log['diagonal']:.4f}, off-diagonal {log['off_diagonal']:.4f}; stretched weight between related groups "
        f"{np.round(np.sort(related)[::2], 2)}, others {np.round(np.sort(others)[::2], 2)}; accuracy pre {pre:.3f}, post {post:.3f}",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description="FedCedar's case study on structured clients")
    options.add_argument("--data", default="mnist", help="mnist, or another set of labelled samples")
    options.add_argument("--topology", action="append", help='"1", "2", "3" or label lists such as "0,1|1,2|5,6"')
    options.add_argument("--rounds", type=int, default=40)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs/images/fedcedar-structured.png")
    chosen = options.parse_args(arguments)
    topologies = chosen.topology or ["1", "2", "3"]
    size = (9, 2.7 * len(topologies))
    figure, axes = plt.subplots(len(topologies), 3, figsize=size, layout="constrained", squeeze=False)
    for row, topology in zip(axes, topologies):
        federation, result = study(chosen.data, topology, chosen.rounds, chosen.seed)
        true = true_structure(federation)
        found = recovered(result.history).aligned(true)
        report(topology, true, found, result.history)
        colour = dict(zip(true.clients, COLOURS[true.cluster % len(COLOURS)]))
        for ax, structure in zip(row, (true, found)):
            structure.draw(ax, [colour[name] for name in structure.clients])
        row[0].set_title(f"topology {topology}, true")
        row[1].set_title(f"recovered after {chosen.rounds} rounds")
        draw_rand_index(result.history, row[2])
    figure.savefig(chosen.out, dpi=72, metadata={"Software": None})


if __name__ == "__main__":
    main()
