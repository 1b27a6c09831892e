"""Measured against published: a verdict per cell, and the paper's claims as checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedkin.errors import FedkinError, unknown
from fedkin.reproduction.tables import Claim, PublishedTable, When

POINTS = 2.0
"""“Close” for percentages, and for the operator ≈ in claims."""


@dataclass(frozen=True)
class Number:
    """A number and its spread, as printed: 97.23 ± 1.4."""

    value: float
    spread: float | None = None

    def __str__(self) -> str:
        return f"{self.value:.2f}" + ("" if self.spread is None else f" ± {self.spread:.2f}")


def parse_published(text: str) -> list[Number | None]:
    """The published numbers of a cell; a dash stands for one that the paper leaves out.

    >>> [str(number) for number in parse_published("49.33±21.2 / 49 / –")]
    ['49.33 ± 21.20', '49.00', 'None']
    """
    found: list[Number | None] = []
    for part in text.split("/"):
        value, _, spread = part.strip().partition("±")
        if value.strip() in ("-", "–"):
            found.append(None)
            continue
        try:
            found.append(Number(float(value), float(spread) if spread else None))
        except ValueError:
            raise FedkinError(f"published cell {text!r} is not a number, or a number ± a spread") from None
    return found


def verdict(published: Number, measured: float, percent: bool = True) -> str:
    """The strictest statement that holds.

    >>> verdict(Number(97.2, 1.4), 96.0), verdict(Number(50.2, 20.2), 51.0)
    ('within the spread', 'within 2 points')
    >>> verdict(Number(50.2, 20.2), 60.0), verdict(Number(93.4, 0.2), 99.0)
    ('within the spread', 'further off')
    """
    off = abs(measured - published.value)
    bounds = [] if published.spread is None else [(published.spread, "within the spread")]
    bounds.append((POINTS, "within 2 points") if percent else (0.1 * abs(published.value), "within 10 %"))
    holding = sorted(bound for bound in bounds if off <= bound[0] + 1e-9)
    return holding[0][1] if holding else "further off"


# --- claims -----------------------------------------------------------------------------------------------------------

Value = Callable[[str, str, str, When | None], float | None]
"""value(row, column, statistic, when) → measured mean; `when` None: as the paper tests this row."""

COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    "~": lambda a, b: abs(a - b) <= POINTS,
}
TERM = re.compile(r"(?P<row>[A-Za-z]\w*)(\[(?P<column>\w+)\])?(\.(?P<statistic>\w+))?$")


@dataclass(frozen=True)
class Check:
    """A claim as a chain a > b > c: operators and terms. A term is a row, row[column], row.statistic, or a number."""

    terms: tuple[str, ...]
    operators: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Check:
        parts = re.split(r"\s*(>=|<=|>|<|~)\s*", text.strip())
        check = cls(tuple(parts[::2]), tuple(parts[1::2]))
        if not check.operators or not all(TERM.match(t) or _number(t) is not None for t in check.terms):
            raise FedkinError(f"claim {text!r} is not a comparison such as 'fedpnp > fedavg'")
        return check

    @property
    def fixed(self) -> bool:
        """Whether every row names its column, so that the claim is about the whole table."""
        return all(_number(t) is not None or "[" in t for t in self.terms)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def check_claims(table: PublishedTable, value: Value) -> list[dict[str, object]]:
    """Every claim in every column where its cells are measured, marked at *pre*, at *post* and as the paper tests."""
    found: list[dict[str, object]] = []
    for claim in table.claims:
        check = Check.parse(claim.check)
        columns: Sequence[str] = [""] if check.fixed else claim.columns or list(table.columns)
        for column in columns:
            outcome = _outcome(table, claim, check, column, value)
            if outcome is not None:
                found.append({"says": claim.says, "check": claim.check, "column": column, **outcome})
    return found


def _outcome(table: PublishedTable, claim: Claim, check: Check, column: str, value: Value) -> dict[str, object] | None:
    """The mark of one claim in one column; None where a cell is missing."""
    marks: dict[str, bool] = {}
    margins: dict[str, float] = {}
    for when in ("pre", "post", "tested"):
        chosen: When | None = None if when == "tested" else ("pre" if when == "pre" else "post")
        values = [_term(table, claim, term, column, value, chosen) for term in check.terms]
        known = [v for v in values if v is not None]
        if len(known) < len(values):
            return None
        pairs = list(zip(known, check.operators, known[1:]))
        marks[when] = all(COMPARE[operator](a, b) for a, operator, b in pairs)
        margins[when] = _margin(pairs)
    return {"mark": _mark(marks, list(_mixed(table, check))), "margin": margins, "holds": marks}


def _margin(pairs: Sequence[tuple[float, str, float]]) -> float:
    """The weakest link of a chain: negative where one is broken. Of a chain of ~ alone, the largest difference."""
    ordered = [b - a if operator in ("<", "<=") else a - b for a, operator, b in pairs if operator != "~"]
    return min(ordered) if ordered else max((a - b for a, _, b in pairs), key=abs)


def _mark(marks: Mapping[str, bool], tested: Sequence[str]) -> str:
    if marks["pre"] and marks["post"]:
        return "holds"
    mixed = f" as the paper tests ({', '.join(tested)})"
    if marks["pre"] or marks["post"]:
        only = "holds only " + ("pre" if marks["pre"] else "post")
        return only + ("" if not tested else f"; {'holds' if marks['tested'] else 'does not hold'}{mixed}")
    return f"holds only{mixed}" if tested and marks["tested"] else "does not hold"


def _mixed(table: PublishedTable, check: Check) -> Iterator[str]:
    """Which row is tested when, if the paper tests the compared rows at different moments."""
    rows = list(dict.fromkeys(m["row"] for m in map(TERM.match, check.terms) if m))
    moments = {row: table.when(row) for row in rows}
    if len(set(moments.values())) > 1:
        yield from (f"{row} {moment}" for row, moment in moments.items())


def _term(table: PublishedTable, claim: Claim, term: str, column: str, value: Value, when: When | None) -> float | None:
    number = _number(term)
    if number is not None:
        return number
    match = TERM.match(term)
    assert match is not None
    row, place = match["row"], match["column"] or column
    statistic = match["statistic"] or claim.statistic or table.statistics[0]
    for kind, name, known in (("row", row, table.rows), ("column", place, table.columns)):
        if name not in known:
            raise unknown(f"{kind} in claim {claim.check!r} of {table.name}:", name, known)
    return value(row, place, statistic, when)
