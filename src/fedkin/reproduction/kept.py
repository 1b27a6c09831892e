"""The cells that are kept: `<folder>/<table>.jsonl`, one cell per line, found by what it computes wherever it stands.

A line holds key, scale, seed, settings, numbers, seconds, versions, the fingerprint of what the code did (see
`fedkin.reproduction.behaviour`) and, where `fedkin reproduce --verify` found that the code does something else by now,
`outdated`. One process writes: files are replaced as a whole, so that nobody ever reads half a line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedkin.errors import FedkinError

CellRecord = dict[str, Any]


class Kept:
    """All cells under a folder by key. Tables and scales that share settings and seed share the cell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: dict[str, CellRecord] = {}
        self.tables: dict[str, str] = {}
        """Key → the table in whose file the cell stands."""
        old = next(folder.glob("*/*/*.json"), None)
        if old is not None and old.parent.name in ("smoke", "desk", "paper"):
            raise FedkinError(
                f"{old} is a cell of an older fedkin, which kept one file each; move {old.parent.parent} away or choose "
                "another folder with --out"
            )
        for path in sorted(folder.glob("*.jsonl")):
            for record in _read(path):
                known = self.records.get(record["key"])
                if known is None or known.get("outdated"):
                    self._know(path.stem, record)

    def _know(self, table: str, record: CellRecord) -> None:
        self.records[record["key"]], self.tables[record["key"]] = record, table

    def put(self, table: str, records: Iterable[CellRecord]) -> None:
        """Keep cells in the file of their table; a cell that was kept before, here or there, is replaced where it stands."""
        from fedkin.files import plain, write_atomic

        changed: dict[str, list[CellRecord]] = {}
        for record in records:
            changed.setdefault(self.tables.get(record["key"], table), []).append(_six_digits(plain(record)))
        for home, found in changed.items():
            path = self.folder / f"{home}.jsonl"
            lines = {record["key"]: record for record in (*_read(path), *found)}  # what others added meanwhile stays
            write_atomic(path, (f"{json.dumps(line, ensure_ascii=False)}\n".encode() for line in lines.values()))
            for record in found:
                self._know(home, record)

    def of(self, table: str, scale: str) -> list[CellRecord]:
        """The cells that were computed for this table at this scale."""
        return [self.records[key] for key, home in self.tables.items() if home == table and self._scale(key) == scale]

    def _scale(self, key: str) -> str:
        return str(self.records[key]["scale"])

    def picture(self, table: str, scale: str) -> Path:
        return self.folder / f"{table}.{scale}.png"

    def checkpoints(self, key: str, fingerprint: str | None) -> Path:
        """Where a cell under way is saved: elsewhere when the code does something else."""
        return self.folder / ".running" / f"{key}.{fingerprint}"


def _read(path: Path) -> Iterator[CellRecord]:
    """The lines of a file; a spoilt one (an unresolved merge) is refused."""
    if not path.exists():
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
            if not {"key", "scale", "seed", "seconds"} <= set(record):
                raise ValueError
        except (ValueError, TypeError):
            raise FedkinError(f"{path}, line {number} is not a cell; remove the line to compute it anew") from None
        yield record


def _six_digits(value: Any) -> Any:
    """Enough for every verdict, and a repository stays small."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _six_digits(entry) for key, entry in value.items()}
    return [_six_digits(entry) for entry in value] if isinstance(value, list) else value
