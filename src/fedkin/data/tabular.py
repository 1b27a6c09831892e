"""Tables of the user's own as a federation: CSV, Excel and Parquet files; `federation/table.py` does the rest."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.federation.columns import InputColumn as InputColumn
from fedkin.federation.columns import has_leading_zeros
from fedkin.federation.federation import retold
from fedkin.federation.table import as_list
from fedkin.federation.table import from_table as from_table

if TYPE_CHECKING:
    import pandas as pd

LISTS = ("drop", "keep", "date", "missing_values")
NOT_TOLD = ("public", "graph", "truth", "notes", "source")
"""What a settings file cannot hold."""
EXCEL = (".xlsx", ".xlsm", ".xls", ".ods")


def read_table(
    path: str | os.PathLike[str], text: Sequence[str] = (), sep: str | None = None, encoding: str | None = None
) -> pd.DataFrame:
    """A CSV (.csv, .tsv, also compressed), Excel (.xlsx) or Parquet (.parquet) file as a data frame, types inferred.

    Columns named in `text`, and those that write a whole number as "01", are kept as they are written: "01" and "1" are
    two clients. `sep` and `encoding` are for CSV (default: comma, or tabulators in .tsv; UTF-8).
    """
    import pandas as pd

    file = Path(path)
    if not file.is_file():
        raise FedkinError(f"{file} does not exist; give the path of a CSV, Excel or Parquet file")
    try:
        if file.suffix in (".parquet", ".pq"):
            return pd.read_parquet(file)
        if file.suffix.lower() in EXCEL:
            return pd.read_excel(file, dtype=object).infer_objects()  # cells have types of their own
        return _read_csv(file, text, sep or ("\t" if ".tsv" in file.suffixes else ","), encoding or "utf-8-sig")
    except ImportError as problem:
        needed = "openpyxl" if file.suffix.lower() in EXCEL else "pyarrow"
        raise FedkinError(f"{file}: reading it needs {needed}; install it with: pip install {needed}") from problem
    except (UnicodeDecodeError, LookupError) as problem:
        raise FedkinError(
            f"{file} is not written in {encoding or 'UTF-8'} ({problem}); try --encoding latin-1"
        ) from None
    except Exception as problem:  # a damaged file makes the libraries that read it raise anything at all
        first = str(problem).strip().split("\n")[0]
        raise FedkinError(f"{file} cannot be read as a table ({first}); is it CSV, Excel or Parquet?") from problem


def _read_csv(file: Path, text: Sequence[str], sep: str, encoding: str) -> pd.DataFrame:
    import pandas as pd

    header = pd.read_csv(file, sep=sep, encoding=encoding, nrows=0).columns
    as_written: dict[Hashable, Any] = {name: str for name in header if str(name).strip() in text}
    frame = pd.read_csv(file, sep=sep, encoding=encoding, dtype=as_written, low_memory=False)
    whole = [name for name in frame.columns if name in header and _whole(frame[name])]
    if whole:
        written = pd.read_csv(file, sep=sep, encoding=encoding, dtype=str, usecols=whole)
        for name in whole:
            if has_leading_zeros(written[name]):
                frame[name] = written[name]
    return frame


def _whole(values: pd.Series) -> bool:
    return values.dtype.kind in "iu" or (values.dtype.kind == "f" and bool((values.dropna() % 1 == 0).all()))


def from_csv(
    path: str | os.PathLike[str],
    client: str,
    target: str,
    sep: str | None = None,
    encoding: str | None = None,
    **options: Any,
) -> Federation:
    """A federation from a CSV, Excel or Parquet file; `options` are those of `from_table`."""
    frame = read_table(path, [client.strip()], sep, encoding)
    try:
        federation = from_table(frame, client, target, **options)
    except FedkinError as problem:
        if frame.shape[1] == 1 and sep is None and any(mark in str(frame.columns[0]) for mark in ";\t|"):
            raise FedkinError(
                f"{path} has one column, {str(frame.columns[0])!r}; name its separator: --sep ';'"
            ) from None
        raise problem
    told = {"sep": sep, "encoding": encoding, **{key: value for key, value in options.items() if key not in NOT_TOLD}}
    told |= {key: list(as_list(told[key])) for key in LISTS if told.get(key) is not None}
    known = {key: value for key, value in told.items() if value is not None}
    source = {"name": "csv", "path": str(Path(path).resolve()), "client": client, "target": target, **known}
    return retold(federation, source=source)
