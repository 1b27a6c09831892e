"""Predictions of one client's deployed model for a table of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from fedkin import plugins
from fedkin.errors import FedkinError, unknown
from fedkin.result import Result, load
from fedkin.task import Task

if TYPE_CHECKING:
    import pandas as pd

    from fedkin.data.tabular import InputColumn

BATCH = 4096


def predict_file(run: str | Path, client: str, table: str | Path) -> pd.DataFrame:
    """Predictions for a CSV or Parquet file by the model that `client` deploys in a saved run."""
    from fedkin.data.tabular import read_table

    result = load(run)
    named = str(result.config["model"]["name"])
    if plugins.is_path(named):  # whoever asks for predictions wants the model's code to run
        result = load(run, named)
    return predict(result, client, read_table(table))


def predict(result: Result, client: str, frame: pd.DataFrame) -> pd.DataFrame:
    """One line per row of `frame`: `prediction` and, for classes, the `probability` the model gives it.

    A run trained on a table takes the same columns, in any order (others are ignored), and prepares them as in training.
    For other runs the columns are the numbers of one input, in order.
    """
    import pandas as pd

    if client not in result.names:
        raise unknown("client", client, result.names)
    module = result.models[client]
    if not isinstance(module, nn.Module):
        raise FedkinError(f"client {client!r} deploys a {type(module).__name__}; call its own predict()")
    inputs = inputs_of(result, frame)
    dtype = torch.int64 if result.task.tokens else next((p.dtype for p in module.parameters()), torch.float32)
    batches = torch.tensor(inputs, dtype=dtype).split(BATCH)
    with torch.no_grad():
        outputs = torch.cat([module(batch).reshape(len(batch), -1) for batch in batches]).double()
    if result.task.one_label:
        chance, code = torch.softmax(outputs, dim=1).max(dim=1)
        labels = [result.task.classes[k] for k in code.tolist()]
        return pd.DataFrame({"prediction": labels, "probability": chance.numpy()}, index=frame.index)
    values = result.task.predictions(outputs).numpy()
    columns = ["prediction"] if values.shape[1] == 1 else [f"prediction_{k}" for k in range(values.shape[1])]
    return pd.DataFrame(values, columns=columns, index=frame.index)


def inputs_of(result: Result, frame: pd.DataFrame) -> np.ndarray:
    """The model's inputs, (n, *input shape)."""
    if not len(frame):
        raise FedkinError("the table has no rows to predict")
    described = result.facts.get("inputs")
    if described:
        from fedkin.data.tabular import InputColumn

        columns = [InputColumn.described(entry) for entry in described]
        names = [str(name) for name in frame.columns]
        for column in columns:
            if column.name not in names:
                raise unknown("input column, which the run was trained with,", column.name, names)
        named = frame.set_axis(names, axis=1)
        return np.concatenate([_encoded(column, named[column.name]) for column in columns], axis=1)
    return _numbers(frame, result.task)


def _encoded(column: InputColumn, values: pd.Series) -> np.ndarray:
    try:
        return column.encode(values)
    except (TypeError, ValueError):
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
