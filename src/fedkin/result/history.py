"""History: what every round had to say, and the per-client metrics of every evaluated round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.files import FileBatch, append, as_json, write_atomic
from fedkin.notebook import html_table
from fedkin.result.stored import read_records

if TYPE_CHECKING:
    import pandas as pd

Record = dict[str, Any]


def _mean(values: Sequence[float] | None) -> float:
    """The mean over clients that have a value."""
    known = np.array([] if values is None else values, dtype=float)
    known = known[np.isfinite(known)]
    return float(known.mean()) if len(known) else float("nan")


class History(Sequence[Record]):
    """A list of records, one per round.

    A record has `round`, `seconds` (training, cumulative), `evaluation_seconds`, `bytes` (cumulative), `participants`,
    `log` (what the method reports) and, for evaluated rounds, `pre` and `post`: metric name → one value per client.
    """

    def __init__(self, names: Sequence[str], records: Sequence[Record] = ()) -> None:
        self.names = tuple(names)
        self.records = list(records)
        self._saved: tuple[Path, int, int] | None = None
        """Where this history was written last, how many of its records, and the bytes they took."""

    def __getitem__(self, index: Any) -> Any:
        return self.records[index]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __repr__(self) -> str:
        return f"History({len(self.records)} rounds, {len(self.evaluated())} evaluated, {len(self.names)} clients)"

    def _repr_html_(self) -> str:
        metrics = list(self.evaluated()[-1]["pre"]) if self.evaluated() else []
        rows = (
            [record["round"], when, *(_mean(record[when].get(metric)) for metric in metrics)]
            for record in reversed(self.evaluated())
            for when in ("pre", "post")
            if when in record
        )
        return html_table(repr(self), ("round", "when", *metrics), rows)

    def evaluated(self) -> list[Record]:
        """The records of the rounds that were evaluated."""
        return [record for record in self.records if "pre" in record]

    def curve(self, metric: str, when: str = "pre") -> tuple[np.ndarray, np.ndarray]:
        """Rounds (T,) and per-client values (T, K) of a metric such as "test_accuracy", *pre* or *post*."""
        chosen = [record for record in self.records if metric in record.get(when, {})]
        values = [np.array(record[when][metric], dtype=float) for record in chosen]
        rounds = np.array([record["round"] for record in chosen], dtype=int)
        return rounds, np.array(values).reshape(len(chosen), len(self.names))

    def to_pandas(self) -> pd.DataFrame:
        """A long table: round, client, when (pre/post), metric, value."""
        import pandas as pd

        rows = [
            (record["round"], client, when, metric, value)
            for record in self.records
            for when in ("pre", "post")
            for metric, values in record.get(when, {}).items()
            for client, value in zip(self.names, values)
        ]
        return pd.DataFrame(rows, columns=["round", "client", "when", "metric", "value"])

    def save(self, path: Path, batch: FileBatch | None = None) -> None:
        """One JSON object per line. Records that this history has written there before are not written again."""
        where, known, size = self._saved or (None, 0, 0)
        if where != path or not path.exists() or path.stat().st_size != size:
            known, size = 0, 0
        lines = [as_json(record) for record in self.records[known:]]
        if known:
            (append if batch is None else batch.append)(path, lines)
        else:
            (write_atomic if batch is None else batch.write)(path, lines)
        self._saved = path, len(self.records), size + sum(map(len, lines))

    @classmethod
    def load(cls, path: Path, names: Sequence[str], first: int | None = None) -> History:
        """What `save` wrote, or its first bytes; a last line that was not finished is left out."""
        return cls(names, read_records(path, len(names), first))
