"""How things show themselves in notebooks: a title, a small table, notes; every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice
from typing import Any

ROWS_SHOWN = 20
"""Lines shown of a longer table."""


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], notes: Iterable[str] = ()) -> str:
    """
    >>> html_table("two < three", ["client", "samples"], [["a", 12]])
    '<b>two &lt; three</b><table><tr><th>client</th><th>samples</th></tr><tr><td>a</td><td>12</td></tr></table>'
    """
    rest = iter(rows)
    shown = [columns, *islice(rest, ROWS_SHOWN)]
    left = sum(1 for _ in rest)
    lines = [
        "<tr>" + "".join(f"<{tag}>{escape(_told(cell))}</{tag}>" for cell in row) + "</tr>"
        for tag, row in zip(("th", *("td" for _ in shown)), shown)
    ]
    more = f"<p>… and {left:,} more</p>" if left else ""
    said = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<b>{escape(title)}</b><table>{''.join(lines)}</table>{more}{f'<ul>{said}</ul>' if said else ''}"


def _told(cell: Any) -> str:
    """A number with four decimals, or a dash where there is none."""
    return (f"{cell:.4f}" if cell == cell else "–") if isinstance(cell, float) else str(cell)
