"""InputColumn: how one column of a table becomes inputs, fitted on training rows and kept for new ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

ABSENT = "(missing)"
DATE_PARTS = ("year", "month", "weekday", "days")
"""What a date becomes; `days` are counted from 1970-01-01 here, and from the first training day where not standardised."""
DATE_FORMATS = ("ISO8601", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y%m%d")
"""How dates may be written, tried in this order; one format for all cells of a column."""


@dataclass(frozen=True)
class InputColumn:
    """One column as fitted on training rows: a number, a part of a date (both: centre, scale, fill), or categories."""

    name: str
    centre: float = 0.0
    scale: float = 1.0
    fill: float = 0.0
    categories: tuple[str, ...] | None = None
    part: str | None = None
    """Which of DATE_PARTS, where the column holds dates."""
    format: str | None = None
    """How dates are written where they are text: one of DATE_FORMATS."""
    sentinels: tuple[str, ...] = ()
    """What stands for "missing" beside empty cells, as text: -999, "unknown"."""
    decimal: str = "."
    """What stands before the decimals of numbers written as text."""

    @classmethod
    def described(cls, entry: Mapping[str, Any]) -> InputColumn:
        """From its fields, as `federation.inputs` and a saved run hold them."""
        categories = entry.get("categories")
        kept = {"categories": None if categories is None else tuple(categories)}
        return cls(**{**entry, **kept, "sentinels": tuple(entry.get("sentinels", ()))})

    @classmethod
    def fit(cls, values: pd.Series, standardise: bool = True, **kind: Any) -> InputColumn:
        """Fit cleaned training cells; `kind` are the fields `part`, `format`, `sentinels` and `decimal`."""
        column = cls(str(values.name), **kind)
        if column.part is None and not is_number(values):
            return cls(column.name, categories=tuple(sorted(set(as_text(values)))), **kind)
        numbers = column.numbers(values)
        fill = float(np.nanmedian(numbers))
        filled = np.where(np.isnan(numbers), fill, numbers)
        if not standardise:
            return cls(column.name, float(filled.min()) if column.part == "days" else 0.0, 1.0, fill, **kind)
        deviation = float(filled.std())
        return cls(column.name, float(filled.mean()), deviation if deviation > 0 else 1.0, fill, **kind)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs this column becomes."""
        if self.categories is not None:
            return tuple(f"{self.name}={category}" for category in self.categories)
        return (self.name,) if self.part is None else (f"{self.name}.{self.part}",)

    def numbers(self, values: pd.Series) -> np.ndarray:
        """The column as numbers (n,), NaN where a cell is missing; a ValueError where a cell is neither."""
        import pandas as pd

        if self.part is not None:
            return date_part(as_dates(values, self.format), self.part)
        values = values if is_number(values) else pd.to_numeric(pointed(values, self.decimal), errors="raise")
        return values.to_numpy(dtype=np.float64, na_value=np.nan)

    def encode(self, values: pd.Series) -> np.ndarray:
        """(n, inputs): standardised numbers, or one-hot rows (all zeros for a category not seen in training)."""
        values = trimmed(values, self.sentinels)
        if self.categories is not None:
            text = np.asarray(as_text(values), dtype=object)
            return (text[:, None] == np.asarray(self.categories, dtype=object)[None, :]).astype(np.float32)
        numbers = self.numbers(values)
        filled = np.where(np.isnan(numbers), self.fill, numbers)
        return ((filled - self.centre) / self.scale).astype(np.float32)[:, None]


def is_number(values: pd.Series) -> bool:
    from pandas.api.types import is_numeric_dtype

    return bool(is_numeric_dtype(values))


def as_text(values: pd.Series) -> list[str]:
    """Cells as categories: text without blanks around it, missing ones under a name of their own."""
    return [ABSENT if absent else str(value).strip() for value, absent in zip(values, values.isna())]


def cleaned(values: pd.Series, sentinels: tuple[str, ...] = (), decimal: str = ".") -> pd.Series:
    """As `trimmed`; and text that was no number only for blanks, a sentinel or a decimal comma is numbers again."""
    import pandas as pd

    found = trimmed(values, sentinels)
    if is_number(values) or values.dtype.kind in "mM" or (found.equals(values) and decimal == "."):
        return found  # digits that were written as text from end to end are codes
    if not has_leading_zeros(found) and found.notna().any():
        try:
            return pd.to_numeric(pointed(found, decimal), errors="raise")
        except (TypeError, ValueError):
            pass
    return found


def trimmed(values: pd.Series, sentinels: tuple[str, ...] = ()) -> pd.Series:
    """Text trimmed, empty cells and sentinels missing, truth values 0 and 1."""
    if values.dtype.kind == "b":
        return values.astype("int8")
    number = is_number(values)
    if values.dtype.kind in "mM" or (number and not sentinels):
        return values
    if number:
        found = {float(s) for s in sentinels if is_float(s)}
        return values.mask(values.isin(found)) if values.isin(found).any() else values
    text = _trimmed(values)
    return text if not sentinels and not text.eq("").any() else text.mask(text.isin([*sentinels, ""]))


def pointed(values: pd.Series, decimal: str) -> pd.Series:
    """Cells with a point where `decimal` stood."""
    return values if decimal == "." else values.map(lambda cell: str(cell).replace(decimal, "."), na_action="ignore")


def _trimmed(values: pd.Series) -> pd.Series:
    """Text without blanks around it; cells that are no text stay."""
    from pandas.api.types import infer_dtype

    if infer_dtype(values, skipna=True) == "string":
        return values.str.strip()
    written = values.map(lambda cell: isinstance(cell, str))
    return values.where(~written, values.str.strip()) if written.any() else values  # truth values alone have no .str


def has_leading_zeros(values: pd.Series) -> bool:
    """Whether a cell is written like "01": a code, not a number."""
    return bool(values.dropna().astype(str).str.fullmatch(r"\s*[+-]?0\d+\s*").any())


def is_float(text: str) -> bool:
    """Whether a cell written as text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def date_formats(values: pd.Series) -> list[str]:
    """The formats under which every known cell of a column of text is a date."""
    import pandas as pd

    known = values.dropna()
    text = known.astype(str).str.strip()
    if not len(known) or is_number(values):
        return []
    return [f for f in DATE_FORMATS if not pd.to_datetime(text, format=f, errors="coerce", utc=True).isna().any()]


def as_dates(values: pd.Series, format: str | None) -> pd.Series:
    """Cells as moments; those written in another format than the training rows raise a ValueError.

    Without a format, that of DATE_FORMATS which fits all cells.
    """
    import pandas as pd

    if values.dtype.kind == "M":
        return values
    if format is None and not is_number(values) and values.notna().any():
        format = next(iter(date_formats(values)), None)
        if format is None:
            raise ValueError("no dates of one format")
    text = values.map(lambda cell: str(cell).strip(), na_action="ignore")
    return pd.to_datetime(text, format=format, errors="raise", utc=True)


def date_part(dates: pd.Series, part: str) -> np.ndarray:
    """A part of every date (n,), NaN where there is none."""
    import pandas as pd

    if part == "days":
        moments = dates.dt.tz_convert("UTC").dt.tz_localize(None) if dates.dt.tz is not None else dates
        return ((moments - pd.Timestamp(0)) // pd.Timedelta(days=1)).to_numpy(dtype=np.float64, na_value=np.nan)
    found: pd.Series = getattr(dates.dt, "day_of_week" if part == "weekday" else part)
    return found.to_numpy(dtype=np.float64, na_value=np.nan)
