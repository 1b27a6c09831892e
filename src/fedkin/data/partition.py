"""Partitioners: who gets which samples. Pure functions of the labels; each returns one index array per client.

A partition is named by a spec `"name:argument:argument"`, for example `"dirichlet:0.3"`, `"shards:2"` or
`"topology:0,1,2|2,3,4"`. A new one is a function `(labels, clients, rng, *arguments)` under `@partitioner("name")`.

>>> labels = np.repeat(np.arange(10), 50)
>>> parts = split("labels:2", labels, clients=20, rng=np.random.default_rng(0))
>>> len(parts), {len(np.unique(labels[rows])) for rows in parts}
(20, {2})
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import get_type_hints

import numpy as np

from fedkin.data.topology import group_of_client, groups_of
from fedkin.errors import FedkinError, unknown

Partitioner = Callable[..., list[np.ndarray]]
PARTITIONERS: dict[str, Partitioner] = {}


def partitioner(name: str) -> Callable[[Partitioner], Partitioner]:
    """Register a partitioner under the name used in specs."""

    def register(function: Partitioner) -> Partitioner:
        PARTITIONERS[name] = function
        return function

    return register


def split(spec: str, labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """The rows of each client, sorted, under the partition `spec`. `labels` are class codes, shape (n,)."""
    name, *given = str(spec).split(":")
    if name not in PARTITIONERS:
        raise unknown("partition", name, PARTITIONERS)
    if clients < 1:
        raise FedkinError(f"clients is {clients}; a partition needs at least one client")
    if clients > len(labels):
        raise FedkinError(f"{clients} clients cannot share {len(labels)} samples; use at most {len(labels)} clients")
    function = PARTITIONERS[name]
    hints = get_type_hints(function)
    parameters = list(inspect.signature(function).parameters)[3:]
    if len(given) > len(parameters):
        raise FedkinError(f"partition {spec!r} has too many arguments; {name} takes {', '.join(parameters) or 'none'}")
    values = []
    for parameter, text in zip(parameters, given):
        try:
            values.append(hints[parameter](text))
        except ValueError:
            kind = {float: "a number", int: "a whole number"}.get(hints[parameter], str(hints[parameter]))
            raise FedkinError(f"partition {spec!r}: {parameter} must be {kind}, not {text!r}") from None
    return [np.sort(rows) for rows in function(labels, clients, rng, *values)]


def by_column(column: np.ndarray) -> dict[str, np.ndarray]:
    """Natural clients: the rows of every distinct value of a column, in sorted order of the values.

    >>> by_column(np.array(["b", "a", "b"]))
    {'a': array([1]), 'b': array([0, 2])}
    """
    values, codes = np.unique(column, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    groups = np.split(order, np.cumsum(np.bincount(codes, minlength=len(values)))[:-1])
    return {str(value): rows for value, rows in zip(values, groups)}


@partitioner("iid")
def iid(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Equal random shares (sizes differ by at most one)."""
    return list(np.array_split(rng.permutation(len(labels)), clients))


@partitioner("dirichlet")
def dirichlet(
    labels: np.ndarray, clients: int, rng: np.random.Generator, alpha: float = 0.3, minimum: int = 10
) -> list[np.ndarray]:
    """Dirichlet label skew by the rule of NIID-Bench (Li et al., ICDE 2022).

    For each class: shuffle its rows, draw p ~ Dir(α·1_K), set p_j = 0 for clients that already hold n/K rows,
    renormalise, cut at the cumulative proportions. Draw again until each client has `minimum` rows (or n/K if that is
    less). It always ends: after 20 draws the last one is repaired by moving rows of the largest client's most common
    label to the smallest client until the minimum holds everywhere.
    """
    if not alpha > 0:
        raise FedkinError(f"dirichlet: alpha is {alpha}; it must be positive")
    minimum = min(minimum, len(labels) // clients)
    owner = np.zeros(len(labels), dtype=np.int64)
    for _ in range(20):
        owner = _dirichlet_draw(labels, clients, rng, alpha)
        if np.bincount(owner, minlength=clients).min() >= minimum:
            break
    else:
        _repair(owner, labels, clients, minimum)
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def _dirichlet_draw(labels: np.ndarray, clients: int, rng: np.random.Generator, alpha: float) -> np.ndarray:
    """The owner of every row after one draw of the NIID-Bench rule."""
    owner = np.empty(len(labels), dtype=np.int64)
    sizes = np.zeros(clients, dtype=np.int64)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        room = sizes < len(labels) / clients
        p = rng.dirichlet(np.full(clients, alpha)) * room
        if not p.sum() > 0:  # all mass on full clients (or underflow at a tiny α): one open client takes the class
            p = np.zeros(clients)
            p[rng.choice(np.flatnonzero(room))] = 1.0
        cuts = (np.cumsum(p / p.sum())[:-1] * len(rows)).astype(np.int64)
        counts = np.diff(np.concatenate([[0], cuts, [len(rows)]]))
        owner[rows] = np.repeat(np.arange(clients), counts)
        sizes += counts
    return owner


def _repair(owner: np.ndarray, labels: np.ndarray, clients: int, minimum: int) -> None:
    """Move rows (in place) from the largest clients to those below `minimum`. Ends: minimum · K ≤ n."""
    sizes = np.bincount(owner, minlength=clients)
    for needy in np.flatnonzero(sizes < minimum):
        while sizes[needy] < minimum:
            donor = int(sizes.argmax())
            rows = np.flatnonzero(owner == donor)
            common = np.bincount(labels[rows]).argmax()
            spare = rows[labels[rows] == common][: min(minimum - sizes[needy], sizes[donor] - minimum)]
            owner[spare] = needy
            sizes[donor] -= len(spare)
            sizes[needy] += len(spare)


@partitioner("balanced-dirichlet")
def balanced_dirichlet(
    labels: np.ndarray, clients: int, rng: np.random.Generator, alpha: float = 0.2, samples: int = 0
) -> list[np.ndarray]:
    """Exactly `samples` rows per client (default ⌊n/K⌋), label proportions p_k ~ Dir(α·1_C) (FedPnP on MNIST: 600).

    Client after client: the expected counts samples·p_k, rounded by largest remainders, as far as the classes last;
    what is missing comes from the classes with rows left, again in proportion to p_k.
    """
    samples = samples or len(labels) // clients
    if not alpha > 0 or samples < 1:
        raise FedkinError(f"balanced-dirichlet: alpha {alpha} and samples {samples} must be positive")
    if samples * clients > len(labels):
        raise FedkinError(f"balanced-dirichlet: {clients} clients × {samples} samples exceed the {len(labels)} at hand")
    stock = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    parts = []
    for _ in range(clients):
        left = np.array([len(rows) for rows in stock])
        p = rng.dirichlet(np.full(len(stock), alpha)) + 1e-12
        counts = np.zeros(len(stock), dtype=np.int64)
        while counts.sum() < samples:
            open_classes = counts < left
            share = largest_remainders(p * open_classes, int(samples - counts.sum()))
            counts = np.minimum(counts + share, left)
        parts.append(np.concatenate([rows[:count] for rows, count in zip(stock, counts)]))
        stock = [rows[count:] for rows, count in zip(stock, counts)]
    return parts


def largest_remainders(proportions: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers close to total·p (p normalised) that sum to `total`.

    >>> largest_remainders(np.array([0.5, 0.3, 0.2]), 11)
    array([6, 3, 2])
    """
    exact = proportions / proportions.sum() * total
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: total - counts.sum()]] += 1
    return counts


@partitioner("labels")
def labels_per_client(labels: np.ndarray, clients: int, rng: np.random.Generator, count: int = 2) -> list[np.ndarray]:
    """`count` labels per client (NIID-Bench "#label"): label i mod C and count − 1 random others for client i.

    Each class is split evenly among its holders. With fewer clients than classes some classes may have no holder and
    are left out.
    """
    values = np.unique(labels)
    if not 1 <= count <= len(values):
        raise FedkinError(f"labels: count is {count}; there are {len(values)} classes")
    held = []
    for client in range(clients):
        own = client % len(values)
        others = rng.permutation(np.delete(np.arange(len(values)), own))[: count - 1]
        held.append(np.concatenate([[own], others]))
    return _share(labels, [values[own].tolist() for own in held], rng)


def _share(labels: np.ndarray, held: Sequence[Sequence[int]], rng: np.random.Generator) -> list[np.ndarray]:
    """Split each class evenly among the clients that hold its label; `held[k]` lists the labels of client k."""
    parts: list[list[np.ndarray]] = [[] for _ in held]
    for label in np.unique(labels):
        holders = [client for client, own in enumerate(held) if label in own]
        rows = rng.permutation(np.flatnonzero(labels == label))
        if len(rows) < len(holders):
            raise FedkinError(f"label {label} has {len(rows)} samples for {len(holders)} clients; use fewer clients")
        for client, share in zip(holders, np.array_split(rows, max(len(holders), 1))):
            parts[client].append(share)
    return [np.concatenate(shares) for shares in parts]


def _shards(labels: np.ndarray, clients: int, rng: np.random.Generator, count: int) -> list[np.ndarray]:
    size = len(labels) // (clients * count) if count > 0 else 0
    if size < 1:
        raise FedkinError(f"shards: {clients} clients × {count} shards need at least that many samples")
    shuffled = rng.permutation(len(labels))
    ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
    pieces = ordered[: clients * count * size].reshape(clients * count, size)
    return list(pieces[rng.permutation(clients * count)].reshape(clients, count * size))


@partitioner("shards")
def shards(labels: np.ndarray, clients: int, rng: np.random.Generator, count: int = 2) -> list[np.ndarray]:
    """`count` shards per client (McMahan et al. 2017): sort by label, cut into K·count equal shards, deal them out.

    Disjoint. The last n mod (K·count) rows of the sorted list are left out.
    """
    return _shards(labels, clients, rng, count)


@partitioner("shards-official")
def shards_official(labels: np.ndarray, clients: int, rng: np.random.Generator, count: int = 2) -> list[np.ndarray]:
    """Shards as in the released code of SFL and FedSKA: they only fix each client's label counts.

    The rows are then drawn from the whole label, independently for each client, so clients **overlap**.
    """
    stock = {label: np.flatnonzero(labels == label) for label in np.unique(labels)}
    parts = []
    for rows in _shards(labels, clients, rng, count):
        wanted = zip(*np.unique(labels[rows], return_counts=True))
        parts.append(np.concatenate([rng.choice(stock[label], n, replace=False) for label, n in wanted]))
    return parts


@partitioner("fedu")
def fedu(
    labels: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    count: int = 2,
    low: int = 160,
    high: int = 250,
    times: int = 10,
) -> list[np.ndarray]:
    """FedU's uneven sizes: client k holds labels k, k+1, …, k+count−1 (mod C).

    First 10 rows of each of its labels, then share·u + v more, where share is a lognormal(0, 2) portion of the class
    (normalised over K × count draws; each block of K/10 clients shares a draw), u uniform on 1…times, v on low…high;
    doubled for at most 20 clients. As in the authors' code, a client whose extra rows no longer fit keeps its first
    ones only. MNIST: `fedu:2` with 100 clients; CIFAR-10: `fedu:3:300:600:1` with 20.
    """
    values = np.unique(labels)
    if not 1 <= count <= len(values):
        raise FedkinError(f"fedu: count is {count}; there are {len(values)} classes")
    stock = [rng.permutation(np.flatnonzero(labels == value)) for value in values]
    sizes = np.array([len(rows) for rows in stock])
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    pairs = [(client, j, (client + j) % len(values)) for client in range(clients) for j in range(count)]
    portions = rng.lognormal(0.0, 2.0, (len(values), clients, count))
    portions *= (np.maximum(sizes - clients, 0) / portions.sum(axis=(1, 2)))[:, None, None]
    block = np.arange(clients) // max(1, clients // 10)
    extra = portions.astype(np.int64)[:, block] * rng.integers(1, times + 1, portions.shape)
    extra = (extra + rng.integers(low, high + 1, portions.shape)) * (2 if clients <= 20 else 1)
    holders = np.bincount([code for *_, code in pairs], minlength=len(values))
    for client, _, code in pairs:
        first = min(10, sizes[code] // holders[code])
        parts[client].append(stock[code][:first])
        stock[code] = stock[code][first:]
    for client, j, code in pairs:
        more = int(extra[code, client, j])
        if more < len(stock[code]):
            parts[client].append(stock[code][:more])
            stock[code] = stock[code][more:]
    return [np.concatenate(rows) for rows in parts]


@partitioner("topology")
def topology(labels: np.ndarray, clients: int, rng: np.random.Generator, groups: str = "1") -> list[np.ndarray]:
    """FedCedar's structured clients: equal groups of clients, each group with its own label set.

    A class is split evenly among all clients whose group holds it; classes in no group are left out.
    """
    sets = groups_of(groups)
    missing = sorted({label for group in sets for label in group} - set(np.unique(labels).tolist()))
    if missing:
        raise FedkinError(f"topology: label {missing[0]} is not in the data; labels are {np.unique(labels).tolist()}")
    return _share(labels, [sets[group] for group in group_of_client(clients, len(sets))], rng)
