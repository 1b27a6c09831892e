"""The pictures of docs/fedpnp.md. Run: python examples/fedpnp_pictures.py [folder]  (about half a minute on two cores)."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

import fedkin
from fedkin.algorithms import FedPnP
from fedkin.couplings import GraphFilter
from fedkin.couplings.drawing import draw_response
from fedkin.graphs.statistics import moments

ROUNDS = 15
BETAS = [1.0, 0.05, 0.005, 0.0005]


def responses(graph: fedkin.ClientGraph) -> Figure:
    """What the server keeps of each graph frequency."""
    figure, (soft, hard, others) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    draw_response(graph, "soft", BETAS, ax=soft)
    draw_response(graph, "hard", [2, 5, 15], ax=hard)
    for number, name in enumerate(("heat", "tikhonov", "soft")):
        draw_response(graph, name, [0.1], ax=others)
        others.get_lines()[2 * number].set_label(name)
        for line in others.get_lines()[2 * number :]:
            line.set_color(f"C{number}")
    others.legend(fontsize="small")
    others.set_title("strength 0.1")
    return figure


def schedules() -> Figure:
    """The strength of each round."""
    figure, (soft, hard) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    rounds = np.arange(1, 101)
    for beta in BETAS[1:]:
        soft.semilogy(rounds, [FedPnP(beta=beta).strength(t) for t in rounds], label=f"β = {beta:g}")
    soft.set(xlabel="round t", ylabel="strength $ν_t$", title="soft: falls by η = 0.1 a round, down to β")
    for delta in (1, 3):
        method = FedPnP(denoiser="hard", tau=15, delta=delta)
        hard.step(rounds[:60], [method.strength(t) for t in rounds[:60]], where="mid", label=f"Δ = {delta}")
    hard.set(xlabel="round t", ylabel="modes kept", title="hard: one more every Δ rounds, up to τ = 15")
    soft.legend()
    hard.legend()
    return figure


def fidelities() -> Figure:
    """How much of client j's model (column) enters client i's (row), for clients of very different sizes."""
    sizes = np.array([400, 200, 100, 50, 50, 20])
    ring = np.roll(np.eye(6), 1, axis=1)
    graph = fedkin.ClientGraph(ring + ring.T)
    figure, axes = plt.subplots(1, 4, figsize=(12, 3.3), layout="constrained")
    for ax, fidelity in zip(axes, ("size_weighted", "none", "row_normalised", "literal")):
        matrix = GraphFilter(graph, "soft", 0.3, sizes, fidelity).matrix()
        image = ax.imshow(matrix, vmin=0, vmax=1, cmap="Blues")
        ax.set_title(fidelity)
        ax.set_xticks(range(6), [str(n) for n in sizes], fontsize="small")
        ax.set_yticks(range(6), [f"Σ {s:.2f}" for s in matrix.sum(axis=1)], fontsize="small")
        ax.set_xlabel("samples of client j")
    figure.colorbar(image, ax=axes, shrink=0.8)
    return figure


def parameters(federation: fedkin.Federation, graph: fedkin.ClientGraph) -> Figure:
    """μ, β and τ on the digits: how far clients move in a round, how far apart they are."""

    def run(**changes: object) -> tuple[dict[str, float], float]:
        result = fedkin.train(federation, "mlr", FedPnP(**{"schedule": "constant", **changes}), graph, rounds=ROUNDS)
        return result.history[-1]["log"], result.summary("pre")["mean"]

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.7), layout="constrained")
    sweeps = [
        ("mu", "μ", [0.01, 0.1, 0.5, 2.0, 10.0], {"beta": 0.005}),
        ("beta", "β", [0.00005, 0.0005, 0.005, 0.05, 0.5], {}),
        ("tau", "τ", [1, 2, 5, 10, 15, 20], {"denoiser": "hard"}),
    ]
    for ax, (name, symbol, values, fixed) in zip(axes, sweeps):
        logs, accuracy = zip(*(run(**fixed, **{name: value}) for value in values))
        kind = ax.plot if name == "tau" else ax.semilogx
        kind(values, [log["total_variation_trained"] for log in logs], "o--", label="variation, trained")
        kind(values, [log["total_variation"] for log in logs], "o-", label="variation, denoised")
        ax.set(xlabel=symbol, ylabel=r"tr$(Ω^T L\,Ω)$")
        ax.set_ylim(bottom=0)
        right = ax.twinx()
        right.plot(values, accuracy, "s-", color="C2", label="accuracy of Ψ (pre)")
        right.set_ylim(0, 1)
    right.set_ylabel("accuracy")
    lines = [*ax.get_lines(), *right.get_lines()]
    figure.legend(lines, [str(line.get_label()) for line in lines], loc="outside upper center", ncols=3)
    return figure


def main(folder: Path) -> None:
    federation = fedkin.data.load("digits", clients=20, partition="dirichlet:0.3", seed=0)
    graph = fedkin.graphs.from_statistics([moments(x) for x, _ in federation.train], federation.names)
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in {
        "responses": responses(graph),
        "schedules": schedules(),
        "fidelity": fidelities(),
        "parameters": parameters(federation, graph),
    }.items():
        figure.savefig(folder / f"fedpnp-{name}.png", dpi=90, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "images")
