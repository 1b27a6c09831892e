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
FARTHER = 3.0
"""Times the length of the trained row: a personal model up to there is not looked into."""


def steadily(function: Train, shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """What `function` trains from `rows` (k, B), at rates at which it is not wild; `counters` move on in place."""
    settings = request.shared.get("sgd", {})
    limit = 0 if settings.get("privacy") or request.mail is not None else settings.get("halvings", 0)
    known = shard.store.get("halvings") if limit else None
    halved = np.zeros(len(rows), dtype=np.int64) if known is None else known[request.ids].cpu().numpy().copy()
    before = counters.clone()
    trained = at_rates(function, shard, request, rows, counters, halved)
    for _ in range(limit):
        wild = np.flatnonzero(is_wild(shard, request.ids, rows, trained) & (halved < limit))
        if not len(wild):
            break
        halved[wild] += 1
        anew = before[wild]
        again = at_rates(function, shard, request.some(wild), rows[wild], anew, halved[wild])
        counters[wild] = anew
        trained = as_one_training({"all": (np.arange(len(rows)), trained), "anew": (wild, again)}, len(rows))
    return replace(trained, keep={**trained.keep, "halvings": torch.as_tensor(halved)}) if halved.any() else trained


def at_rates(
    function: Train, shard: Shard, request: Request, rows: Tensor, counters: Tensor, halved: np.ndarray
) -> Trained:
    """One training for all who halved their rate equally often, (k,)."""
    parts = {}
    for times in np.unique(halved):
        place = np.flatnonzero(halved == times)
        everyone = len(place) == len(rows)
        asked, start, own = (
            (request, rows, counters) if everyone else (request.some(place), rows[place], counters[place])
        )
        shard.moments.clear()
        found = function(shard, slower(asked, 0.5 ** int(times)), start, own)
        parts[int(times)] = place, replace(found, keep={**found.keep, **shard.moments})
        if not everyone:
            counters[place] = own
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
    wild = ~(trained.rows.sum(dim=1).isfinite() & trained.loss.isfinite()).cpu().numpy()
    if trained.personal is not None:
        wild |= ~trained.personal.sum(dim=1).isfinite().cpu().numpy()
    wild |= _beyond(shard, ids, start, trained.rows, trained.loss > beyond(shard) / 2)
    if trained.personal is not None and not trained.rebuilt:
        far = trained.personal.norm(dim=1) > FARTHER * trained.rows.norm(dim=1)
        wild |= _beyond(shard, ids, trained.rows, trained.personal, far)
    return wild


def beyond(shard: Shard) -> float:
    """How many times the loss of a network of zeros is too much for the shard's model."""
    layout = shard.spec.layout
    return BEYOND if layout.width == layout.n_parameters else BEYOND_WITH_STATISTICS


def _beyond(shard: Shard, ids: np.ndarray, before: Tensor, after: Tensor, suspect: Tensor) -> np.ndarray:
    """Of the suspects (k,): whose loss after is above the one before and far above that of a network of zeros."""
    found, some = np.zeros(len(ids), dtype=bool), np.flatnonzero(suspect.cpu().numpy())
    if len(some):
        three = torch.zeros_like(after[some]), before[some], after[some]
        zeros, first, last = (evaluate_rows(shard, ids[some], rows, "train")["loss"] for rows in three)
        found[some] = ((zeros > 0) & (last > first) & (last > beyond(shard) * zeros)).cpu().numpy()
    return found


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
