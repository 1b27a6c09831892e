"""Who takes part in a Flower federation: its sites and their clients, those of some sites alone, or their clients' folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedkin.engines.flower.setup import Setup
from fedkin.federation.folds import fold_names, fold_sizes, is_series
from fedkin.roster import Roster


@dataclass(frozen=True)
class Called:
    """Who takes part."""

    roster: Roster
    members: list[np.ndarray]
    """Positions, in the roster, of every site's clients."""
    nodes: list[int]
    setup: Setup
    own: dict[str, str | None]
    """Client → the model it names."""
    away: frozenset[int] = frozenset()
    """Sites of a run that goes on which did not join again yet."""


def in_folds(called: Called, count: int, used: int, seed: int, whole: bool = True) -> Called:
    """The same sites, where every client stands for its folds, and for itself whole; no test sample is within reach."""
    roster, size = called.roster, len(called.roster)
    sizes = fold_sizes(roster.train + roster.validation, count, used, is_series(roster.task))
    names, kept = fold_names(roster.names, used, whole), slice(size * (used + whole))
    train, held = (part[kept] for part in sizes)
    further = replace(roster, names=names, train=train, validation=held, test=np.zeros_like(train))
    starts = size * np.arange(used + whole)
    members = [(starts[:, None] + own[None]).ravel() for own in called.members]
    return replace(called, roster=further, members=members, setup=replace(called.setup, folds=(count, used, seed)))


def those_sites(called: Called, places: Sequence[int]) -> Called:
    """These sites alone, by their places in `called`, with their clients."""
    ids = np.concatenate([called.members[place] for place in places])
    roster, ends = called.roster, np.cumsum([len(called.members[place]) for place in places])
    names = tuple(roster.names[k] for k in ids)
    counts = None if roster.label_counts is None else roster.label_counts[ids]
    parts = {part: getattr(roster, part)[ids] for part in ("train", "validation", "test")}
    return replace(
        called,
        roster=replace(roster, names=names, **parts, graph=None, truth={}, label_counts=counts),
        members=np.split(np.arange(len(ids)), ends[:-1]),
        nodes=[called.nodes[place] for place in places],
        own={name: called.own[name] for name in names if name in called.own},
        away=frozenset(at for at, place in enumerate(places) if place in called.away),
    )
