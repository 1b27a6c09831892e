"""The outcome: every client's model put together, tested once, and told as a Result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin import algorithms
from fedkin.clients import Clients, Replies, Traffic, joined
from fedkin.errors import FedkinError
from fedkin.local.sgd import Sgd
from fedkin.local.transfer import in_pieces
from fedkin.models import ModelSpec
from fedkin.portfolio.distil import TEACH
from fedkin.portfolio.judged import JUDGE
from fedkin.portfolio.weights import Weighed
from fedkin.result import History, Result
from fedkin.result.combined import CombinedModels, Parts
from fedkin.roster import Roster
from fedkin.run import Options
from fedkin.run.deployed import per_client_metrics
from fedkin.run.notices import notices, single_class
from fedkin.run.outcome import curves_of
from fedkin.run.recorded import config_of
from fedkin.task.curves import ASK_CURVES, MOST_CLIENTS

CAUTION = 0.0
"""A client keeps its own model where the estimated gain is below so many standard errors."""


def gated(weighed: Weighed, alone: Tensor) -> np.ndarray:
    """Which clients keep Local, (K,) bool: where the gain to expect is below zero, and Local did not break off."""
    return (weighed.gain < CAUTION * weighed.error) & torch.isfinite(alone).all(dim=1).numpy()


def outcome(
    roster: Roster,
    spec: ModelSpec,
    options: Options,
    tested: Clients,
    members: Mapping[str, Tensor],
    weighed: Weighed,
    alone: Tensor,
    traffic: Traffic,
    seconds: float,
    algorithm: Mapping[str, Any],
    extras: Mapping[str, Tensor],
    facts: Mapping[str, Any],
    distil: bool = False,
) -> Result:
    """The result: the gate, the parts of every model, and what they reach on test samples, which have chosen nothing.

    `distil`: each combination is taught to one network, and both are tested.
    """
    kept = gated(weighed, alone)
    parts = parts_of(roster.names, members, weighed, kept, alone, spec)
    size = len(roster)
    judged = judge(tested, parts)
    metrics = per_client_metrics(judged.ids, judged.arrays, size, ["test"])
    if distil:
        sgd = Sgd(**{key: value for key, value in algorithm.items() if key in Sgd.model_fields})
        single = distilled(tested, parts, sgd, options.rounds)
        before = {"networks": parts.offsets.diff().tolist(), "combined": metrics}
        parts, judged = single, judge(tested, single)
        metrics = per_client_metrics(judged.ids, judged.arrays, size, ["test"])
        facts = {**facts, "distilled": before}
    sound = np.flatnonzero(torch.isfinite(alone).all(dim=1).numpy())
    rows = {"rows": alone[torch.from_numpy(sound)]}
    tests = ["test", *([ASK_CURVES] if size <= MOST_CLIENTS else [])]
    told_alone = tested.ask("evaluate", sound, rows, {"parts": tests}, bill=False)
    constant = single_class(roster, {"pre": judged, "post": judged}, np.zeros(size, dtype=bool))
    record = {"round": options.rounds, "participants": size, "log": {}, "pre": metrics, "post": metrics}
    spent = {"seconds": seconds, "evaluation_seconds": 0.0, "bytes": traffic.total(), "messages": traffic.messages}
    history = History(roster.names, [record | spent])
    settings = config_of(roster, spec, algorithms.make("local"), options, None)
    return Result(
        names=roster.names,
        task=roster.task,
        sizes=roster.train,
        server_rows=alone,
        models=CombinedModels(roster.names, parts, spec, roster.task.mixes_chances),
        choice=tuple("alone" if own else "together" for own in kept),
        metrics={"pre": metrics, "post": metrics, "deployed": metrics},
        history=history,
        config={**settings, "algorithm": dict(algorithm)},
        extras={**parts.tensors(), **curves_of(judged, size), **curves_of(told_alone, size, "alone_"), **extras},
        label_counts=roster.label_counts,
        notes=(*roster.notes, *notices(roster, history, (), constant)),
        facts={
            "algorithm": "auto",
            "rounds": options.rounds,
            "finished": True,
            **spent,
            "test_sizes": roster.test,
            "truth": {k: v for k, v in roster.truth.items() if len(v) == size and v.ndim == 1},
            "inputs": roster.inputs,
            "single_class": constant,
            "alone": per_client_metrics(told_alone.ids, told_alone.arrays, size, ["test"]),
            "auto": told(roster.names, list(members), weighed, kept),
            **facts,
        },
    )


def parts_of(
    names: Sequence[str],
    members: Mapping[str, Tensor],
    weighed: Weighed,
    kept_alone: np.ndarray,
    alone: Tensor,
    spec: ModelSpec,
) -> Parts:
    """What each client's model is made of: all fold models of its members, or Local alone."""
    clients: list[list[tuple[Tensor, float, float]]] = []
    found = list(members.values())
    for k, kept in enumerate(kept_alone):
        if kept:
            clients.append([(alone[k], 1.0, float(weighed.prior.temperatures[0]))])
            continue
        own: list[tuple[Tensor, float, float]] = []
        for m in np.flatnonzero(weighed.personal[k]):
            rows = found[m][:, k]
            rows = rows[torch.isfinite(rows).all(dim=1)]
            share = float(weighed.personal[k, m]) / max(1, len(rows))
            own += [(row, share, float(weighed.prior.temperatures[m])) for row in rows]
        if not own:
            raise FedkinError(
                f"client {names[k]!r}: no member's training ended well in any fold; use a smaller learning rate (lr=…)"
            )
        clients.append(own)
    return Parts.of(clients, spec.initial_counters())


def combinations(parts: Parts) -> Iterator[tuple[np.ndarray, dict[str, Tensor]]]:
    """Some clients at a time, and the networks of their models as tasks take them: padded with weight 0."""
    lengths = np.diff(parts.offsets.numpy())
    size, width, row = len(lengths), int(lengths.max()), parts.rows[0]
    real = torch.arange(width)[None] < torch.from_numpy(lengths)[:, None]
    index, weights, temperatures = (
        torch.zeros((size, width), dtype=own.dtype).masked_scatter(real, own)
        for own in (parts.index, parts.weights, parts.temperatures)
    )
    temperatures = torch.where(real, temperatures, 1.0)
    for some in in_pieces(size, width * row.numel() * row.element_size()):
        told = {"models": parts.rows[index[some]], "weights": weights[some], "temperatures": temperatures[some]}
        yield some, told


def judge(clients: Clients, parts: Parts) -> Replies:
    """Test metrics of the combined models: each client gets the networks of its own model alone."""
    told = {ASK_CURVES: len(parts.offsets) - 1 <= MOST_CLIENTS}
    return joined([clients.ask(JUDGE, some, asked, told, bill=False) for some, asked in combinations(parts)])


def distilled(clients: Clients, parts: Parts, sgd: Sgd, rounds: int) -> Parts:
    """One network per client, taught by its combination; a model that is one network already stays as it is."""
    length = {"steps": rounds * sgd.steps} if sgd.steps else {"epochs": rounds * sgd.epochs}
    how = {"sgd": {**sgd.told(1), **length}}
    taught: dict[int, Tensor] = {}
    for some, asked in combinations(parts):
        several = (asked["weights"] > 0).sum(dim=1) > 1
        ids = some[several.numpy()]
        if len(ids):
            replies = clients.ask(TEACH, ids, {key: value[several] for key, value in asked.items()}, how)
            taught |= {int(k): row for k, row in zip(replies.ids, replies["rows"])}
    found = []
    for k in range(len(parts.offsets) - 1):
        part = parts.of_client(k)
        kept = list(zip(part["rows"], part["weights"].tolist(), part["temperatures"].tolist()))
        found.append([(taught[k], 1.0, 1.0)] if k in taught else kept)
    return Parts.of(found, parts.counters)


def told(
    names: Sequence[str], members: Sequence[str], weighed: Weighed, kept_alone: np.ndarray
) -> dict[str, dict[str, Any]]:
    """Per client: the members of its model and their weights, whether the gate kept it alone, the gain to expect."""
    entries = {}
    for k, name in enumerate(names):
        gain, error = float(weighed.gain[k]), float(weighed.error[k])
        mixed = {members[int(m)]: float(weighed.personal[k, m]) for m in np.flatnonzero(weighed.personal[k])}
        entries[name] = {
            "members": {"local": 1.0} if kept_alone[k] else mixed,
            "kept_alone": bool(kept_alone[k]),
            "gain": (gain, gain - 1.96 * error, gain + 1.96 * error),
            "samples": int(weighed.count[k]),
            "effective": float(weighed.effective[k]),
        }
    return entries
