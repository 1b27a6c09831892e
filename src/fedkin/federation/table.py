"""A raw table as a federation: one column names the client, one the target, the others become inputs.

Rows are split first; means, deviations, medians and categories are then fitted on the training rows of all clients
together, so nothing leaks from test rows. (In a real federation these are the pooled moments that clients would send.)
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np

from fedkin.errors import FedkinError, unknown
from fedkin.federation import notices
from fedkin.federation.columns import DATE_PARTS, InputColumn, as_text, cleaned, date_formats, trimmed
from fedkin.federation.faults import fault_of, no_cells, quoted, refuse_all
from fedkin.federation.federation import About, Federation, retold
from fedkin.federation.split import Holdout
from fedkin.task import Kind, Scale
from fedkin.task.task import check_column_kind

if TYPE_CHECKING:
    import pandas as pd

Missing = Literal["impute", "error"]
ColumnNames = str | Sequence[str]


def from_table(
    frame: Any,
    client: str,
    target: str,
    task: Kind | Literal["counts"] | None = None,
    missing: Missing = "impute",
    standardise: bool = True,
    drop: ColumnNames = (),
    keep: ColumnNames | None = None,
    id: str | None = None,
    date: ColumnNames = (),
    missing_values: Any = (),
    decimal: str = ".",
    max_categories: int = 100,
    test_fraction: float = 0.25,
    validation_fraction: float = 0.0,
    classes: Sequence[Hashable] | None = None,
    seed: int = 0,
    public: Mapping[str, np.ndarray] | np.ndarray | None = None,
    **about: Unpack[About],
) -> Federation:
    """A federation from a raw data frame (pandas, polars, or anything with `to_pandas()`).

    Numeric columns are standardised (mean 0, deviation 1 over training rows), text and boolean columns become one input
    per category seen in training. `date` names columns that hold dates; each becomes year, month, weekday and days since.
    Missing numbers take the training median, missing texts are a category of their own; with missing="error" they are
    refused. `missing_values` are cells that stand for missing ones (-999), `decimal` is what stands before the decimals of
    numbers written as text. `drop` leaves columns out, `keep` leaves out all
    others; `id` names a column that tells rows apart and is no input.
    Numbers as targets are standardised, too; errors and predictions are told in the target's own units (`task.scale`).
    What a reader should know of the table is in `federation.notes`. `public` (inputs as prepared) and `about` are those of
    `Federation.from_arrays`.
    """
    frame, client, target = tidy(frame), str(client).strip(), str(target).strip()
    if task is not None:
        check_column_kind(task)
    if missing not in ("impute", "error"):
        raise unknown("missing", missing, ["impute", "error"])
    if not isinstance(decimal, str) or len(decimal) != 1 or decimal.isalnum():
        raise FedkinError(f"decimal is {decimal!r}; it must be one mark, such as ','")
    written: dict[str, Any] = {"sentinels": tuple(map(str, as_list(missing_values))), "decimal": decimal}
    date = _names(date)
    wanted = _inputs(frame, client, target, id, _names(drop), None if keep is None else _names(keep), date)
    clients, answers, inputs = _cells(frame, client, target, wanted, date, written)
    refuse_all(
        fault
        for name, values in inputs.items()
        if (fault := fault_of(values, missing == "error", name in date, max_categories))
    )
    if classes is None and len(set(as_text(answers))) == 1:
        raise FedkinError(
            f"target column {target!r} holds {as_text(answers)[0]!r} in every row; there is nothing to predict"
        )
    kind, targets, notes = notices.target_kind(answers, target, task)
    labels = np.unique(targets.astype(str), return_inverse=True)[1] if kind == "classification" else None
    rows = _divided(clients, labels, Holdout(test_fraction, validation_fraction, seed))
    training = np.sort(np.concatenate([own["train"] for own in rows.values()]))
    columns, said = _fit(inputs, training, standardise, date, written)
    x = np.concatenate([column.encode(inputs[column.name]) for column in columns], axis=1)
    scale = Scale.fit(targets[training]) if kind == "regression" and standardise else None
    targets = targets if scale is None else scale.shrink(targets)
    federation = Federation.from_arrays(
        {name: {part: (x[own], targets[own]) for part, own in parts.items()} for name, parts in rows.items()},
        task=kind,
        classes=classes,
        public=public,
        **about,
    )
    said += notices.of_inputs({n: v.iloc[training] for n, v in inputs.items()}, date)
    notes = (*federation.notes, *notes, *said, *notices.of_clients(federation, target))
    return retold(
        federation,
        task=federation.task.in_units(scale),
        notes=notes,
        inputs=tuple(asdict(column) for column in columns),
    )


def _inputs(
    frame: pd.DataFrame,
    client: str,
    target: str,
    id: str | None,
    drop: Sequence[str],
    keep: Sequence[str] | None,
    date: Sequence[str],
) -> list[str]:
    """The names of the columns that become inputs; those that the table lacks are refused, all at once."""
    apart = {"client column": [client], "target column": [target], "id column": [] if id is None else [id.strip()]}
    asked = apart | {"column": [*drop, *(keep or ())], "date column": date}
    refuse_all(
        str(unknown(role, name, list(frame.columns)))
        for role, names in asked.items()
        for name in names
        if name not in frame.columns
    )
    if client == target:
        raise FedkinError(f"{client!r} is both client and target column; name two different ones")
    left = {name for names in apart.values() for name in names} | set(drop)
    return [name for name in frame.columns if name not in left and (keep is None or name in keep)]


def _cells(
    frame: pd.DataFrame,
    client: str,
    target: str,
    wanted: Sequence[str],
    date: Sequence[str],
    written: Mapping[str, Any],
) -> tuple[pd.Series, pd.Series, dict[str, pd.Series]]:
    """The cleaned cells of the client column, the target column and the inputs; `written` says how cells are written."""
    if not len(frame):
        raise FedkinError("the table has no rows; it needs some for every client")
    refuse_all(fault for name in (client, target, *wanted) if (fault := no_cells(frame[name])))
    clients, answers = trimmed(frame[client]), cleaned(frame[target], **written)
    refuse_all(
        [f"{role} column {c!r} has {n} empty cells; drop these rows or fill them in"
         for role, c, values in (("client", client, clients), ("target", target, answers))
         if (n := int(values.isna().sum()))]
    )  # fmt: skip
    sentinels = written["sentinels"]
    inputs = {n: trimmed(frame[n], sentinels) if n in date else cleaned(frame[n], **written) for n in wanted}
    return clients, answers, inputs


def _divided(clients: pd.Series, labels: np.ndarray | None, holdout: Holdout) -> dict[str, dict[str, np.ndarray]]:
    """The rows of every client by part: client → {part: rows}, the classes `labels` (n,) spread over the parts.

    A part that has none is left out.
    """
    rows: dict[str, dict[str, np.ndarray]] = {}
    for name, own in groups(clients).items():
        index = holdout.indices(name, len(own), None if labels is None else labels[own])
        rows[name] = {part: own[places] for part, places in index.items() if len(places)}
    return rows


def tidy(frame: Any) -> pd.DataFrame:
    """A pandas frame with an index of its own and trimmed column names, each once; the caller's is left alone."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        frame = frame.collect() if hasattr(frame, "collect") else frame  # polars' lazy frames
        if not hasattr(frame, "to_pandas"):
            raise FedkinError(f"the table is a {type(frame).__name__}; give a pandas or polars data frame")
        try:
            frame = frame.to_pandas()
        except ImportError:
            raise FedkinError("this data frame needs pyarrow; install it with: pip install pyarrow") from None
    names = [str(name).strip() for name in frame.columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise FedkinError(f"two columns of the table have the same name ({', '.join(map(repr, twice))}); rename one")
    return frame.set_axis(names, axis=1).reset_index(drop=True)


def as_list(given: Any) -> list[Any]:
    """One value or several, as a list."""
    return [given] if isinstance(given, str | int | float) else list(given)


def _names(given: ColumnNames) -> list[str]:
    return [str(name).strip() for name in as_list(given)]


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
    inputs: dict[str, pd.Series],
    training: np.ndarray,
    standardise: bool,
    dates: Sequence[str],
    written: Mapping[str, Any],
) -> tuple[list[InputColumn], list[str]]:
    """Fit every column on the training rows, and say what was missing or new."""
    columns: list[InputColumn] = []
    notes = []
    for name, values in inputs.items():
        train, absent = values.iloc[training], int(values.isna().sum())
        if train.isna().all():
            notes.append(f"column {name!r} is empty in all training rows and is left out")
            continue
        kind: dict[str, Any] = dict(written)
        if name in dates:
            formats = date_formats(values)
            kind["format"] = formats[0] if formats else None
            if len(formats) > 1 and "/%Y" in formats[0] + formats[1]:
                notes.append(f"column {name!r}: its dates are read as {formats[0]}, but {formats[1]} would fit, too")
            fitted = [InputColumn.fit(train, standardise, part=part, **kind) for part in DATE_PARTS]
        else:
            fitted = [InputColumn.fit(train, standardise, **kind)]
        if absent:
            notes.append(f"column {name!r}: {absent} missing values, replaced by {_replaced(fitted)}")
        categories = fitted[0].categories
        new = [] if categories is None else sorted(set(as_text(values)) - set(categories))
        if new:
            notes.append(f"column {name!r}: {len(new)} categories not in training rows, coded as zeros: {quoted(new)}")
        columns += fitted
    if not columns:
        raise FedkinError("no input columns are left beside client and target; the table needs at least one")
    return columns, notes


def _replaced(fitted: Sequence[InputColumn]) -> str:
    if fitted[0].categories is not None:
        return "a category of their own"
    return f"the training median {fitted[0].fill:g}" if fitted[0].part is None else "the training medians"
