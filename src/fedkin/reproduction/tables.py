"""A published table or figure: `fedkin/papers/<paper>.<table>.toml`, read and checked.

title, shows        what it is, and the published shape in words
kind                "table" or "figure"
statistics          the numbers of a cell, in the order in which `published` lists them ("90.1±0.2 / 98.0±0.1")
spread              what ± means in the paper: "clients", "seeds" or "none"
tested              when the paper tests a model: "pre" (as received), "post" (after local training), or "either"
[training] [run]    settings of all cells; `seeds` is how many
[columns.NAME]      data, model, graph, and training or run settings of their own
[rows.NAME]         a method with its parameters (`at.COLUMN`: those of one column), and the published cells
[[claims]]          what the paper says, in words and as a check such as "fedpnp > fedavg"
[scales.NAME]       smoke and desk: what is reduced. The paper scale is the file itself
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedkin.errors import FedkinError, unknown

SCALES = ("smoke", "desk", "paper")
When = Literal["pre", "post"]
Tested = Literal["pre", "post", "either"]
Panel = Literal["metric", "global", "loss"]
Entries = dict[str, Any]
"""Settings by name; of several layers the last one that names a setting counts."""


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TableColumn(Strict):
    """A setting: who has which data, and the model."""

    title: str
    data: Entries = {}
    model: str = ""
    graph: str | None = None
    training: Entries = {}
    run: Entries = {}
    parameters: Entries = {}
    """Arguments of functions (figures that are no training runs)."""
    labels: Entries = {}
    """Which rows of a whole figure's function belong to this column."""
    level: float | None = None
    """The accuracy (or MSE) by which the statistic `rounds_to` tells how many rounds a method takes there."""
    caution: str | None = None
    """Why no measured number of this column can be compared with the published one."""

    @property
    def source(self) -> Entries:
        """The data, of training runs and of functions."""
        return dict(self.data or self.parameters.get("source", {}))


class TableRow(Strict):
    """A method with its parameters, or a function `module:name`, and what the paper prints for it."""

    title: str
    algorithm: str = ""
    function: str = ""
    parameters: Entries = {}
    at: dict[str, Entries] = {}
    run: Entries = {}
    graph: str | None = None
    columns: list[str] | None = None
    tested: Tested | None = None
    labels: Entries = {}
    x: float | None = None
    """Its place on the horizontal axis, in figures over a parameter."""
    published: dict[str, str] = {}


class Claim(Strict):
    """What the paper says, and the check: a chain of comparisons between cells."""

    says: str
    check: str
    columns: list[str] | None = None
    statistic: str | None = None


class ColumnReduction(Strict):
    """What is reduced in one column; `rows.ROW` replaces parameters of one row there."""

    data: Entries = {}
    model: str | None = None
    training: Entries = {}
    run: Entries = {}
    parameters: Entries = {}
    rows: dict[str, Entries] = {}


class Reduction(Strict):
    """What a scale reduces. `parameters.ROW` replaces parameters of one row, `parameters."*"` of all functions."""

    seeds: int | None = None
    rows: list[str] | None = None
    columns: list[str] | None = None
    data: Entries = {}
    training: Entries = {}
    run: Entries = {}
    parameters: dict[str, Entries] = {}
    at: dict[str, ColumnReduction] = {}
    says: str = ""
    """The reductions in words, for the output."""


_NOTHING, _AS_IT_IS = Reduction(), ColumnReduction()
"""What the paper's scale reduces, and what a scale does to a column that it does not name."""


class Drawing(Strict):
    """What a figure draws: curves over rounds, bars, a line over the rows' x, or a function's own lines."""

    kind: Literal["rounds", "bars", "rows", "lines", "matrix"] = "bars"
    x: str = ""
    y: str = ""
    panels: list[Panel] = ["metric"]
    """What curves over rounds are drawn of, each in panels of its own: the metric on clients' own test samples, that on all
    clients' test samples (with `global_test`), the training loss."""
    log_x: bool = False
    log_y: bool = False


class PublishedTable(Strict):
    """A published table or figure."""

    name: str
    title: str
    paper: str
    kind: Literal["table", "figure"] = "table"
    shows: str = ""
    statistics: list[str] = ["mean"]
    percent: bool = True
    larger_is_better: bool = True
    spread: Literal["clients", "seeds", "none"] = "seeds"
    tested: Tested = "either"
    seeds: int = Field(1, ge=1)
    function: str = ""
    """`module:name` that computes the whole figure: {"rows": [{labels…, "mean", "std"}], "claims": [{"says", "holds"}]}."""
    parameters: Entries = {}
    logs: list[str] = []
    """Entries of the methods' logs that are kept for every round."""
    training: Entries = {}
    run: Entries = {}
    columns: dict[str, TableColumn]
    rows: dict[str, TableRow]
    claims: list[Claim] = []
    uncertain: list[str] = []
    scales: dict[str, Reduction] = {}
    drawing: Drawing = Drawing()

    def reduction(self, name: str) -> Reduction:
        """What a scale reduces: at the paper's, nothing."""
        if name not in SCALES:
            raise unknown("scale", name, SCALES)
        if name != "paper" and name not in self.scales:
            raise FedkinError(f"{self.name} has no scale {name!r}; it has {', '.join([*self.scales, 'paper'])}")
        return self.scales.get(name, _NOTHING)

    def places(self, scale: str) -> list[tuple[str, str]]:
        """(row, column) of every cell at this scale, column by column, so that neighbours share their data."""
        chosen = self.reduction(scale)
        return [
            (row, column)
            for column in self.columns
            for row, what in self.rows.items()
            if (chosen.columns is None or column in chosen.columns)
            and (chosen.rows is None or row in chosen.rows)
            and (what.columns is None or column in what.columns)
        ]

    def when(self, row: str) -> Tested:
        """When the paper tests the models of this row."""
        return self.rows[row].tested or self.tested

    def settings(self, row: str, column: str, scale: str) -> Entries:
        """Everything that fixes the numbers of a cell, but for its seed."""
        what, where, reduced = self.rows[row], self.columns[column], self.reduction(scale)
        here, everywhere = reduced.at.get(column, _AS_IT_IS), reduced.parameters.get("*", {})
        if self.function:
            return {"function": self.function, "parameters": self.parameters | everywhere}
        own = what.parameters | what.at.get(column, {}) | reduced.parameters.get(row, {}) | here.rows.get(row, {})
        if what.function:
            shared = where.parameters | here.parameters | everywhere
            return {"function": what.function, "parameters": shared | own}
        graph = own.pop("graph", where.graph if what.graph is None else what.graph)
        data = where.data | reduced.data | here.data
        training = self.training | where.training | own | reduced.training | here.training
        return {
            "data": data,
            "model": here.model or where.model,
            # It trains exactly as FedAvg does; the two differ in the model they deploy, and a cell holds both.
            "algorithm": "fedavg" if what.algorithm == "fedavgft" else what.algorithm,
            "parameters": {key: data.get("clients") if value == "K" else value for key, value in training.items()},
            "graph": graph,
            "run": self.run | where.run | reduced.run | here.run | what.run,
        }


def table_names() -> list[str]:
    """All tables and figures, such as "fedu.table1"."""
    found = (file.name for file in files("fedkin.papers").iterdir())
    return sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml"))


@cache
def find_table(name: str) -> PublishedTable:
    """A table or figure by name."""
    if name not in table_names():
        raise unknown("table or figure", name, table_names())
    return parse_table(name, files("fedkin.papers").joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def parse_table(name: str, text: str) -> PublishedTable:
    """The content of a TOML file as a table; every name in it must exist."""
    from fedkin.errors import first_fault

    try:
        table = PublishedTable(name=name, **tomllib.loads(text))
    except tomllib.TOMLDecodeError as problem:
        raise FedkinError(f"{name}.toml is not valid TOML: {problem}") from problem
    except ValidationError as problem:
        raise FedkinError(first_fault(f"{name}.toml", problem)) from problem
    _check_names(table)
    return table


def _check_names(table: PublishedTable) -> None:
    """Refuse columns or rows that are mentioned but not defined, and cells with too few published numbers."""
    columns: list[tuple[str, Mapping[str, Any] | list[str]]] = []
    for name, row in table.rows.items():
        columns += [(f"row {name}", part) for part in (row.at, row.published, row.columns or [])]
        if bool(row.algorithm) + bool(row.function) + bool(table.function) != 1:
            raise FedkinError(f"{table.name}.toml: row {name} needs either an algorithm or a function")
        for column, text in row.published.items():
            if text.count("/") + 1 != len(table.statistics):
                raise FedkinError(f"{table.name}.toml: {name} at {column}: {text!r} is not {table.statistics}")
    columns += [(f"claim {claim.says!r}", claim.columns or []) for claim in table.claims]
    columns += [
        (f"scale {name}", part) for name, scale in table.scales.items() for part in (scale.at, scale.columns or [])
    ]
    for owner, mentioned in columns:
        for column in mentioned:
            if column not in table.columns:
                raise unknown(f"column in {table.name}.toml, {owner}:", column, table.columns)
    for name, scale in table.scales.items():
        for mentioned_row in [*(scale.rows or []), *(key for key in scale.parameters if key != "*")]:
            if mentioned_row not in table.rows:
                raise unknown(f"row in {table.name}.toml, scale {name}:", mentioned_row, table.rows)
