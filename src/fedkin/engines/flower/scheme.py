"""The scheme: from what sites tell of their columns, how all of them make inputs of their tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from fedkin.engines.flower.messages import Described
from fedkin.errors import FedkinError
from fedkin.federation.columns import DATE_PARTS, InputColumn
from fedkin.task import Scale

DEVIATIONS = 4
"""A range is taken for so many deviations: what some hundred numbers of a bell curve span, nearly."""
MOST_INPUTS = 20_000
DAYS_OF_A_YEAR = 365.25
"""Days of a year."""


def agreed_scheme(clients: Sequence[Described]) -> list[dict[str, Any]]:
    """How each column becomes inputs, as `Federation.inputs` has it: [] where nobody has a raw table.

    Numbers are centred in the middle of the range from the median of the clients' lowest to the median of their highest numbers, so that one
    client's odd cell moves little, and missing ones are put there; texts are all that anybody tells; what
    stands for a missing cell at one client does so everywhere.
    """
    tables = [client.table for client in clients if client.table is not None]
    if not tables:
        return []
    found, missing = [], tuple(sorted({cell for client in clients for cell in client.missing}))
    for k, name in enumerate(clients[0].columns or ()):
        if column_kind(clients, k) == "text":
            texts = sorted({text for table in tables for text in table[k].texts or ()})
            if not texts:
                raise FedkinError(
                    f"column {name!r}: no site tells its texts; put it in drop, or give columns = 'ranges'"
                )
            found.append(InputColumn(name, categories=tuple(texts), sentinels=missing))
            continue
        centre, deviation = _middle([table[k].range for table in tables])
        if column_kind(clients, k) == "date":
            found += _parts_of_date(name, centre, deviation, missing)
            continue
        found.append(InputColumn(name, centre, deviation, centre, sentinels=missing))
    if sum(len(column.inputs) for column in found) > MOST_INPUTS:
        raise FedkinError(f"the sites' texts make more than {MOST_INPUTS:,} inputs; put columns of many texts in drop")
    return [asdict(column) for column in found]


def _parts_of_date(name: str, centre: float, deviation: float, missing: tuple[str, ...]) -> list[InputColumn]:
    """A column of dates around a day since 1970: months and weekdays are spread evenly, years and days over the range."""
    middle = {
        "year": (1970 + centre / DAYS_OF_A_YEAR, max(deviation / DAYS_OF_A_YEAR, 1.0)),
        "month": (6.5, (143 / 12) ** 0.5),
        "weekday": (3.0, 2.0),
        "days": (centre, deviation),
    }
    return [InputColumn(name, *middle[part], middle[part][0], part=part, sentinels=missing) for part in DATE_PARTS]


def column_kind(clients: Sequence[Described], k: int) -> str:
    """What most clients hold in column k: number, text or date."""
    kinds = Counter(c.table[k].holds for c in clients if c.table is not None and c.table[k].holds != "empty")
    return kinds.most_common(1)[0][0] if kinds else "number"


def agreed_scale(clients: Sequence[Described]) -> Scale | None:
    """How targets that are numbers are scaled; None where no range is told."""
    told = [client.target_range for client in clients]
    return Scale(*_middle(told)) if any(entry is not None for entry in told) else None


def width_of(scheme: Sequence[dict[str, Any]]) -> int:
    """Inputs that the columns become."""
    return sum(len(InputColumn.described(entry).inputs) for entry in scheme)


def _middle(ranges: Sequence[Sequence[float] | None]) -> tuple[float, float]:
    known = np.array([ends for ends in ranges if ends is not None], dtype=float).reshape(-1, 2)
    if not len(known):
        return 0.0, 1.0
    low, high = np.median(known, axis=0)
    return float((low + high) / 2), float((high - low) / DEVIATIONS) if high > low else 1.0
