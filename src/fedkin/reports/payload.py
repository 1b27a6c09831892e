"""The data behind a page: a plain dictionary, small enough to travel inside it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedkin.graphs import ClientGraph
from fedkin.graphs.layout import positions, strongest_edges
from fedkin.reports.headline import best, collaborations
from fedkin.reports.spectral import SPECTRUM_LIMIT, energy, response
from fedkin.reports.units import GROUPS_ABOVE, Units
from fedkin.result import Result
from fedkin.result.contenders import Contender, client_gains, find_alone, spread
from fedkin.result.verdict import who_helps
from fedkin.task.curves import FALSE_POSITIVES

HEAT_CELLS = 150
"""A heat map has at most so many rows; more clients are averaged in blocks."""

MOST_EDGES = 8_000
"""At most so many edges are drawn, the strongest of each client first."""

MOST_CURVES = 300
"""At most so many clients have their ROC and calibration drawn, the first."""

FAINT = 0.02
"""Kin weights below this are no link."""

MOST_ROUNDS = 300
"""Longer curves are thinned to about so many points."""


def page_data(methods: Sequence[Contender]) -> dict[str, Any]:
    """Everything the page draws. Units are clients, or groups of them above 2,000 clients."""
    first = next((method.first for method in methods if method.first.graph is not None), methods[0].first)
    units, alone = Units.of_result(first), find_alone(methods)
    graphs: dict[str, dict[str, Any]] = {}
    drawn = [shown_graph(method.first) for method in methods]
    for method, graph in zip(methods, drawn):
        if graph is not None:
            learned = method.first.graph is None
            graphs.setdefault(graph.fingerprint(), {"used_by": [], "kin": learned, **graph_data(units.graph(graph))})
            graphs[graph.fingerprint()]["used_by"].append(method.label)
    task = first.task
    return {
        "metric": {"name": first.metric, "label": f"test {task.headline_metric.label}", "unit": task.unit,
                   "larger": task.larger_is_better, "percentages": [f"test_{key}" for key in task.percentages]},
        "clients": len(first.names),
        "units": unit_data(units, first),
        "graphs": list(graphs.values()),
        "methods": [method_data(method, alone, units, None if graph is None else list(graphs).index(graph.fingerprint()))
                    for method, graph in zip(methods, drawn)],
        "alone": None if alone is None else list(methods).index(alone),
        "best": list(methods).index(best(collaborations(methods) or methods)),
        "grid": rounded_all(FALSE_POSITIVES),
    }  # fmt: skip


def taken_from(run: Result) -> np.ndarray | sp.csr_array | None:
    """Who helps whom in the models that clients deploy, (K, K): one that auto kept alone takes from nobody."""
    kin = run.kin
    if kin is None or kin.shape != (len(run.names),) * 2:
        return None
    auto = run.facts.get("auto", {})
    alone = np.array([name in auto and auto[name]["kept_alone"] for name in run.names], dtype=float)
    if isinstance(kin, np.ndarray):
        return (1 - alone)[:, None] * kin + np.diag(alone)
    return sp.csr_array(sp.diags_array(1 - alone) @ kin + sp.diags_array(alone))


def shown_graph(run: Result) -> ClientGraph | None:
    """The run's graph; of a method that learned who helps whom, and had no graph, the links between kin, (A + Aᵀ)/2."""
    taken = taken_from(run)
    if run.graph is not None or taken is None:
        return run.graph
    kin = sp.lil_array(taken)
    kin.setdiag(0)
    links = sp.csr_array(kin)
    links.data[links.data < FAINT] = 0
    links.eliminate_zeros()
    return ClientGraph.symmetrised(links, run.names)


def unit_data(units: Units, result: Result) -> dict[str, Any]:
    """Names, samples, label counts and cluster of every unit."""
    counts = result.label_counts
    return {
        "names": units.names,
        "grouped": units.grouped,
        "members": units.members.tolist() if units.grouped else None,
        "samples": units.total(np.asarray(result.sizes, dtype=float)).astype(int).tolist(),
        "classes": class_names(result),
        "labels": None if counts is None else units.total(counts).astype(int).tolist(),
        "cluster": units.cluster.tolist(),
        "cluster_source": units.cluster_source,
    }


def class_names(result: Result) -> list[str]:
    """The labels; where they are bare numbers, with what they are of."""
    labels, target = [str(label) for label in result.task.classes], result.config["data"].get("target")
    if target is None or not all(label.replace(".", "", 1).replace("-", "", 1).isdigit() for label in labels):
        return labels
    return [f"{target} = {label}" for label in labels]


def graph_data(graph: ClientGraph) -> dict[str, Any]:
    """Positions, the strongest edges (weights relative to the strongest), and the eigenvalues of the Laplacian."""
    per_client = len(graph)
    shown = graph.adjacency
    while shown.nnz // 2 > MOST_EDGES and per_client > 1:
        per_client = min(per_client // 2, MOST_EDGES // len(graph) + 1)
        shown = strongest_edges(graph.adjacency, per_client)
    edges = shown.tocoo()
    upper = edges.row < edges.col
    weight = edges.data[upper]
    place = positions(graph)
    return {
        "x": rounded_all(place[:, 0]),
        "y": rounded_all(place[:, 1]),
        "from": edges.row[upper].tolist(),
        "to": edges.col[upper].tolist(),
        "weight": rounded_all(weight / weight.max(initial=1e-300), 3),
        "heaviest": rounded(weight.max(initial=0.0)),
        "edges": graph.n_edges,
        "eigenvalues": rounded_all(graph.eigen()[0], 5) if len(graph) <= SPECTRUM_LIMIT else None,
    }


def method_data(method: Contender, alone: Contender | None, units: Units, graph: int | None) -> dict[str, Any]:
    """Curves, client values, influence, and what the method logged."""
    run = method.first
    gain = None if alone is None or method is alone else rounded_all(units.mean(client_gains(method, alone)))
    return {
        "label": method.label,
        "alone": method.is_alone,
        "deploys": max(("received", "trained"), key=run.choice.count),
        "runs": len(method.runs),
        "same_data": len(method.same_data),
        "graph": graph,
        "curves": {name: curves(method, name) for name in curve_metrics(run)},
        "values": {when: rounded_all(units.mean(method.values(when))) for when in ("pre", "post", "deployed")},
        "gain": gain,
        "influence": matrix_data(run.influence, units),
        "kin": matrix_data(taken_from(run), units) if len(run.names) <= GROUPS_ABOVE else None,
        "helps": who_helps(run) if len(run.names) <= GROUPS_ABOVE else "",
        **curve_data(run, units),
        "variation": logged(method, "total_variation"),
        "trace": logged(method, "trace"),
        "response": None
        if (filtered := response(run)) is None
        else {"name": filtered[0], "lambda": rounded_all(filtered[1], 5), "h": rounded_all(filtered[2])},
        "energy": None if (parts := energy(run)) is None else rounded_all(parts),
    }


def curve_metrics(run: Result) -> list[str]:
    """The test metrics the history holds, the headline one first."""
    found = {name for record in run.history.evaluated() for name in record["pre"] if name.startswith("test_")}
    return sorted(found, key=lambda name: (name != run.metric, name))


def curves(method: Contender, metric: str) -> dict[str, Any]:
    """Mean over clients for each evaluated round, before and after local training.

    With several runs: the mean over runs and the lowest and highest run. `clients` is the 10th to 90th percentile
    client, averaged over runs.
    """
    out: dict[str, Any] = {}
    for when in ("pre", "post"):
        tables = []
        for run in method.runs:
            rounds, values = run.history.curve(metric, when)
            tables.append({int(r): spread(row) for r, row in zip(rounds, values)})
        shared = thin(sorted(set.intersection(*(set(table) for table in tables))))
        if not shared:
            continue
        cube = np.array([[[table[r][key] for key in ("mean", "low", "high")] for r in shared] for table in tables])
        mean = cube.mean(axis=0)
        out[when] = {
            "round": shared,
            "mean": rounded_all(mean[:, 0]),
            "clients": [rounded_all(mean[:, 1]), rounded_all(mean[:, 2])],
        }
        if len(method.runs) > 1:
            out[when]["seeds"] = [rounded_all(cube[:, :, 0].min(axis=0)), rounded_all(cube[:, :, 0].max(axis=0))]
    return out


def thin(rounds: list[int]) -> list[int]:
    """At most about MOST_ROUNDS of them, evenly, the last one always."""
    step = -(-len(rounds) // MOST_ROUNDS) if rounds else 1
    return [r for k, r in enumerate(rounds) if (len(rounds) - 1 - k) % step == 0]


def matrix_data(matrix: Any, units: Units) -> dict[str, Any] | None:
    """Who shaped or helps whom as bytes, b = 255·√(v / max), in the order given and, where blocks are averaged, by cluster."""
    if not isinstance(matrix, np.ndarray) or units.grouped or matrix.shape != (len(units.names),) * 2:
        return None
    clients = len(matrix)
    given = np.arange(clients)
    orders = {"given": given}
    if clients > HEAT_CELLS:
        orders["cluster"] = np.argsort(units.cluster, kind="stable")
    blocks = {name: block_mean(matrix, order, HEAT_CELLS) for name, order in orders.items()}
    top = max(float(block.max()) for block in blocks.values()) or 1.0
    return {
        "size": len(blocks["given"]),
        "max": rounded(top),
        "own": rounded_all(np.diag(matrix), 3),
        **{name: base64.b64encode(np.rint(255 * np.sqrt(b / top)).astype(np.uint8).tobytes()).decode()
           for name, b in blocks.items()},
    }  # fmt: skip


def curve_data(run: Result, units: Units) -> dict[str, Any]:
    """ROC and calibration of each client's deployed model on its test samples, where they were told.

    Each a text of bytes, 250·v or 255 where there is no value, a line per client: those of the first MOST_CURVES; and as
    numbers the mean ROC, the areas, and the pooled calibration.
    """
    if "roc" not in run.extras or units.grouped:
        return {"roc": None, "calibration": None}
    roc, bins = (run.extras[name].numpy() for name in ("roc", "calibration"))
    sound, told = roc[:, -1] >= 0, bins[:, 0].sum(axis=1) > 0
    weight = bins[:, 0] * np.asarray(run.facts.get("test_sizes", np.ones(len(roc))), dtype=float)[:, None]
    total = np.maximum(weight.sum(axis=0), 1e-12)
    pooled = [
        weight.sum(axis=0) / max(weight.sum(), 1e-12),
        *((weight * v).sum(axis=0) / total for v in (bins[:, 1], bins[:, 2])),
    ]
    return {
        "roc": {
            "clients": _bytes(np.where(roc[:MOST_CURVES, :-1] < 0, 1.02, roc[:MOST_CURVES, :-1])),
            "area": rounded_all(np.where(sound, roc[:, -1], np.nan), 3),
            "mean": rounded_all(roc[sound, :-1].mean(axis=0)) if sound.any() else None,
        } if sound.any() else None,
        "calibration": {
            "clients": _bytes(bins[:MOST_CURVES]),
            "pooled": [rounded_all(row) for row in pooled],
        } if told.any() else None,
        "curves_of": min(MOST_CURVES, len(roc)),
    }  # fmt: skip


def _bytes(values: np.ndarray) -> str:
    return base64.b64encode(np.rint(250 * values).astype(np.uint8).tobytes()).decode()


def block_mean(matrix: np.ndarray, order: np.ndarray, most: int) -> np.ndarray:
    """A (K, K) matrix in `order`, averaged over blocks so that at most `most` rows and columns are left."""
    sorted_ = matrix[np.ix_(order, order)]
    if len(order) <= most:
        return sorted_
    starts = np.linspace(0, len(order), most + 1).astype(int)[:-1]
    width = np.diff(np.append(starts, len(order)))
    sums = np.add.reduceat(np.add.reduceat(sorted_, starts, axis=0), starts, axis=1)
    return sums / np.outer(width, width)


def logged(method: Contender, name: str) -> dict[str, Any] | None:
    """A number the method logged in some or all rounds, averaged over runs."""
    tables = [
        {r["round"]: float(r["log"][name]) for r in run.history if name in r.get("log", {})} for run in method.runs
    ]
    shared = thin(sorted(set.intersection(*(set(table) for table in tables))))
    if not shared:
        return None
    return {"round": shared, "value": rounded_all(np.mean([[table[r] for r in shared] for table in tables], axis=0), 5)}


def rounded(value: float, digits: int = 4) -> float | None:
    """Rounded to some significant digits; None for NaN and infinity."""
    return float(f"{value:.{digits}g}") if np.isfinite(value) else None


def rounded_all(values: np.ndarray, digits: int = 4) -> list[float | None]:
    return [rounded(float(value), digits) for value in values]
