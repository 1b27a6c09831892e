"""Tables of the user's own (CSV or Parquet) as a federation: one column names the client, one the target.

Rows are split first; means, deviations, medians and categories are then fitted on the training rows of all clients
together, so nothing leaks from test rows. (In a real federation these are the pooled moments that clients would send.)
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedkin.errors import FedkinError, unknown
from fedkin.federation import Federation, Holdout
from fedkin.task import Kind

if TYPE_CHECKING:
    import pandas as pd

Missing = Literal["impute", "error"]
ABSENT = "(missing)"


@dataclass(frozen=True)
class InputColumn:
    """One input column as fitted on training rows: a number (centre, scale, fill) or categories (one input each)."""

    name: str
    centre: float = 0.0
    scale: float = 1.0
    fill: float = 0.0
    categories: tuple[str, ...] | None = None

    @classmethod
    def described(cls, entry: Mapping[str, Any]) -> InputColumn:
        """From its fields, as `federation.inputs` and a saved run hold them."""
        categories = entry.get("categories")
        return cls(**{**entry, "categories": None if categories is None else tuple(categories)})

    @classmethod
    def fit(cls, values: pd.Series, standardise: bool = True) -> InputColumn:
        if _is_number(values):
            known = values.dropna().to_numpy(dtype=np.float64)
            fill = float(np.median(known))
            filled = values.to_numpy(dtype=np.float64, na_value=fill)
            deviation = float(filled.std())
            if not standardise:
                return cls(str(values.name), fill=fill)
            return cls(str(values.name), float(filled.mean()), deviation if deviation > 0 else 1.0, fill)
        return cls(str(values.name), categories=tuple(sorted(set(_as_text(values)))))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs this column becomes."""
        return (self.name,) if self.categories is None else tuple(f"{self.name}={c}" for c in self.categories)

    def encode(self, values: pd.Series) -> np.ndarray:
        """(n, inputs): standardised numbers, or one-hot rows (all zeros for a category not seen in training)."""
        if self.categories is None:
            numbers = values.to_numpy(dtype=np.float64, na_value=self.fill)
            return ((numbers - self.centre) / self.scale).astype(np.float32)[:, None]
        text = np.asarray(_as_text(values), dtype=object)
        return (text[:, None] == np.asarray(self.categories, dtype=object)[None, :]).astype(np.float32)


def _is_number(values: pd.Series) -> bool:
    from pandas.api.types import is_numeric_dtype

    return bool(is_numeric_dtype(values))


def _as_text(values: pd.Series) -> list[str]:
    return [ABSENT if absent else str(value) for value, absent in zip(values, values.isna())]


def read_table(path: str | os.PathLike[str], text: Sequence[str] = ()) -> pd.DataFrame:
    """A CSV (.csv, .tsv, also compressed) or Parquet (.parquet) file as a data frame, types inferred.

    Columns named in `text` are kept as they are written: "01" and "1" are two clients.
    """
    import pandas as pd

    file = Path(path)
    if not file.is_file():
        raise FedkinError(f"{file} does not exist; give the path of a CSV or Parquet file")
    try:
        if file.suffix in (".parquet", ".pq"):
            return pd.read_parquet(file)
        as_written: dict[Hashable, Any] = dict.fromkeys(text, str)
        return pd.read_csv(file, sep="\t" if ".tsv" in file.suffixes else ",", dtype=as_written, low_memory=False)
    except ImportError:
        raise FedkinError(f"{file}: reading Parquet needs pyarrow; install it with: pip install pyarrow") from None
    except Exception as problem:  # a damaged file makes the libraries that read it raise anything at all
        first = str(problem).strip().split("\n")[0]
        raise FedkinError(f"{file} cannot be read as a table ({first}); is it CSV or Parquet?") from problem


def from_csv(path: str | os.PathLike[str], client: str, target: str, **options: Any) -> Federation:
    """A federation from a CSV or Parquet file; `options` are those of `from_table`."""
    federation = from_table(read_table(path, text=[client]), client, target, **options)
    source = {"name": "csv", "path": str(Path(path).resolve()), "client": client, "target": target, **options}
    return replace(federation, source=source)


def from_table(
    frame: pd.DataFrame,
    client: str,
    target: str,
    task: Kind | None = None,
    missing: Missing = "impute",
    standardise: bool = True,
    drop: Sequence[str] = (),
    max_categories: int = 100,
    test_fraction: float = 0.25,
    validation_fraction: float = 0.0,
    classes: Sequence[Hashable] | None = None,
    seed: int = 0,
) -> Federation:
    """A federation from a raw data frame.

    Numeric columns are standardised (mean 0, deviation 1 over training rows), text and boolean columns become one input
    per category seen in training. Missing numbers take the training median, missing texts are a category of their own;
    counts are in `federation.notes`. With missing="error" they are refused. `drop` names columns to leave out.
    """
    for role, column in (("client column", client), ("target column", target), *(("column", c) for c in drop)):
        if column not in frame.columns:
            raise unknown(role, column, list(frame.columns))
    if client == target:
        raise FedkinError(f"{client!r} is both client and target column; name two different ones")
    if missing not in ("impute", "error"):
        raise unknown("missing", missing, ["impute", "error"])
    for role, column in (("client", client), ("target", target)):
        empty = int(frame[column].isna().sum())
        if empty:
            raise FedkinError(f"{role} column {column!r} has {empty} empty cells; drop these rows or fill them in")
    if not len(frame):
        raise FedkinError("the table has no rows; it needs some for every client")
    if len(set(map(str, frame.columns))) < len(frame.columns):
        raise FedkinError("two columns of the table have the same name; rename one")
    targets = frame[target].to_numpy()
    kind = task or ("regression" if targets.dtype.kind == "f" else "classification")
    labels = np.unique(targets.astype(str), return_inverse=True)[1] if kind == "classification" else None
    holdout = Holdout(test_fraction, validation_fraction, seed)
    rows: dict[str, dict[str, np.ndarray]] = {}
    for name, own in groups(frame[client]).items():
        index = holdout.indices(name, len(own), None if labels is None else labels[own])
        rows[name] = {part: np.asarray(own)[index[part]] for part in index}
    inputs = frame.drop(columns=[client, target, *drop])
    training = np.sort(np.concatenate([own["train"] for own in rows.values()]))
    columns, notes = _fit(inputs, training, missing, standardise, max_categories)
    x = np.concatenate([column.encode(inputs[column.name]) for column in columns], axis=1)
    federation = Federation.from_arrays(
        {name: {part: (x[own], targets[own]) for part, own in parts.items()} for name, parts in rows.items()},
        task=kind,
        classes=classes,
        notes=tuple(notes),
    )
    return replace(federation, inputs=tuple(asdict(column) for column in columns))


def groups(clients: pd.Series) -> dict[str, np.ndarray]:
    """The rows of every client, by name; names that are all numbers are in the order of those."""
    found = clients.groupby(clients, sort=False).indices
    names: dict[str, Any] = {}
    for value in found:
        if str(value) in names:
            raise FedkinError(f"clients {names[str(value)]!r} and {value!r} have the same name as text; rename one")
        names[str(value)] = value
    try:
        order = sorted(names, key=lambda name: (float(name), name))
    except ValueError:
        order = sorted(names)
    return {name: np.asarray(found[names[name]]) for name in order}


def _fit(
    inputs: pd.DataFrame, training: np.ndarray, missing: Missing, standardise: bool, max_categories: int
) -> tuple[list[InputColumn], list[str]]:
    """Fit every column on the training rows, and say what was missing or new."""
    columns, notes = [], []
    inputs.columns = inputs.columns.map(str)
    for name in inputs.columns:
        values = inputs[name]
        if values.dtype.kind in "mM":
            raise FedkinError(f"column {name!r} holds dates; turn them into numbers, or drop the column")
        if values.dtype.kind == "b":
            values = inputs[name] = values.astype("int8")
        if values.dtype.kind == "f" and np.isinf(values.to_numpy()).any():
            raise FedkinError(f"column {name!r} holds infinite numbers; drop or replace them")
        absent = int(values.isna().sum())
        if absent and missing == "error":
            raise FedkinError(f'column {name!r} has {absent} missing values; fill them in, or use missing="impute"')
        train = values.iloc[training]
        if train.isna().all():
            notes.append(f"column {name!r} is empty in all training rows and is left out")
            continue
        column = InputColumn.fit(train, standardise)
        if column.categories is not None and len(column.categories) > max_categories:
            raise FedkinError(
                f"column {name!r} holds {len(column.categories)} different texts, more than {max_categories}; "
                "drop it (an identifier?) or raise max_categories"
            )
        if absent:
            how = f"the training median {column.fill:g}" if column.categories is None else "a category of their own"
            notes.append(f"column {name!r}: {absent} missing values, replaced by {how}")
        if column.categories is not None:
            new = sorted(set(_as_text(values)) - set(column.categories))
            if new:
                notes.append(f"column {name!r}: {len(new)} categories not in training rows, coded as zeros: {new[:3]}")
        columns.append(column)
    if not columns:
        raise FedkinError("no input columns are left beside client and target; the table needs at least one")
    return columns, notes
