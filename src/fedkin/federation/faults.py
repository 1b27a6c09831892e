"""Columns that cannot become inputs: each named, with what to do about it, all at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation.columns import as_text, date_formats, is_number, pointed

if TYPE_CHECKING:
    import pandas as pd

MOSTLY = 0.5
"""A column of text of which more than this share are numbers was meant to hold numbers."""


def refuse_all(faults: Iterable[str]) -> None:
    """One line with every fault, if there are any."""
    found = list(faults)
    if found:
        raise FedkinError(found[0] if len(found) == 1 else f"{len(found)} faults: " + "; ".join(found))


def quoted(values: Sequence[str], most: int = 3) -> str:
    """The first few of several texts, in quotes so that blanks are seen.

    >>> quoted(["a", "b ", "c", "d"])
    "'a', 'b ', 'c', …"
    """
    return ", ".join(map(repr, values[:most])) + (", …" if len(values) > most else "")


def no_cells(values: pd.Series) -> str | None:
    """Why what stands in a column is nothing that a table can hold; None if it is."""
    if values.dtype.kind == "m":
        return f"column {values.name!r} holds durations; make numbers of them (.dt.total_seconds()) or drop it"
    if values.dtype != object or not any(isinstance(cell, list | dict | set | tuple | np.ndarray) for cell in values):
        return None
    return f"column {values.name!r} holds lists; make a column of each entry, or drop it (--drop {_quoted(str(values.name))})"


def fault_of(values: pd.Series, complete: bool, dated: bool, max_categories: int) -> str | None:
    """Why a cleaned column cannot be used, and what to do; None if it can. `complete`: missing cells are refused."""
    name = str(values.name)
    absent = int(values.isna().sum())
    if absent and complete:
        return f'column {name!r} has {absent} missing values; fill them in, or use missing="impute"'
    if dated:
        return _no_dates(values)
    if values.dtype.kind == "M":
        return (
            f"column {name!r} holds dates; read it as such (--date {_quoted(name)}) or drop it (--drop {_quoted(name)})"
        )
    if is_number(values):
        if values.dtype.kind == "c":
            return f"column {name!r} holds complex numbers; drop it (--drop {_quoted(name)})"
        infinite = values.dtype.kind == "f" and bool(np.isinf(values.to_numpy(dtype=float, na_value=np.nan)).any())
        return f"column {name!r} holds infinite numbers; drop or replace them (--missing inf)" if infinite else None
    texts = len(set(as_text(values)))
    return f"column {name!r} holds {texts} different texts, more than {max_categories}; {_instead(values)}" if (
        texts > max_categories
    ) else None  # fmt: skip


def _no_dates(values: pd.Series) -> str | None:
    if values.dtype.kind == "M" or values.isna().all() or date_formats(values):
        return None
    strange = values.dropna()
    for format in ("ISO8601", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y"):  # the format of most cells tells which are strange
        import pandas as pd

        wrong = strange[pd.to_datetime(strange.astype(str), format=format, errors="coerce", utc=True).isna()]
        if len(wrong) < MOSTLY * len(strange):
            strange = wrong
            break
    cells = quoted([str(cell) for cell in strange.unique()])
    return (
        f"column {str(values.name)!r} has cells that are no dates of one format: {cells}; mend them, or --missing them"
    )


def _instead(values: pd.Series) -> str:
    """What to do with a column of too many texts."""
    import pandas as pd

    name, known = _quoted(str(values.name)), values.dropna()
    wrong = known[pd.to_numeric(known, errors="coerce").isna()]
    if len(wrong) < MOSTLY * len(known):
        cells = wrong.astype(str).unique()
        return f"{len(wrong)} cells are no numbers: {quoted(list(cells))}; if they mean missing: --missing {_quoted(cells[0])}"
    if has_decimal_commas(known):
        return "its numbers have a decimal comma: --decimal ,"
    if date_formats(values):
        return f"they are dates: --date {name}"
    if known.is_unique:
        return f"one in every row, an identifier: --id {name} or --drop {name}"
    return f"drop it (--drop {name}) or raise max_categories"


def has_decimal_commas(known: pd.Series) -> bool:
    """Whether cells are numbers as soon as commas are points."""
    import pandas as pd

    return bool(pd.to_numeric(pointed(known, ","), errors="coerce").notna().all())


def _quoted(text: str) -> str:
    return text if text.isidentifier() else repr(text)
