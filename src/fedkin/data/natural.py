"""Sets whose clients and split are their own: a client is a school, a patient, a person, a station.

Rows are split first; means and deviations are then fitted on the training rows of all clients together, so nothing is
learned from test rows. (In a real federation these are the pooled moments that clients would send.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedkin.data.federate import Recipe, Scaling
from fedkin.data.partition import by_column
from fedkin.errors import FedkinError
from fedkin.federation import PARTS, Federation, Split
from fedkin.federation.split import stratified
from fedkin.task import Forecast, Task

if TYPE_CHECKING:
    from fedkin.graphs import ClientGraph

PartArrays = dict[str, np.ndarray]
"""The rows of one client by part: train, validation, test."""


def clients_of(recipe: Recipe, owner: np.ndarray, who: str) -> dict[str, np.ndarray]:
    """The rows of every natural client, or of the `recipe.clients` that are drawn; other partitions are refused."""
    if recipe.partition not in (None, "natural", "column"):
        raise FedkinError(
            f"partition {recipe.partition!r}: a client of this set is a {who}, and its split follows from that; "
            "drop partition"
        )
    return recipe.choose(by_column(owner))


def at_random(recipe: Recipe, name: str, own: np.ndarray) -> PartArrays:
    """The rows of a client shared out at random, by seed and name."""
    rng = recipe.streams.generator("split", name)
    index = stratified(len(own), None, recipe.test_fraction, recipe.validation_fraction, rng)
    return {part: own[index[part]] for part in PARTS}


def split_in_order(recipe: Recipe, own: np.ndarray, block: np.ndarray | None = None) -> PartArrays:
    """The first rows of a client train, then those for validation, the last test.

    `own` is in order of time. `block` (never falling along `own`) numbers what must stay together, such as a session: a
    block in which a cut would fall goes to the later part.
    """
    n = len(own)
    block = np.arange(n) if block is None else block
    test = n - round(recipe.test_fraction * n)
    cuts = np.array([test - round(recipe.validation_fraction * n), test])
    snapped = [int(np.searchsorted(block, block[cut])) if cut < n else n for cut in cuts]
    return dict(zip(PARTS, np.split(own, snapped)))


def standardised(train: np.ndarray) -> Scaling:
    """Every feature to mean 0 and deviation 1 over training rows (n, features); a constant feature becomes 0."""
    mean, deviation = train.mean(axis=0, dtype=np.float64), train.std(axis=0, dtype=np.float64)
    deviation = np.where(deviation > 1e-12, deviation, 1.0)
    return lambda raw: ((raw - mean) / deviation).astype(np.float32)


def z_scored(values: np.ndarray) -> tuple[float, float]:
    """Mean and deviation of training values, as plain numbers."""
    return float(values.mean(dtype=np.float64)), float(values.std(dtype=np.float64))


def joined_parts(recipe: Recipe, parts: Mapping[str, PartArrays]) -> tuple[PartArrays, PartArrays]:
    """Of all clients: the rows of each part, one client after the other, and where each client begins."""
    split = recipe.reduced(list(parts.values()))
    rows = {part: np.concatenate([own[part] for own in split]) for part in PARTS}
    offsets = {part: np.cumsum([0, *(len(own[part]) for own in split)]).astype(np.int64) for part in PARTS}
    return rows, offsets


def classification(
    recipe: Recipe,
    parts: Mapping[str, PartArrays],
    x: np.ndarray,
    y: np.ndarray,
    classes: Sequence[str],
    notes: Sequence[str] = (),
) -> Federation:
    """Clients with their rows of x (n, features), standardised, and of y (n,), class codes 0…C−1."""
    rows, offsets = joined_parts(recipe, parts)
    scale = standardised(x[rows["train"]])
    task = Task("classification", x.shape[1:], classes=tuple(classes))
    train, validation, test = (Split(scale(x[rows[p]]), y[rows[p]].astype(np.int64), offsets[p]) for p in PARTS)
    return Federation(tuple(parts), task, train, validation, test, notes=tuple(notes))


def regression(
    recipe: Recipe, parts: Mapping[str, PartArrays], x: np.ndarray, y: np.ndarray, target: str
) -> Federation:
    """Clients with their rows of x (n, features), standardised, and of y (n,), z-scored by all training targets.

    So a mean squared error of 1 is that of guessing the mean, and 1 − MSE is about R². The mean and the deviation are in
    `truth["mean"]` and `truth["std"]`, and a note tells them.
    """
    rows, offsets = joined_parts(recipe, parts)
    scale = standardised(x[rows["train"]])
    mean, std = z_scored(y[rows["train"]])
    x, y = scale(x), ((y - mean) / std).astype(np.float32)
    train, validation, test = (Split(x[rows[p]], y[rows[p]], offsets[p]) for p in PARTS)
    note = f"targets are z-scores: {target} = {mean:.4g} + {std:.4g}·y, so an MSE of 1 is {std**2:.4g} in its own units"
    truth = {"mean": np.array([mean]), "std": np.array([std])}
    task = Task("regression", x.shape[1:])
    return Federation(tuple(parts), task, train, validation, test, truth=truth, notes=(note,))


def series(
    recipe: Recipe,
    parts: Mapping[str, PartArrays],
    past: np.ndarray,
    coming: np.ndarray,
    every: int,
    told: tuple[int, ...],
    places: np.ndarray,
    graph: ClientGraph,
    notes: Sequence[str] = (),
) -> Federation:
    """Clients with their windows: past (n, values) → coming (n, steps), all z-scored by one mean and deviation.

    One value comes every `every` minutes; errors are told in the units of the data, `told` minutes ahead. `places`
    (K, 2) are the latitudes and longitudes of the clients.
    """
    rows, offsets = joined_parts(recipe, parts)
    mean, std = z_scored(past[rows["train"]])
    x, y = (((values - mean) / std).astype(np.float32) for values in (past, coming))
    train, validation, test = (Split(x[rows[part]], y[rows[part]], offsets[part]) for part in PARTS)
    return Federation(
        tuple(parts),
        Task("regression", x.shape[1:], output_shape=y.shape[1:], forecast=Forecast(mean, std, every, None, told)),
        train,
        validation,
        test,
        graph=graph,
        truth={"mean": np.array([mean]), "std": np.array([std]), "coordinates": places},
        notes=tuple(notes),
    )
