"""A client whose training grows without bound begins the round again at half the rate, and stays at the rate it came to.

One rate cannot suit every client: gradient descent on a quadratic is stable for γ < 2/β_k only, and the smoothness β_k of a
linear model is that of the client's own inputs. Training is *wild* if it ends in NaN or infinity, or at a loss above that of the
start (a personal model's: above that of the common one) and ten times that of a network of zeros. Nothing changes for clients whose training is not.

The number of halvings is the client's private state; clients with as many train together. Private training of samples never begins
again: each time would cost privacy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedkin.local.training import evaluate_rows

if TYPE_CHECKING:
    from fedkin.local.shard import Shard
    from fedkin.local.tasks import Request, Trained

    Train = Callable[[Shard, Request, Tensor, Tensor], Trained]

BEYOND, BEYOND_WITH_STATISTICS = 10.0, 100.0
"""Times the loss of a network of zeros: training that ends there, and rose, is wild. A mean training loss up to half of this number
is not looked into. (Running statistics lag behind in evaluation, so that a loss there says less of training.)"""
HALVED = ("halvings", "halved_in")
"""Private state: how often a client halved its rate, and in which round for the last time."""
FARTHER = 3.0
"""Times the length of the trained row: a personal model up to there is not looked into."""


def steadily(function: Train, shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """What `function` trains from `rows` (k, B), at rates at which it is not wild; `counters` move on in place."""
    settings = request.shared.get("sgd", {})
    limit = 0 if settings.get("privacy") or request.mail is not None else settings.get("halvings", 0)
    times, since = np.zeros((len(HALVED), len(rows)), dtype=np.int64)
    if limit and "halvings" in shard.store:
        times, since = (own.numpy().copy() for own in halved(shard, request.ids).values())
    before = counters.clone()
    shard.moments.clear()
    if times.any():
        trained = at_rates(function, shard, request, rows, counters, times)
    else:
        trained = function(shard, request, rows, counters)
    if shard.moments:
        trained = replace(trained, keep={**trained.keep, **shard.moments})
    for _ in range(limit):
        wild = np.flatnonzero(is_wild(shard, request.ids, rows, trained) & (times < limit))
        if not len(wild):
            break
        times[wild] += 1
        since[wild] = request.shared["round"]
        anew = before[wild]
        again = at_rates(function, shard, request.some(wild), rows[wild], anew, times[wild])
        counters[wild] = anew
        trained = as_one_training({"all": (np.arange(len(rows)), trained), "anew": (wild, again)}, len(rows))
    if not times.any():
        return trained
    kept = dict(zip(HALVED, map(torch.as_tensor, (times, since))))
    return replace(trained, keep={**trained.keep, **kept})


def halved(shard: Shard, ids: np.ndarray, kept: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """How often each client halved its rate, and in which round for the last time, (k,) each: as `kept`, or as in the store."""
    found = {name: shard.store[name][ids].cpu() for name in HALVED if name in shard.store} | dict(kept or {})
    return {name: found.get(name, torch.zeros(len(ids), dtype=torch.int64)) for name in HALVED}


def at_rates(
    function: Train, shard: Shard, request: Request, rows: Tensor, counters: Tensor, halvings: np.ndarray
) -> Trained:
    """One training for all who halved their rate equally often, (k,)."""
    parts = {}
    for times in np.unique(halvings):
        place = np.flatnonzero(halvings == times)
        everyone = len(place) == len(rows)
        asked, start, own = (
            (request, rows, counters) if everyone else (request.some(place), rows[place], counters[place])
        )
        shard.moments.clear()
        found = function(shard, slower(asked, 0.5 ** int(times)), start, own)
        parts[int(times)] = place, replace(found, keep={**found.keep, **shard.moments})
        if not everyone:
            counters[place] = own
    shard.moments.clear()
    return as_one_training(parts, len(rows))


def slower(request: Request, factor: float) -> Request:
    """The question with every rate that it names multiplied by `factor`: of the settings, and those in "rates"."""
    if factor == 1:
        return request
    shared = dict(request.shared)
    shared["sgd"] = {**shared["sgd"], "lr": factor * shared["sgd"]["lr"]}
    return replace(request, shared=shared | {name: factor * shared[name] for name in shared.get("rates", ())})


def is_wild(shard: Shard, ids: np.ndarray, rows: Tensor, trained: Trained) -> np.ndarray:
    """Whose training (k,) ended in no number, or rose to beyond what a network of zeros costs."""
    start = rows if trained.start is None else trained.start
    wild = ~(shard.per_row(_sums, trained.rows).isfinite() & trained.loss.isfinite()).cpu().numpy()
    if trained.personal is not None:
        wild |= ~shard.per_row(_sums, trained.personal).isfinite().cpu().numpy()
    layout = shard.spec.layout
    times = BEYOND if layout.width == layout.n_parameters else BEYOND_WITH_STATISTICS
    some = np.flatnonzero((trained.loss > times / 2).cpu().numpy())
    if len(some):
        wild[some] |= _beyond(times, shard, ids[some], start[some], trained.rows[some])
    if trained.personal is not None and not trained.rebuilt:
        some = np.flatnonzero((trained.personal.norm(dim=1) > FARTHER * trained.rows.norm(dim=1)).cpu().numpy())
        if len(some):
            wild[some] |= _beyond(times, shard, ids[some], trained.rows[some], trained.personal[some])
    return wild


def _sums(rows: Tensor) -> Tensor:
    return rows.sum(dim=1)


def _beyond(times: float, shard: Shard, ids: np.ndarray, before: Tensor, after: Tensor) -> np.ndarray:
    """Whose loss (k,) after is above the one before and so many times that of a network of zeros."""
    three = torch.zeros_like(after), before, after
    zeros, first, last = (evaluate_rows(shard, ids, rows, "train")["loss"] for rows in three)
    return ((zeros > 0) & (last > first) & (last > times * zeros)).cpu().numpy()


def as_one_training(parts: Mapping[Any, tuple[np.ndarray, Trained]], count: int) -> Trained:
    """Trainings of some of `count` clients as one; of a client in several of them the last counts."""
    (_, first), *others = parts.values()
    if not others:
        return first

    def whole(pieces: list[tuple[np.ndarray, Any]]) -> Any:
        value = pieces[0][1]
        if isinstance(value, Tensor):
            merged = value.new_empty((count, *value.shape[1:]))
            for place, piece in pieces:
                merged[place] = piece
            return merged
        if isinstance(value, dict):
            return {key: whole([(place, piece[key]) for place, piece in pieces]) for key in value}
        return value

    return type(first)(
        **{
            field.name: whole([(place, getattr(each, field.name)) for place, each in parts.values()])
            for field in fields(first)
        }
    )
