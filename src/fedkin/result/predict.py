"""Predictions of the clients' deployed models for a table of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from fedkin import plugins
from fedkin.errors import FedkinError, unknown
from fedkin.federation.columns import InputColumn, as_text
from fedkin.federation.faults import refuse_all
from fedkin.models.adapters.scikit import Classifier
from fedkin.result import Result, load
from fedkin.task import Task

if TYPE_CHECKING:
    import pandas as pd

BATCH = 4096


def predict_file(
    run: str | Path,
    client: str | None,
    table: str | Path,
    client_column: str | None = None,
    id: str | None = None,
    sep: str | None = None,
    encoding: str | None = None,
) -> pd.DataFrame:
    """Predictions for a CSV, Excel or Parquet file by models of a saved run; see `predict`."""
    from fedkin.data.tabular import read_table

    result = load(run)
    named = str(result.config["model"]["name"])
    if plugins.is_path(named):  # whoever asks for predictions wants the model's code to run
        result = load(run, named)
    source = result.config["data"]
    texts = [str(entry["name"]) for entry in result.facts.get("inputs") or () if entry.get("categories") is not None]
    frame = read_table(
        table, [*texts, client_column or "", id or ""], sep or source.get("sep"), encoding or source.get("encoding")
    )
    own = source.get("id")
    return predict(result, client, frame, client_column, id or (own if own in frame.columns else None))


def predict(
    result: Result, client: str | None, frame: Any, client_column: str | None = None, id: str | None = None
) -> pd.DataFrame:
    """One line per row of `frame`: `prediction` and, for classes, the `probability` of that one and `probability_CLASS` of each.

    `client` names whose model speaks; with `client_column` every row is scored by the model of the client it names. `id`
    names a column to keep in front. A run trained on a table takes the same columns, in any order (others are ignored), and
    prepares them as in training; its numbers come in the units of the target. For other runs the columns are the numbers of
    one input, in order.
    """
    import pandas as pd

    from fedkin.federation.table import tidy

    if (client is None) == (client_column is None):
        raise FedkinError(
            "whose model? name one client (--client), or the column that names each row's (--client-column)"
        )
    index = getattr(frame, "index", None)
    frame = tidy(frame)
    for role, column in (("client column", client_column), ("id column", id)):
        if column is not None and column not in frame.columns:
            raise unknown(role, column, list(frame.columns))
    apart = [column for column in (client_column, id) if column is not None]
    inputs = inputs_of(result, frame if result.facts.get("inputs") else frame.drop(columns=apart))
    if client_column is None:
        found = _of_client(result, str(client), inputs)
    else:
        whose = as_text(frame[client_column])
        _refuse_strangers(whose, result.names, client_column)
        rows = {name: np.flatnonzero(np.asarray(whose, dtype=object) == name) for name in dict.fromkeys(whose)}
        parts = [_of_client(result, name, inputs[own]).set_axis(own, axis=0) for name, own in rows.items()]
        found = pd.concat(parts).sort_index()
    kept = frame[list(dict.fromkeys([*([id] if id else []), *([client_column] if client_column else [])]))]
    whole = pd.concat([kept, found], axis=1)
    return whole if not isinstance(index, pd.Index) else whole.set_axis(index, axis=0)


def _refuse_strangers(whose: Sequence[str], names: Sequence[str], column: str) -> None:
    strange = sorted(set(whose) - set(names))
    if strange:
        more = f" (and {len(strange) - 1} more in {column!r})" if len(strange) > 1 else ""
        raise FedkinError(f"{unknown('client', strange[0], names)}{more}")


def _of_client(result: Result, client: str, inputs: np.ndarray) -> pd.DataFrame:
    """What one client's model says about prepared inputs."""
    if client not in result.names:
        raise unknown("client", client, result.names)
    module = result.models[client]
    if not isinstance(module, nn.Module):
        return _said(result, _of_estimator(result, client, module, inputs), linked=True)
    dtype = torch.int64 if result.task.tokens else next((p.dtype for p in module.parameters()), torch.float32)
    batches = torch.tensor(inputs, dtype=dtype).split(BATCH)
    with torch.no_grad():
        outputs = torch.cat([module(batch).reshape(len(batch), -1) for batch in batches]).double()
    return _said(result, outputs)


def _of_estimator(result: Result, client: str, fitted: Any, inputs: np.ndarray) -> torch.Tensor:
    """What a fitted estimator says: probabilities of classes, (n, C), or numbers."""
    if not hasattr(fitted, "predict"):
        raise FedkinError(f"client {client!r} deploys a {type(fitted).__name__}, which has no predict()")
    flat = inputs.reshape(len(inputs), -1)
    if not result.task.classes:
        found = fitted.predict_proba(flat) if result.task.estimator == "classifier" else fitted.predict(flat)
        return torch.from_numpy(np.asarray(found, dtype=np.float64).reshape(len(flat), -1))
    counts = result.label_counts
    seen = np.arange(len(result.task.classes))
    if counts is not None:  # a client with one class predicts it, without a fit
        seen = np.flatnonzero(counts[result.names.index(client)])
    return torch.from_numpy(Classifier(fitted, seen, len(result.task.classes)).chances(flat))


def _said(result: Result, outputs: torch.Tensor, linked: bool = False) -> pd.DataFrame:
    """Outputs (n, C) of a model in words and units; `linked`: they are probabilities, rates or numbers already."""
    import pandas as pd

    if result.task.classes:
        chances = outputs if linked else torch.softmax(outputs, dim=1)
        chance, code = chances.max(dim=1)
        labels = [result.task.classes[k] for k in code.tolist()]
        each = {f"probability_{label}": column.numpy() for label, column in zip(result.task.classes, chances.T)}
        return pd.DataFrame({"prediction": labels, "probability": chance.numpy(), **each})
    values = result.task.predictions(outputs).numpy()
    if linked:
        values = (outputs if result.task.scale is None else result.task.scale.told(outputs)).numpy()
    columns = ["prediction"] if values.shape[1] == 1 else [f"prediction_{k}" for k in range(values.shape[1])]
    return pd.DataFrame(values, columns=columns)


def inputs_of(result: Result, frame: pd.DataFrame) -> np.ndarray:
    """The model's inputs, (n, *input shape)."""
    if not len(frame):
        raise FedkinError("the table has no rows to predict")
    described = result.facts.get("inputs")
    if described:
        columns = [InputColumn.described(entry) for entry in described]
        names = [str(name).strip() for name in frame.columns]
        refuse_all(
            str(unknown("input column, which the run was trained with,", name, names))
            for name in dict.fromkeys(column.name for column in columns)
            if name not in names
        )
        named = frame.set_axis(names, axis=1)
        return np.concatenate([_encoded(column, named[column.name]) for column in columns], axis=1)
    return _numbers(frame, result.task)


def _encoded(column: InputColumn, values: pd.Series) -> np.ndarray:
    try:
        return column.encode(values)
    except (TypeError, ValueError):
        if column.part is not None:
            raise FedkinError(
                f"column {column.name!r} holds cells that are no dates as in training; mend them"
            ) from None
        raise FedkinError(
            f"column {column.name!r} was numeric in training but holds text here; mend its cells"
        ) from None


def _numbers(frame: pd.DataFrame, task: Task) -> np.ndarray:
    """A table of plain numbers, one column per entry of an input."""
    wanted = int(np.prod(task.input_shape, dtype=int))
    text = [str(name) for name in frame.columns if frame[name].dtype.kind not in "biuf"]
    if text:
        raise FedkinError(f"column {text[0]!r} is not numeric; this run takes {wanted} numbers per row")
    if frame.shape[1] != wanted:
        raise FedkinError(
            f"the table has {frame.shape[1]} columns; this run takes {wanted} numbers per row (inputs of shape "
            f"{task.input_shape}), without client and target"
        )
    values = frame.to_numpy(dtype=np.float64)
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise FedkinError(f"column {frame.columns[column]!r}, row {row + 1}: no finite number; fill it in")
    return values.reshape(-1, *task.input_shape)
