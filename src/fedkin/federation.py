"""Federation: the clients, their data, and what is to be learned. No training happens here."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedkin.errors import FedkinError, unknown
from fedkin.given import as_array, as_classes, check_fractions, hold_texts
from fedkin.streams import Streams
from fedkin.task import Kind, Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from fedkin.graphs import ClientGraph
    from fedkin.roster import Roster


@dataclass(frozen=True)
class Split:
    """The samples of all clients in one array, client after client (a ragged array).

    Client k owns rows `offsets[k]:offsets[k+1]` of `x` (n, *input shape) and `y` (n,) or (n, *output shape).
    """

    x: np.ndarray
    y: np.ndarray
    offsets: np.ndarray

    @classmethod
    def join(cls, parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> Split:
        """Put the (x, y) of every client one after the other."""
        sizes = [len(x) for x, _ in parts]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]), offsets)

    @property
    def sizes(self) -> np.ndarray:
        """Samples per client, shape (K,)."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(int(self.offsets[k]), int(self.offsets[k + 1]))
        return self.x[rows], self.y[rows]

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return (self[k] for k in range(len(self)))

    def take(self, clients: Sequence[int] | np.ndarray) -> Split:
        """The samples of these clients only, in this order."""
        if len(clients) == len(self) and np.array_equal(clients, np.arange(len(self))):
            return self
        chosen = np.asarray(clients, dtype=np.int64)
        sizes = self.sizes[chosen]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        index = np.arange(offsets[-1]) + np.repeat(self.offsets[chosen] - offsets[:-1], sizes)
        return Split(self.x[index], self.y[index], offsets)


@dataclass(frozen=True)
class Federation:
    """Named clients, each with its own train, validation and test samples, which never overlap.

    Build one with `from_arrays`, `from_frame`, `from_datasets` or `fedkin.data.load`.

    >>> rng = np.random.default_rng(0)
    >>> sites = {f"site-{i}": (rng.normal(size=(40, 3)), rng.integers(0, 2, 40)) for i in range(4)}
    >>> Federation.from_arrays(sites)
    Federation(4 clients, classification with 2 classes, inputs (3,), 120 train / 0 validation / 40 test samples)
    """

    names: tuple[str, ...]
    task: Task
    train: Split
    validation: Split
    test: Split
    public: Mapping[str, np.ndarray] | None = None
    """Unlabelled inputs a client shows to others: client name → (m, *input shape); the name "*" is common to all."""
    graph: ClientGraph | None = None
    """A graph that comes with the data (roads between sensors, the true blocks of a synthetic set)."""
    truth: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What a synthetic generator knows, for tests and figures (e.g. "cluster": the true cluster of each client)."""
    notes: tuple[str, ...] = ()
    """What a reader of results must know about the data ("one week of 17")."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """How to build this federation again (for `fedkin resume`); empty for a user's own arrays."""
    inputs: tuple[Mapping[str, Any], ...] = ()
    """How the columns of a table became inputs, in order, so that new rows can be prepared alike; empty otherwise."""

    def __post_init__(self) -> None:
        if not self.names:
            raise FedkinError("a federation needs at least one client")
        if len(set(self.names)) != len(self.names):
            seen: set[str] = set()
            twice = next(name for name in self.names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise FedkinError(f"client {twice!r} appears twice; give every client its own name")
        empty = np.flatnonzero(self.train.sizes == 0)
        if len(empty):
            name = self.names[int(empty[0])]
            raise FedkinError(f"client {name!r} has no training samples; drop it or give it data")
        for which in ("train", "validation", "test"):
            split: Split = getattr(self, which)
            if split.x.dtype.kind == "f" and not np.isfinite(split.x).all():
                self._blame(split, split.x, which, "x")
            if split.y.dtype.kind == "f" and not np.isfinite(split.y).all():
                self._blame(split, split.y, which, "y")

    def _blame(self, split: Split, values: np.ndarray, which: str, name: str) -> None:
        row = int(np.argwhere(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))[0, 0])
        client = self.names[int(np.searchsorted(split.offsets, row, side="right")) - 1]
        raise FedkinError(
            f"client {client!r}: {name} of its {which} samples holds NaN or infinity; drop or impute these values"
        )

    # --- building -----------------------------------------------------------------------------------------------

    @classmethod
    def from_arrays(
        cls,
        clients: Mapping[str, Any],
        task: Kind | None = None,
        public: Mapping[str, np.ndarray] | np.ndarray | None = None,
        test_fraction: float = 0.25,
        validation_fraction: float = 0.0,
        classes: Sequence[Hashable] | None = None,
        tokens: bool = False,
        seed: int = 0,
        graph: ClientGraph | None = None,
        truth: Mapping[str, np.ndarray] | None = None,
        notes: Sequence[str] = (),
        source: Mapping[str, Any] | None = None,
    ) -> Federation:
        """A federation from `{client name: (X, y)}`.

        X is (n, *input shape), y is (n,) labels or numbers. Each client is split into train, validation and test,
        stratified by class where a class has enough samples. A client may instead bring its own split as
        `{"train": (X, y), "test": (X, y), "validation": (X, y)}` (the last is optional).
        `task` is guessed when not given: integer, boolean and text targets are classes, floats are numbers.
        `classes` fixes the classes and their order; without it they are all labels seen, sorted.
        `tokens=True` says that X holds integer tokens (text), to be kept as integers.
        """
        if not isinstance(clients, Mapping) or not clients:
            raise FedkinError("from_arrays needs a mapping {client name: (X, y)} with at least one client")
        check_fractions(test_fraction, validation_fraction)
        names = tuple(str(name) for name in clients)
        given = [_read(name, value) for name, value in zip(names, clients.values())]
        shape = _common_shape(names, given)
        kind = task or _guess_kind(names, given)
        if kind not in ("classification", "regression"):
            raise unknown("task", kind, ["classification", "regression"])
        encode, spec = _targets(kind, names, given, shape, classes)
        spec = replace(spec, tokens=tokens)
        streams = Streams(seed)
        parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"train": [], "validation": [], "test": []}
        for name, data in zip(names, given):
            coded = {part: (x, encode(name, y)) for part, (x, y) in data.items()}
            if "all" in coded:
                x, y = coded["all"]
                labels = y if kind == "classification" else None
                rng = streams.generator("split", name)
                index = _split_indices(len(x), labels, test_fraction, validation_fraction, rng)
                coded = {part: (x[rows], y[rows]) for part, rows in index.items()}
            for part, rows in parts.items():
                x, y = coded["train"]
                rows.append(coded.get(part, (x[:0], y[:0])))
        if isinstance(public, np.ndarray):
            public = {"*": public}
        if public is not None:
            public = {str(k): _check_public(str(k), np.asarray(v), shape) for k, v in public.items()}
        return cls(
            names,
            spec,
            Split.join(parts["train"]),
            Split.join(parts["validation"]),
            Split.join(parts["test"]),
            public=public,
            graph=graph,
            truth=dict(truth or {}),
            notes=tuple(notes),
            source=dict(source or {}),
        )

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, client: str, target: str, **options: Any) -> Federation:
        """A federation from a data frame with a client column and a target column; the other columns are inputs.

        Inputs must be numeric and complete here; `fedkin.data.tabular` prepares raw tables (categories, missing
        values, standardisation fitted on training rows). `options` are those of `from_arrays`.
        """
        for role, column in (("client", client), ("target", target)):
            if column not in frame.columns:
                raise unknown(f"{role} column", column, list(frame.columns))
        inputs = frame.drop(columns=[client, target])
        text = [str(c) for c in inputs.columns if inputs[c].dtype.kind not in "biuf"]
        if text:
            raise FedkinError(
                f"column {text[0]!r} is not numeric; encode it first, or use fedkin.data.tabular, which does"
            )
        if frame[client].isna().any():
            raise FedkinError(f"client column {client!r} has empty cells; drop these rows or fill them in")
        values = inputs.to_numpy(dtype=np.float32)
        targets = frame[target].to_numpy()
        groups = frame.groupby(client, sort=True).indices
        return cls.from_arrays({str(name): (values[rows], targets[rows]) for name, rows in groups.items()}, **options)

    @classmethod
    def from_datasets(cls, datasets: Mapping[str, Any], **options: Any) -> Federation:
        """A federation from `{client name: torch Dataset}` whose items are (input, target) pairs."""
        clients = {}
        for name, dataset in datasets.items():
            try:
                items = [dataset[i] for i in range(len(dataset))]
                xs, ys = zip(*((np.asarray(x), np.asarray(y)) for x, y in items))
            except (TypeError, ValueError) as problem:
                raise FedkinError(
                    f"client {name!r}: its dataset must have a length and yield (input, target) pairs ({problem})"
                ) from problem
            clients[name] = (np.stack(xs), np.stack(ys))
        return cls.from_arrays(clients, **options)

    # --- looking ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        what = f"classification with {len(self.task.classes)} classes"
        if self.task.kind == "regression":
            what = f"regression with outputs {self.task.output_shape}"
        sizes = " / ".join(f"{len(s.x)} {n}" for n, s in self._splits().items())
        return f"Federation({len(self)} clients, {what}, inputs {self.task.input_shape}, {sizes} samples)"

    def _splits(self) -> dict[str, Split]:
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def index(self, name: str) -> int:
        """The position of a client."""
        if name not in self._positions:
            raise unknown("client", name, self.names)
        return self._positions[name]

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.names)}

    def take(self, clients: Sequence[int] | np.ndarray) -> Federation:
        """The federation of these clients only, in this order."""
        rows = [int(k) for k in clients]
        names = tuple(self.names[k] for k in rows)
        kept = {"*", *names}
        public = None if self.public is None else {n: v for n, v in self.public.items() if n in kept}
        return replace(
            self,
            names=names,
            train=self.train.take(rows),
            validation=self.validation.take(rows),
            test=self.test.take(rows),
            public=public,
            graph=None if self.graph is None else self.graph.take(rows),
            truth={k: v[rows] if len(v) == len(self) else v for k, v in self.truth.items()},
            source={},
        )

    def label_counts(self, split: Literal["train", "validation", "test"] = "train") -> np.ndarray:
        """Samples per client and class, shape (K, C)."""
        if self.task.kind != "classification":
            raise FedkinError("label counts need a classification task; this federation is a regression task")
        part = self._splits()[split]
        clients, classes = len(self), len(self.task.classes)
        first = np.repeat(np.arange(clients) * classes, part.sizes)
        return np.bincount(first + part.y, minlength=clients * classes).reshape(clients, classes)

    def fingerprint(self) -> str:
        """A short hash of names and samples: a resumed run must see the same data."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=12)
        digest.update("\x1f".join(self.names).encode())
        for split in self._splits().values():
            for array in (split.offsets, split.y, split.x):
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def roster(self) -> Roster:
        """What a server may know of this federation: names, sizes, the task, and no sample."""
        from fedkin.roster import Roster

        return Roster(
            self.names,
            self.task,
            self.train.sizes,
            self.validation.sizes,
            self.test.sizes,
            fingerprint=self.fingerprint(),
            graph=self.graph,
            truth=self.truth,
            notes=self.notes,
            source=self.source,
            inputs=self.inputs,
            label_counts=self.label_counts() if self.task.kind == "classification" else None,
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw who holds what: label counts per client, or sample counts for regression."""
        from fedkin.reports.figures import federation_figure

        return federation_figure(self, ax)


def _read(name: str, value: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """One client's arrays: {"all": (X, y)}, or its own split."""
    if isinstance(value, Mapping):
        unexpected = set(value) - {"train", "validation", "test"}
        if unexpected or "train" not in value:
            raise FedkinError(f"client {name!r}: a split has the keys train, test and optionally validation")
        pairs = dict(value)
    else:
        pairs = {"all": value}
    data = {}
    for part, pair in pairs.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise FedkinError(f"client {name!r}: expected a pair (X, y), got {type(pair).__name__}")
        x, y = as_array(name, "X", pair[0]), as_array(name, "y", pair[1])
        if not x.ndim or not y.ndim:
            raise FedkinError(f"client {name!r}: X and y need one entry per sample; got a single value")
        if x.dtype.kind not in "biuf":
            raise FedkinError(f"client {name!r}: X holds {x.dtype}, not numbers; encode it first")
        if x.ndim == 1:
            x = x[:, None]
        if len(x) != len(y):
            raise FedkinError(f"client {name!r}: X has {len(x)} rows but y has {len(y)}; they must match")
        if y.dtype.kind == "O" and any(v is None or v != v for v in y.ravel()):
            raise FedkinError(f"client {name!r}: y has missing targets; drop these rows")
        data[part] = (x, y)
    first = data.get("all", data.get("train"))
    if first is not None and len(first[0]) == 0:
        raise FedkinError(f"client {name!r} has no samples; drop it or give it data")
    return data


def _common_shape(names: tuple[str, ...], given: list[dict[str, tuple[np.ndarray, np.ndarray]]]) -> tuple[int, ...]:
    first = next(iter(given[0].values()))[0].shape[1:]
    for name, data in zip(names, given):
        for x, _ in data.values():
            if x.shape[1:] != first:
                raise FedkinError(
                    f"client {name!r}: its inputs have shape {x.shape[1:]}, but those of {names[0]!r} have {first}; "
                    "all clients need the same input shape"
                )
    return tuple(int(s) for s in first)


def _guess_kind(names: tuple[str, ...], given: list[dict[str, tuple[np.ndarray, np.ndarray]]]) -> Kind:
    kinds = {y.dtype.kind in "biuUSO" for data in given for _, y in data.values() if len(y)}
    if len(kinds) == 2:
        raise FedkinError('some clients have labels, others real numbers as targets; pass task="…" or convert them')
    return "classification" if kinds == {True} else "regression"


def _targets(
    kind: Kind,
    names: tuple[str, ...],
    given: list[dict[str, tuple[np.ndarray, np.ndarray]]],
    shape: tuple[int, ...],
    classes: Sequence[Hashable] | None,
) -> tuple[Any, Task]:
    """How raw targets become codes or floats, and the task they define."""
    if kind == "regression":
        output = tuple(next(iter(given[0].values()))[1].shape[1:])

        def as_numbers(name: str, y: np.ndarray) -> np.ndarray:
            if y.dtype.kind not in "biuf":
                raise FedkinError(f"client {name!r}: regression targets must be numbers, not {y.dtype}")
            if tuple(y.shape[1:]) != output:
                raise FedkinError(f"client {name!r}: targets of shape {y.shape[1:]}, but {output} elsewhere")
            return y if y.dtype == np.float64 else y.astype(np.float32)

        return as_numbers, Task("regression", shape, output_shape=output)

    for name, data in zip(names, given):
        for _, y in data.values():
            if y.ndim != 1:
                raise FedkinError(f"client {name!r}: class labels must be one per sample, got shape {y.shape}")
            if y.dtype.kind == "f" and not np.isfinite(y).all():
                raise FedkinError(f"client {name!r}: y has missing targets; drop these rows")
    texts = {
        y.dtype.kind in "US" or hold_texts(name, y)
        for name, data in zip(names, given)
        for _, y in data.values()
        if len(y)
    }
    if len(texts) > 1:
        raise FedkinError("some labels are text, others numbers; convert them to one kind")
    seen = np.unique(np.concatenate([np.unique(y) for data in given for _, y in data.values()]))
    known = as_classes(classes, texts == {True}) if classes is not None else seen
    order = np.argsort(known, kind="stable")

    def as_codes(name: str, y: np.ndarray) -> np.ndarray:
        if len(y) == 0:
            return np.zeros(0, dtype=np.int64)
        place = np.searchsorted(known[order], y)
        codes = order[np.minimum(place, len(known) - 1)]
        wrong = known[codes] != y
        if wrong.any():
            raise FedkinError(
                f"client {name!r} holds label {y[wrong][0]!r}, which is not among the classes "
                f"{known.tolist()}; add it to `classes` or drop these samples"
            )
        return codes.astype(np.int64)

    if len(known) < 2:
        raise FedkinError(f"all clients hold the single class {known.tolist()}; classification needs at least two")
    return as_codes, Task("classification", shape, classes=tuple(known.tolist()))


def _check_public(name: str, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    whose = "the common public set" if name == "*" else f"client {name!r}: its public set"
    if x.ndim == 1 and shape == (1,):
        x = x[:, None]
    if x.shape[1:] != shape:
        raise FedkinError(f"{whose} has inputs of shape {x.shape[1:]}, but the clients' have {shape}")
    if not np.isfinite(x).all():
        raise FedkinError(f"{whose} holds NaN or infinity; drop or impute these values")
    return x


def _split_indices(
    n: int, labels: np.ndarray | None, test: float, validation: float, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Indices of train, validation and test: disjoint, together 0…n−1, each class spread in proportion.

    Samples are put in an order that spreads every class evenly over [0, 1) and cut at the two fractions, so each part
    holds its share of every class up to one sample. At least one sample is kept for training.
    """
    position = rng.permutation(n).astype(float)
    if labels is not None:
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            position[rows] = (rng.permutation(len(rows)) + rng.random()) / len(rows)
    order = np.argsort(position, kind="stable")
    n_test, n_validation = round(test * n), round(validation * n)
    while n_test + n_validation >= n:
        n_validation, n_test = (n_validation - 1, n_test) if n_validation else (0, n_test - 1)
    cuts = np.split(order, [n_test, n_test + n_validation])
    return {part: np.sort(rows) for part, rows in zip(("test", "validation", "train"), cuts)}
