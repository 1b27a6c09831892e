"""Grown: a result of auto with the newcomers that joined it, ready for those that come next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from fedkin.errors import FedkinError
from fedkin.graphs.directed import peers_of
from fedkin.result import History, Result
from fedkin.result.blended import Blends
from fedkin.result.combined import CombinedModels, Parts

Table = Mapping[str, list[float]]
PER_CLIENT = ("start_kin", "statistics", "roc", "calibration", "alone_roc", "alone_calibration")
"""Arrays with a row for each client."""


def grown(result: Result, joined: Result) -> Result:
    """The run's result with the newcomers of `joined` (what `join` gave) among its clients.

    Nothing of the others changes. The next newcomer tries the models of all, and `result.kin` says who helped whom: a
    newcomer has helped nobody yet.
    """
    if tuple(joined.facts.get("peers", ())) != result.names:
        raise FedkinError("these newcomers joined another run; join this one first")
    names = (*result.names, *joined.names)
    models = _blended(result, joined) if isinstance(result.models, Blends) else _combined(result, joined)
    metrics = {when: _both(table, joined.metrics[when], result, joined) for when, table in result.metrics.items()}
    last, new = result.history[-1], joined.history[-1]
    told = {"participants": len(names), "pre": metrics["pre"], "post": metrics["post"]}
    spent = {key: last[key] + new[key] for key in ("seconds", "bytes", "messages")}
    kin = _grown_kin(sp.csr_array(np.asarray(result.kin)) if isinstance(result.kin, np.ndarray) else result.kin, joined)
    return replace(
        result,
        names=names,
        sizes=np.concatenate([result.sizes, joined.sizes]),
        server_rows=torch.cat([result.server_rows, joined.server_rows]),
        models=models,
        choice=(*result.choice, *joined.choice),
        metrics=metrics,
        history=History(names, [{**last, **told, **spent}]),
        extras={
            **models.tensors(),
            **dict(zip(("kin_peers", "kin_weights"), map(torch.from_numpy, peers_of(kin)))),
            **{name: result.extras[name] for name in ("start_fedavg",) if name in result.extras},
            **{
                name: torch.cat([result.extras[name], joined.extras[name]])
                for name in PER_CLIENT
                if name in result.extras and name in joined.extras
            },
        },
        label_counts=_counts(result, joined),
        notes=tuple(dict.fromkeys((*result.notes, *joined.notes))),
        facts=_facts(result, joined) | spent,
    )


def _grown_kin(kin: sp.csr_array | None, joined: Result) -> sp.csr_array:
    """A (K + K', K + K'): newcomers take from the clients that were there."""
    if kin is None:
        raise FedkinError("the run does not say who helps whom; newcomers join a result of fedkin.auto")
    taken = sp.csr_array(joined.extras["kin_of_peers"].numpy())
    size = kin.shape[0] + taken.shape[0]
    starts = np.concatenate([kin.indptr, kin.indptr[-1] + taken.indptr[1:]])
    entries = np.concatenate([kin.data, taken.data]), np.concatenate([kin.indices, taken.indices]), starts
    return sp.csr_array(entries, shape=(size, size))


def _blended(result: Result, joined: Result) -> Blends:
    """Everybody's blends; those of the newcomers are of both's estimators already, in this order."""
    was, new = result.models, joined.models
    assert isinstance(was, Blends)
    assert isinstance(new, Blends)
    size = len(result.names)
    weights = torch.zeros((size + len(joined.names),) * 2, dtype=was.weights.dtype)
    weights[:size, :size], weights[size:] = was.weights, new.weights
    fitted = {name: models.fitted[name] for models in (was, new) for name in models.names}
    return Blends((*result.names, *joined.names), new.whose, fitted, weights, new.sizes, was.classes)


def _combined(result: Result, joined: Result) -> CombinedModels:
    spec = result.models.spec if isinstance(result.models, CombinedModels) else None
    clients, counters = [], torch.zeros(0)
    for each in (result, joined):
        own = Parts.read(each.extras, len(each.names))
        if own is None:
            raise FedkinError(f"{each.title} combines no networks; fedkin.auto does")
        counters = own.counters
        for k in range(len(each.names)):
            part = own.of_client(k)
            clients.append(list(zip(part["rows"], part["weights"].tolist(), part["temperatures"].tolist())))
    names, parts = (*result.names, *joined.names), Parts.of(clients, counters)
    return CombinedModels(names, parts, spec, result.task.mixes_chances)


def _both(one: Table, other: Table, result: Result, joined: Result) -> dict[str, list[float]]:
    """Values of all clients; NaN where only the others have a metric."""
    return {
        key: [
            *one.get(key, [float("nan")] * len(result.names)),
            *other.get(key, [float("nan")] * len(joined.names)),
        ]
        for key in dict.fromkeys((*one, *other))
    }


def _counts(result: Result, joined: Result) -> np.ndarray | None:
    if result.label_counts is None or joined.label_counts is None:
        return None
    return np.concatenate([result.label_counts, joined.label_counts])


def _facts(result: Result, joined: Result) -> dict[str, Any]:
    before, new = result.facts, joined.facts
    facts = {
        **before,
        "auto": {**before["auto"], **new["auto"]},
        "alone": _both(before["alone"], new["alone"], result, joined),
        "test_sizes": np.concatenate([before["test_sizes"], new["test_sizes"]]),
        "truth": {},
        "single_class": [*before["single_class"], *new["single_class"]],
        "added": [*before.get("added", ()), *joined.names],
    }
    if "distilled" in before and "distilled" in new:
        one, other = before["distilled"], new["distilled"]
        facts["distilled"] = {
            "networks": [*one["networks"], *other["networks"]],
            "combined": _both(one["combined"], other["combined"], result, joined),
        }
    return facts
