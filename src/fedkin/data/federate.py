"""From pooled samples to a federation: partition, split inside each client, scale, reduce."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.data import partition as partitions
from fedkin.data.topology import true_groups
from fedkin.errors import FedkinError
from fedkin.federation import PARTS, Federation, Holdout, Rescaling, Split
from fedkin.federation.unread import Unread
from fedkin.streams import Streams
from fedkin.task import Task

Scaling = Callable[[np.ndarray], np.ndarray]
Fit = Callable[[np.ndarray], "Scaling | Rescaling"]
DOWNSAMPLE = {"tables": (0.5, 0.2, 0.4), "curves": (0.9, 0.05, 0.2)}


def numbered(prefix: str, count: int, start: int = 0) -> list[str]:
    """Names with zero-padded numbers, so that their order is the order of the numbers.

    >>> numbered("client", 11)[:2]
    ['client-00', 'client-01']
    """
    width = max(2, len(str(count - 1 + start)))
    return [f"{prefix}-{i:0{width}d}" for i in range(start, start + count)]


def unscaled(train: np.ndarray) -> Scaling:
    """Samples as they are, in float32."""
    return lambda x: x.astype(np.float32)


def prepared(scale: Scaling | Rescaling, raw: np.ndarray) -> tuple[np.ndarray, Rescaling]:
    """Samples as they are kept, and what makes inputs of them: a `Rescaling` later, batch by batch, any other scale now."""
    return (raw, scale) if isinstance(scale, Rescaling) else (scale(raw), Rescaling())


@dataclass(frozen=True)
class Recipe:
    """How to make a federation out of a data set: the arguments of `fedkin.data.load` that all sets share."""

    clients: int | None = None
    partition: str | None = None
    seed: int = 0
    test_fraction: float = 0.25
    validation_fraction: float = 0.0
    downsample: str | None = None
    official: bool = False

    def __post_init__(self) -> None:
        _ = self.holdout  # refuses bad fractions
        if self.clients is not None and self.clients < 1:
            raise FedkinError(f"clients is {self.clients}; at least one is needed")
        self.reduction()

    @property
    def streams(self) -> Streams:
        return Streams(self.seed)

    @property
    def holdout(self) -> Holdout:
        return Holdout(self.test_fraction, self.validation_fraction, self.seed)

    def natural(self, has_clients: bool) -> bool:
        """Whether to use the set's own clients."""
        wanted = self.partition in ("natural", "column")
        if wanted and not has_clients:
            raise FedkinError(f"this data set has no clients of its own for partition {self.partition!r}; use another")
        return wanted or (self.partition is None and has_clients)

    def choose(self, groups: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All natural clients, or `clients` of them drawn at random (in their own order)."""
        if self.clients is None or self.clients == len(groups):
            return dict(groups)
        if self.clients > len(groups):
            raise FedkinError(f"{self.clients} clients wanted, but the data set has only {len(groups)}")
        drawn = self.streams.generator("clients").choice(len(groups), self.clients, replace=False)
        names = list(groups)
        return {names[k]: groups[names[k]] for k in sorted(drawn)}

    def reduction(self) -> tuple[float, float, float] | None:
        """Share of clients, kept share of their training and of their test samples (FedU's down-sampling)."""
        if self.downsample is None:
            return None
        try:
            shares = DOWNSAMPLE.get(self.downsample) or tuple(float(v) for v in self.downsample.split(":"))
        except ValueError:
            shares = ()
        if len(shares) not in (2, 3) or not all(0 < share <= 1 for share in shares):
            raise FedkinError(
                f"downsample is {self.downsample!r}; use 'tables', 'curves' or shares 'clients:train[:test]' in (0, 1]"
            )
        if self.official and len(shares) == 2:
            raise FedkinError("official down-sampling needs the kept share of test samples: 'clients:train:test'")
        return shares[0], shares[1], shares[2] if self.official else 1.0

    def reduced(self, rows: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
        """Half of the clients (say), chosen at random, keep only the last of their samples."""
        shares = self.reduction()
        if shares is None:
            return rows
        clients, *keep = shares
        drawn = self.streams.generator("downsample").permutation(len(rows))[: int(clients * len(rows))]
        for k in drawn:
            for part, share in zip(("train", "test"), keep):
                own = rows[k][part]
                rows[k][part] = own[len(own) - max(1, round(share * len(own))) :] if len(own) else own
        return rows


def pooled(
    recipe: Recipe,
    x: np.ndarray | Unread,
    y: np.ndarray,
    classes: Sequence[Any],
    owner: np.ndarray | None = None,
    fit: Fit = unscaled,
    samples: int | None = None,
    notes: Sequence[str] = (),
) -> Federation:
    """A federation from pooled samples: x (n, …) in any raw type, y (n,) class codes 0…C−1.

    `owner` names each row's natural client. `fit(raw training rows)` returns the scaling that turns raw rows into
    inputs, so nothing is learned from test rows; where it is a `Rescaling`, rows are kept as they are. `samples` draws that
    many rows first.
    """
    rows = np.arange(len(y))
    if samples is not None:
        if not 1 <= samples <= len(y):
            raise FedkinError(f"samples is {samples}; the data set has {len(y)}")
        rows = np.sort(recipe.streams.generator("samples").choice(len(y), samples, replace=False))
    truth: dict[str, np.ndarray] = {}
    graph = None
    if owner is not None and recipe.natural(True):
        groups = recipe.choose(partitions.by_column(owner[rows]))
    else:
        recipe.natural(False)
        spec = recipe.partition or "dirichlet:0.3"
        count = recipe.clients or 20
        names = numbered("client", count)
        parts = partitions.split(spec, y[rows], count, recipe.streams.generator("partition", spec))
        groups = dict(zip(names, parts))
        if spec.startswith("shards-official"):
            notes = (*notes, "clients overlap (official shards): a sample may train one client and test another")
        if spec.split(":")[0] == "topology":
            truth, graph = true_groups(spec.partition(":")[2] or "1", names)
    split, holdout = [], recipe.holdout
    for name, own in groups.items():
        if len(own) == 0:
            raise FedkinError(f"client {name!r} gets no samples under this partition; use fewer clients")
        index = holdout.indices(name, len(own), y[rows[own]])
        split.append({part: rows[own[index[part]]] for part in PARTS})
    split = recipe.reduced(split)
    order = {part: np.concatenate([own[part] for own in split]) for part in PARTS}
    offsets = {part: np.cumsum([0, *(len(own[part]) for own in split)]).astype(np.int64) for part in PARTS}
    raw = x[order["train"]]
    scale = fit(raw)
    kept = {"train": prepared(scale, raw)}
    del raw
    kept |= {part: prepared(scale, x[order[part]]) for part in PARTS[1:]}
    train, validation, test = (Split(kept[p][0], y[order[p]].astype(np.int64), offsets[p], kept[p][1]) for p in PARTS)
    return Federation(
        names=tuple(groups),
        task=Task("classification", tuple(kept["train"][0].shape[1:]), classes=tuple(classes)),
        train=train,
        validation=validation,
        test=test,
        graph=graph,
        truth=truth,
        notes=tuple(notes),
    )
