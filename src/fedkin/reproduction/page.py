"""docs/reproduction.md and a page per paper, generated from the kept cells. Nothing in them is written by hand."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from fedkin.algorithms import get, names
from fedkin.files import write_atomic
from fedkin.reports.wording import duration
from fedkin.reproduction import moment, text
from fedkin.reproduction.cells import cells_of
from fedkin.reproduction.kept import Kept
from fedkin.reproduction.reproduce import Reproduction, missing, plan
from fedkin.reproduction.tables import find_table, table_names

INTRODUCTION = """# Reproduction

Every published table and figure of the five papers that was run here, beside what is published. This page is generated
from the cells kept in `results/` by `fedkin reproduce --render docs/reproduction.md`; do not edit it.

*pre* is the model a client has just received, *post* the model after one more round of local training. The papers
mostly do not say which of the two they test; “difference” says which one it refers to. FedAvg + fine-tuning is FedAvg
tested *post*. A verdict is the strictest that holds of: within the spread the paper prints, within 2 points, further
off. A claim is checked with all methods tested *pre*, and with all tested *post*.

A cell is kept with its settings, its seed and a fingerprint of what the code did in a short run on made-up clients in
float64 (not what shows only late in a run, such as the end of a schedule). `fedkin reproduce --verify` makes the fingerprints
anew; cells whose code does something else by now are counted below as of an older version.
"""


def write_page(results: Path, path: Path) -> Path:
    """Write the page about everything under `results`, and beside it one per paper: reproduction-fedu.md."""
    plans = list(kept_tables(Kept(results)))
    parts = [INTRODUCTION, *overview(plans, path.stem), *moment.moment_section(plans)]
    _write(path, [*parts, *not_run({chosen.table.name for chosen in plans})])
    for paper, own in groupby(plans, key=paper_of):
        sections = [part for chosen in own for part in table_section(chosen, path.parent)]
        title = (
            f"# {_titled(paper)}: published tables beside ours\n\nHow to read them: [reproduction]({path.name}). "
            f"What to conclude from them: [{_titled(paper)}]({paper}.md#what-to-conclude).\n"
        )
        _write(path.with_name(page_of(paper, path.stem)), [title, *sections])
    return path


def _write(path: Path, parts: list[str]) -> None:
    write_atomic(path, ("\n".join(parts).rstrip() + "\n").encode())


def paper_of(chosen: Reproduction) -> str:
    """The method whose paper has the table: "fedu" of fedu.table1."""
    return chosen.table.name.partition(".")[0]


def _titled(paper: str) -> str:
    return get(paper).title if paper in names() else paper


def page_of(paper: str, stem: str) -> str:
    return f"{stem}-{paper}.md"


def kept_tables(kept: Kept) -> Iterator[Reproduction]:
    """The tables and scales with results: the paper scale, and the reduced one where that has more to say."""
    for name in table_names():
        told: set[str] = set()
        for scale in ("paper", "desk"):
            seeds = [record["seed"] for record in kept.of(name, scale)]
            if seeds or kept.picture(name, scale).exists():
                chosen = plan(name, scale, kept, seeds=max(seeds, default=-1) + 1 or None, showing=True)
                if chosen.found - told:
                    yield chosen
                if len(chosen.found) == len({cell.key for cell in chosen.cells}):
                    break
                told |= chosen.found


def overview(plans: list[Reproduction], stem: str) -> Iterator[str]:
    """One line per table: how many cells agree, how many claims hold. `stem` is that of the page's file."""
    yield "| table | scale | within the spread | within 2 points (10 %) | further off | claims that hold | only pre or only post | do not hold |"
    yield "|---|---|---|---|---|---|---|---|"
    for chosen in plans:
        summary = chosen.summary()
        verdicts = [cell["verdict"] for cell in summary["cells"]]
        marks = [claim["mark"] for claim in summary["claims"]]
        near = verdicts.count("within 2 points") + verdicts.count("within 10 %")
        counts = [verdicts.count("within the spread"), near, verdicts.count("further off")]
        held = [
            marks.count("holds"),
            sum(mark.startswith("holds only") for mark in marks),
            marks.count("does not hold"),
        ]
        link = f"[{summary['name']}]({page_of(paper_of(chosen), stem)}#{anchor(chosen)})"
        yield "| " + " | ".join([link, chosen.scale, *(str(count) for count in (*counts, *held))]) + " |"
    yield ""


def heading(chosen: Reproduction) -> str:
    return f"{chosen.table.title} ({chosen.scale})"


def anchor(chosen: Reproduction) -> str:
    """The heading's, as GitHub and the documentation site make it."""
    return re.sub(r"[^\w\- ]", "", heading(chosen).lower()).replace(" ", "-")


def table_section(chosen: Reproduction, home: Path) -> Iterator[str]:
    """A table or figure with its numbers, claims and doubts."""
    table, summary = chosen.table, chosen.summary()
    yield f"## {heading(chosen)}\n"
    seeds, published = summary["seeds"], table.seeds
    fewer = chosen.scale == "paper" and seeds < published
    command = f"fedkin reproduce {table.name} --scale {chosen.scale}" + (f" --seeds {seeds}" if fewer else "")
    yield f"`{command}`: {summary['reduced'] or 'as published'}."
    count = f"{seeds} of {published} seeds" if fewer else f"{seeds} seed{'s' if seeds != 1 else ''}"
    yield f"{count}, {duration(summary['seconds'])} of computing."
    yield f"{table.shows}\n"
    picture = chosen.picture
    if picture.exists():
        yield f"![{table.title}]({Path(os.path.relpath(picture, home)).as_posix()})\n"
    for title, lines in text.blocks(table, summary):
        if any(line[2] != "–" or line[3] != "–" for line in lines):
            yield from markdown((title, *text.CELL_HEAD[1:]), [line for line in lines if line[2:4] != ("–", "–")])
    found = text.shown_claims(table, summary)
    if found:
        yield "Claims:\n"
        yield from (f"- {says}: **{marks}**" for says, marks in found)
        yield ""
    yield from _remarks(summary, chosen)


def _remarks(summary: dict[str, Any], chosen: Reproduction) -> Iterator[str]:
    absent = {cell["verdict"] for cell in summary["cells"] if cell["verdict"].startswith(("not run:", "broke off"))}
    remarks = [*summary["uncertain"], *summary["notes"], *sorted(absent)]
    if summary["older_code"]:
        remarks.append(f"{summary['older_code']} cells were computed by an older version of the code.")
    if remarks:
        yield "Uncertain or noteworthy:\n"
        yield from (f"- {remark}" for remark in remarks)
        yield ""


def markdown(head: tuple[str, ...], lines: list[Any]) -> Iterator[str]:
    """A Markdown table and an empty line."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for line in lines:
        yield "| " + " | ".join(str(entry).replace("|", "\\|") for entry in line) + " |"
    yield ""


def not_run(done: set[str]) -> Iterator[str]:
    """Tables without results, and what their files say."""
    left = [find_table(name) for name in table_names() if name not in done]
    if left:
        yield "## Not run yet\n"
        for table in left:
            reasons = "; ".join(dict.fromkeys(missing(cells_of(table, "paper", 1)).values()))
            yield f"- {table.title} (`{table.name}`)" + (f": {reasons}" if reasons else "")
        yield ""
