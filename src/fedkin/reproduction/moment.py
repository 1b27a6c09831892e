"""Is it the method, or the moment of testing? The papers' methods beside FedAvg before and after local training.

FedAvg is mostly tested as received, personalised methods after local training. Here both are tested alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from fedkin.reproduction.reproduce import Reproduction
from fedkin.reproduction.tables import PublishedTable, When

QUESTION = re.compile(r"^(?P<row>\w+) > fedavgft$")


@dataclass(frozen=True)
class Lead:
    """One setting: means in %, of FedAvg, of training alone, and of the paper's method."""

    table: str
    setting: str
    fedavg_pre: float
    fedavg_post: float
    local_post: float
    method: str
    pre: float
    post: float

    def shown(self) -> Iterator[str]:
        for value in vars(self).values():
            yield value if isinstance(value, str) else f"{value:.2f}"


def leads(plans: Iterable[Reproduction]) -> Iterator[Lead]:
    """Every setting of every table (figures repeat them) in which all three are measured; the same cells once,
    and a setting at the first of its scales."""
    told: set[tuple[str, ...]] = set()
    for chosen in plans:
        table, row = chosen.table, own_row(chosen.table)
        if table.kind != "table" or not table.percent or row is None:
            continue
        measured = chosen.measured
        for column in table.columns:
            cells = [measured.good(name, column) for name in ("fedavg", "local", row)]
            keys = tuple(group[0]["key"] for group in cells if group)
            place = (table.name, column)
            if len(keys) < len(cells) or keys in told or place in told:
                continue
            told |= {keys, place}
            moments: list[tuple[str, When]] = [("fedavg", "pre"), ("fedavg", "post"), ("local", "post")]
            moments += [(row, "pre"), (row, "post")]
            found = [measured.number(name, column, table.statistics[0], when) for name, when in moments]
            values = [number.value for number in found if number is not None]
            if len(values) == len(found):
                before, after, alone, pre, post = values
                where, setting = f"{table.name}, {chosen.scale}", table.columns[column].title
                yield Lead(where, setting, before, after, alone, table.rows[row].title, pre, post)


def own_row(table: PublishedTable) -> str | None:
    """The row of the paper's own method: the one that is compared with FedAvg + fine-tuning."""
    found = (QUESTION.match(claim.check) for claim in table.claims)
    return next((match["row"] for match in found if match), None)


def moment_section(plans: Iterable[Reproduction]) -> Iterator[str]:
    """The answer in numbers, and the settings it is made of."""
    from fedkin.reproduction.page import markdown

    found = list(leads(plans))
    if not found:
        return
    mixed, alike, alone = (
        np.array(by)
        for by in zip(*((r.post - r.fedavg_pre, r.post - r.fedavg_post, r.post - r.local_post) for r in found))
    )
    yield "## Is it the method, or the moment of testing?\n"
    yield (
        "FedAvg is mostly tested as received, the papers' own methods after local training. Tested like that, they lead "
        f"FedAvg in {(mixed > 0).sum()} of the {len(found)} settings below, by {np.median(mixed):+.1f} points in the "
        f"median. With both tested after local training (FedAvg + fine-tuning) they lead in {(alike > 0).sum()}, by "
        f"{np.median(alike):+.1f}; and they lead clients that train alone in {(alone > 0).sum()}, by "
        f"{np.median(alone):+.1f}. Accuracy in %; mostly fewer rounds and seeds than published, as each table says.\n"
    )
    head = ("table", "setting", "FedAvg pre", "FedAvg + fine-tuning", "Local", "the paper's method", "pre", "post")
    yield from markdown(head, [tuple(r.shown()) for r in found])
