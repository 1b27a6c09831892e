"""Federation: the clients, their data, and what is to be learned. No training happens here."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np

from fedkin.errors import FedkinError, unknown
from fedkin.federation.datasets import read_datasets
from fedkin.federation.reading import common_shape, read_public, read_samples
from fedkin.federation.scaling import Rescaling, read_scaling
from fedkin.federation.split import PARTS, Holdout, Split
from fedkin.federation.targets import encoded
from fedkin.federation.unread import Unread
from fedkin.notebook import html_table
from fedkin.task import Kind, Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedkin.graphs import ClientGraph
    from fedkin.roster import Roster


class About(TypedDict, total=False):
    """What may be known of a federation besides its samples: see the fields of `Federation`."""

    graph: ClientGraph | None
    truth: Mapping[str, np.ndarray]
    notes: tuple[str, ...]
    source: Mapping[str, Any]


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
        for which, split in self._splits().items():
            if isinstance(split.stored, np.ndarray):  # what is unread is looked through once, by `from_arrays`
                self._refuse_infinite(split, [split.stored], which, "x")
            self._refuse_infinite(split, [split.y], which, "y")

    def _refuse_infinite(self, split: Split, blocks: Iterable[np.ndarray], which: str, name: str) -> None:
        start = 0
        for values in blocks:
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
                self._blame(split, start + int(np.argmax(bad)), which, name)
            start += len(values)

    def _blame(self, split: Split, row: int, which: str, name: str) -> None:
        client = self.names[int(np.searchsorted(split.offsets, row, side="right")) - 1]
        raise FedkinError(
            f"client {client!r}: {name} of its {which} samples holds NaN or infinity; drop or impute these values"
        )

    # --- building -----------------------------------------------------------------------------------------------

    @classmethod
    def from_arrays(
        cls,
        clients: Mapping[str, Any],
        task: Kind | Literal["counts"] | None = None,
        public: Mapping[str, np.ndarray] | np.ndarray | None = None,
        test_fraction: float = 0.25,
        validation_fraction: float = 0.0,
        classes: Sequence[Hashable] | None = None,
        tokens: bool = False,
        seed: int = 0,
        scaling: float | Rescaling | None = None,
        **about: Unpack[About],
    ) -> Federation:
        """A federation from `{client name: (X, y)}`.

        `X` is `(n, *input shape)`, `y` is `(n,)` labels or numbers. `X` is kept in its own type (uint8 images as bytes), and a
        memory-mapped `X` stays in its file; `scaling` says what makes inputs of it, batch by batch: a number to multiply by
        (1/255), or a `fedkin.federation.Rescaling`. Each client is split into train, validation and test,
        stratified by class where a class has enough samples. A client may instead bring its own split as
        `{"train": (X, y), "test": (X, y), "validation": (X, y)}` (the last is optional).
        `task` is guessed when not given: integer, boolean and text targets are classes, several columns of 0 and 1 are
        "multilabel", floats are numbers ("regression"). "counts" is regression by the rate of a Poisson distribution.
        `classes` fixes the classes and their order; without it they are all labels seen, sorted.
        `tokens=True` says that X holds integer tokens (text), to be kept as integers.
        `about`: the fields `graph`, `truth`, `notes` and `source` of a federation.
        """
        if not isinstance(clients, Mapping) or not clients:
            raise FedkinError("from_arrays needs a mapping {client name: (X, y)} with at least one client")
        holdout, scale = Holdout(test_fraction, validation_fraction, seed), read_scaling(scaling)
        names = tuple(map(str, clients))
        given = [read_samples(name, value) for name, value in zip(names, clients.values())]
        shape = common_shape(names, given)
        learned, samples = encoded(names, given, shape, task, classes, tokens)
        stratify = bool(learned.classes)
        parts = [holdout.split(name, own, stratify) for name, own in zip(names, samples)]
        train, validation, test = (Split.join([own[part] for own in parts], scale) for part in PARTS)
        made = cls(names, learned, train, validation, test, public=read_public(public, shape), **about)
        for which, split in made._splits().items():
            if isinstance(split.stored, Unread) and not split.stored.itemwise:
                made._refuse_infinite(split, split.blocks(), which, "x")
        return made

    @classmethod
    def from_frame(cls, frame: Any, client: str, target: str, **options: Any) -> Federation:
        """A federation from a raw data frame (pandas or polars): a client column, a target column, the others are inputs.

        Rows are split; then missing values, categories, dates and scales are fitted on training rows. `options` are those
        of `fedkin.data.from_table`: drop, keep, id, date, missing_values, standardise, task, test_fraction, …
        """
        from fedkin.federation.table import from_table

        return from_table(frame, client, target, **options)

    @classmethod
    def from_hf(cls, source: Any, inputs: str, target: str, **options: Any) -> Federation:
        """A federation from Hugging Face data sets: `{client: Dataset}`, or a partitioner of flwr-datasets with its data.

        `inputs` and `target` name columns (several input columns: "age,dose"). A DatasetDict per client gives its own
        splits. Pictures become (channels, height, width) in [0, 1]. `options` are those of `from_arrays`.
        """
        from fedkin.federation.hugging_face import arrays_of

        return cls.from_arrays(arrays_of(source, inputs, target), **options)

    @classmethod
    def from_datasets(
        cls,
        datasets: Mapping[str, Any],
        lazy: bool | Literal["auto"] = "auto",
        readers: int | None = None,
        **options: Any,
    ) -> Federation:
        """A federation from `{client name: torch Dataset}` whose items are (input, target) pairs.

        All items are read where memory holds them. Else, or with `lazy=True`, an item is read when a batch needs it, by
        its `__getitem__` in some processes (`readers`, 0: in this one); targets are read once, unless the data set lists
        them as `targets`. Items must be the same whenever they are read; random changes are for `train(augment=…)`.
        `options` are those of `from_arrays`.
        """
        return cls.from_arrays(read_datasets(datasets, lazy, readers), **options)

    # --- looking ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        shown = f"{len(self.task.classes)} classes" if self.task.classes else f"outputs {self.task.output_shape}"
        what = f"{self.task.kind} with {shown}"
        sizes = " / ".join(f"{len(s.y)} {n}" for n, s in self._splits().items())
        return f"Federation({len(self)} clients, {what}, inputs {self.task.input_shape}, {sizes} samples)"

    def _repr_html_(self) -> str:
        splits = self._splits()
        rows = ([name, *(int(s.sizes[k]) for s in splits.values())] for k, name in enumerate(self.names))
        return html_table(repr(self), ("client", *splits), rows, self.notes)

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
        if not self.task.classes:
            raise FedkinError(f"label counts need a classification task; this federation is a {self.task.kind} task")
        part = self._splits()[split]
        clients, classes = len(self), len(self.task.classes)
        first = np.repeat(np.arange(clients) * classes, part.sizes)
        return np.bincount(first + part.y, minlength=clients * classes).reshape(clients, classes)

    def class_counts(self) -> np.ndarray | None:
        """Training samples of each class (of multi-label tasks: with each column), (C,); None for regression."""
        return self.task.class_counts(self.train.y)

    def fingerprint(self) -> str:
        """A short hash of names and samples: a resumed run must see the same data."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=12)
        digest.update("\x1f".join(self.names).encode())
        for split in self._splits().values():
            for array in (split.offsets, split.y, *self._seen(split)):
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def _seen(self, split: Split) -> Iterable[np.ndarray]:
        """What the fingerprint sees of the inputs: all, but of those read item by item each client's first one."""
        if isinstance(split.stored, Unread) and split.stored.itemwise:
            return [split.inputs(split.offsets[:-1][split.sizes > 0])]
        return split.blocks()

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
            label_counts=self.label_counts() if self.task.classes else None,
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw who holds what: label counts per client, or sample counts for regression."""
        from fedkin.reports.figures import federation_figure

        return federation_figure(self, ax)


def retold(federation: Federation, **facts: Any) -> Federation:
    """The same clients and samples, which are not looked through again, with other facts: task, notes, source, …"""
    other = copy(federation)
    vars(other).update(facts)
    return other
