"""Newcomers from a table: prepared as the run's own clients were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedkin.errors import FedkinError, unknown
from fedkin.federation import Federation
from fedkin.result import Result


def read_newcomers(
    result: Result, path: str | Path, client: str | None = None, target: str | None = None, test_fraction: float = 0.25
) -> Federation:
    """The clients of a CSV or Parquet file with the columns, categories and classes of the run.

    `client` and `target` name columns; by default those of the run's own table.
    """
    from fedkin.data.tabular import read_table
    from fedkin.federation.columns import cleaned, trimmed
    from fedkin.federation.notices import target_kind
    from fedkin.federation.table import groups, tidy
    from fedkin.result.predict import inputs_of

    source = result.config["data"]
    client, target = client or source.get("client"), target or source.get("target")
    if client is None or target is None:
        raise FedkinError("the run was not trained on a table; name the columns with --client and --target")
    texts = [str(entry["name"]) for entry in result.facts.get("inputs") or () if entry.get("categories") is not None]
    frame = tidy(read_table(path, [client, *texts], source.get("sep"), source.get("encoding")))
    for column in (client, target):
        if column not in frame.columns:
            raise unknown(f"column in {path}", column, list(frame.columns))
    names = trimmed(frame[client])
    answers = cleaned(frame[target], tuple(map(str, source.get("missing_values", ()))), source.get("decimal", "."))
    if names.isna().any() or answers.isna().any():
        raise FedkinError(f"{path}: a row has no {client} or no {target}; fill it in or drop the row")
    x = inputs_of(result, frame.drop(columns=[client, target]) if not result.facts.get("inputs") else frame)
    y = answers.to_numpy()
    if result.task.classes:
        y = target_kind(answers, target, "classification")[1]
        codes = {str(label): label for label in result.task.classes}
        strange = [value for value in y if str(value) not in codes]
        if strange:
            raise unknown(f"class in column {target!r}", strange[0], result.task.classes)
        y = np.array([codes[str(value)] for value in y], dtype=object)
        y = np.array(y.tolist())
    scale = result.task.scale
    y = y if scale is None else scale.shrink(y)
    clients = {name: (x[own], y[own]) for name, own in groups(names).items()}
    classes = list(result.task.classes) if result.task.classes else None
    made = Federation.from_arrays(clients, task=result.task.kind, classes=classes, test_fraction=test_fraction)
    made = made if scale is None else replace(made, task=replace(result.task, loss=made.task.loss))
    of = {**source, "path": str(Path(path).resolve()), "client": client, "target": target}
    return replace(made, inputs=tuple(result.facts.get("inputs") or ()), source=of)
