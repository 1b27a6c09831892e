"""A site's raw CSV: what it tells of its columns, if it consents, and how the agreed scheme makes inputs of them.

With `prepare = true` in federation.toml sites give tables as they are: numbers with gaps, texts. A site tells of each column whether it
holds numbers, dates or texts and, as `columns` in its [policy] allows, the range of its numbers and dates and the list of its texts ("ranges"), or
what of them many rows share, with noise ("noisy"). From that the server agrees on one scheme (`scheme.py`), and every site
encodes its own rows by it.

Noise: a text, or a power of two that numbers lie near, is told if n + Lap(2/ε) > 1 + 2 ln(2/δ)/ε rows have it, which is
(ε, δ)-differentially private for one row (stability-based histograms: Korolova et al. 2009, Karwa and Vadhan 2018); columns share half
of the site's budget evenly. The noisy answer is kept and told again for the same data, so that asking twice costs once.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtr

from fedkin.data.tabular import read_table
from fedkin.engines.flower.policy import Policy
from fedkin.errors import FedkinError, unknown
from fedkin.federation.columns import InputColumn, as_dates, as_text, cleaned, date_part, is_number, trimmed
from fedkin.federation.faults import fault_of, refuse_all
from fedkin.federation.table import tidy
from fedkin.files import read_json, write_json
from fedkin.privacy.noise import secret_normal
from fedkin.task import Scale

if TYPE_CHECKING:
    import pandas as pd

    from fedkin.engines.flower.site_file import ClientFile

MOST_TEXTS = 100
"""Different texts that a column may hold."""
TOLD_COLUMNS = "columns.json"
"""What was told with noise, in the site's state: client → {"data": hash, "columns": …}."""


def raw_columns(client: ClientFile, folder: Path) -> tuple[dict[str, pd.Series], np.ndarray]:
    """The cleaned input columns of a client's table by name, and its targets (n,); all faults at once."""
    try:
        frame = tidy(read_table(folder / client.data, (), client.sep, client.encoding))
    except OSError as problem:
        raise FedkinError(f"{client.data} cannot be read: {problem.strerror or problem}") from problem
    asked = (("target", client.target), *(("drop", c) for c in client.drop), *(("date", c) for c in client.date))
    refuse_all(
        f"{client.data} has no column {c!r} ({role}); "
        + str(unknown("column", c, frame.columns)).removeprefix(f"unknown column {c!r}; ")
        for role, c in asked
        if c not in frame.columns
    )
    sentinels = tuple(map(str, client.missing))
    answers = cleaned(frame[client.target], sentinels, client.decimal)
    inputs = {
        str(name): trimmed(frame[name], sentinels)
        if name in client.date
        else cleaned(frame[name], sentinels, client.decimal)
        for name in frame.columns
        if name not in (client.target, *client.drop)
    }
    faults = [f for name, values in inputs.items() if (f := fault_of(values, False, name in client.date, MOST_TEXTS))]
    if absent := int(answers.isna().sum()):
        faults.append(f"the target {client.target!r} has {absent} empty cells; drop these rows or fill them in")
    if not len(frame) or not inputs:
        faults.append(f"{client.data} has no {'rows' if not len(frame) else 'input columns'}")
    refuse_all(faults)
    for name in client.date:
        if name in inputs:
            inputs[name] = as_dates(inputs[name], None)
    return inputs, answers.to_numpy()


def kind_of(values: pd.Series) -> str:
    """number, text or date; empty: nobody can tell."""
    if values.dtype.kind == "M":
        return "empty" if values.isna().all() else "date"
    return "empty" if values.isna().all() else "number" if is_number(values) else "text"


def told_of_table(client: ClientFile, folder: Path, policy: Policy, state: Path) -> dict[str, Any]:
    """What a site says of a raw table at the start: columns and, by its policy, their ranges and texts."""
    inputs, y = raw_columns(client, folder)
    labels = y.dtype.kind in "biuUSO"
    told: dict[str, Any] = {
        "name": client.name,
        "input_shape": [len(inputs)],
        "output_shape": [],
        "columns": list(inputs),
        "model": client.model,
        "missing": [str(cell) for cell in client.missing],
        "table": [{"holds": kind_of(values)} for values in inputs.values()],
        **({"labels": np.unique(y).tolist()} if labels else {}),
    }
    policy.check_columns()
    if policy.columns == "ranges":
        return told | _filled(told, inputs, y, labels, exact_range, lambda texts: set(texts))
    return told | _with_noise(told, client.name, inputs, y, labels, policy, folder, state)


def _filled(
    told: Mapping[str, Any],
    inputs: Mapping[str, pd.Series],
    y: np.ndarray,
    labels: bool,
    spread: Callable[[np.ndarray], tuple[float, float] | None],
    seen: Callable[[Sequence[str]], set[str]],
) -> dict[str, Any]:
    """The ranges (by `spread`) and texts (by `seen`) of all columns, and the range of targets that are numbers."""
    table = []
    for entry, values in zip(told["table"], inputs.values()):
        if entry["holds"] == "text":
            entry = {**entry, "texts": sorted(seen(as_text(values)))}
        elif entry["holds"] != "empty":
            dated = entry["holds"] == "date"
            found = spread(date_part(values, "days") if dated else values.to_numpy(dtype=float, na_value=np.nan))
            entry = entry if found is None else {**entry, "range": list(found)}
        table.append(entry)
    target = None if labels else spread(y.astype(float))
    return {"table": table, **({} if target is None else {"target_range": list(target)})}


def exact_range(numbers: np.ndarray) -> tuple[float, float] | None:
    """The smallest and the largest number."""
    finite = numbers[np.isfinite(numbers)]
    return (float(finite.min()), float(finite.max())) if len(finite) else None


# --- with noise -------------------------------------------------------------------------------------------------------


def _with_noise(
    told: Mapping[str, Any],
    name: str,
    inputs: Mapping[str, pd.Series],
    y: np.ndarray,
    labels: bool,
    policy: Policy,
    folder: Path,
    state: Path,
) -> dict[str, Any]:
    digest = hashlib.blake2b(digest_size=16)
    for values in inputs.values():
        digest.update("\x1f".join(map(str, values)).encode())
    digest.update("\x1f".join(map(str, y)).encode())
    kept = read_json(state / TOLD_COLUMNS) if (state / TOLD_COLUMNS).exists() else {}
    if name in kept and kept[name]["data"] == digest.hexdigest():
        return dict(kept[name]["columns"])
    share = len(inputs) + (not labels)
    epsilon, delta = policy.spend_on_columns(name, folder)
    many = common(epsilon / share, delta / share)
    found = _filled(told, inputs, y, labels, lambda numbers: noisy_range(numbers, many), many)
    write_json(state / TOLD_COLUMNS, {**kept, name: {"data": digest.hexdigest(), "columns": found}})
    return found


def common(epsilon: float, delta: float) -> Callable[[Sequence[Any]], set[Any]]:
    """A function that tells the values which many cells have, (ε, δ)-differentially private for one row."""
    least = 1 + 2 * math.log(2 / delta) / epsilon

    def many(cells: Sequence[Any]) -> set[Any]:
        counts = Counter(cells)
        chance = ndtr(secret_normal((len(counts),))) - 0.5
        noise = -2 / epsilon * np.sign(chance) * np.log1p(-2 * np.abs(chance))
        return {value for (value, count), extra in zip(counts.items(), noise) if count + extra > least}

    return many


def noisy_range(numbers: np.ndarray, many: Callable[[Sequence[Any]], set[Any]]) -> tuple[float, float] | None:
    """From the lowest to the highest of the intervals ±[2^k, 2^(k+1)) that many numbers lie in."""
    finite = numbers[np.isfinite(numbers)]
    powers = np.floor(np.log2(np.clip(np.abs(finite), 2.0**-30, 2.0**60))).astype(int)
    signs = np.where(finite < 0, -1, 1)
    found = many(list(zip(signs.tolist(), powers.tolist())))
    ends = [sign * 2.0 ** (power + up) for sign, power in found for up in (0, 1)]
    return (min(ends), max(ends)) if ends else None


# --- by the agreed scheme ---------------------------------------------------------------------------------------------


def encoded_table(
    client: ClientFile, folder: Path, scheme: Sequence[Mapping[str, Any]], scale: Scale | None
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, M) and targets (n,) of a raw table, by the scheme that all sites agreed on."""
    inputs, y = raw_columns(client, folder)
    columns = [InputColumn.described(entry) for entry in scheme]
    refuse_all(f"{client.data} has no column {c.name!r}, which others have" for c in columns if c.name not in inputs)
    x = np.concatenate([column.encode(inputs[column.name]) for column in columns], axis=1)
    return x, y if scale is None else scale.shrink(y)
