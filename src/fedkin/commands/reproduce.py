"""fedkin reproduce: the published tables and figures, run again, beside what the papers print."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedkin.commands import flags
from fedkin.commands.run import INTERRUPTED

if TYPE_CHECKING:
    from fedkin.reproduction.cells import Cell
    from fedkin.reproduction.kept import Kept
    from fedkin.reproduction.reproduce import Reproduction

CELLS = "Cells"


def _option(*names: str, help: str, panel: str = flags.RUN, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


def reproduce(
    tables: Annotated[
        list[str] | None,
        typer.Argument(help="tables or figures (default: list them all)", metavar="[NAME...]", show_default=False),
    ] = None,
    scale: Annotated[
        str, _option("--scale", help="smoke (seconds), desk (about 20 minutes on two cores) or paper (as published)")
    ] = "desk",
    rows: Annotated[str | None, _option("--rows", help="only these methods", panel=CELLS, metavar="A,B")] = None,
    columns: Annotated[str | None, _option("--columns", help="only these settings", panel=CELLS, metavar="A,B")] = None,
    seeds: Annotated[int | None, _option("--seeds", help="how many seeds, instead of the scale's", panel=CELLS)] = None,
    any_code: Annotated[
        bool, _option("--any-code", help="keep cells that --verify found to be of other code", panel=CELLS)
    ] = False,
    jobs: Annotated[int | None, _option("--jobs", help="cells side by side (default: one per core)")] = None,
    out: Annotated[Path, _option("--out", help="where cells are kept", panel=flags.OUTPUT, metavar="DIR")] = Path(
        "results"
    ),
    verify: Annotated[
        bool, _option("--verify", help="try whether the code still does what it did; mark cells where not", panel=CELLS)
    ] = False,
    show: Annotated[bool, _option("--show", help="train nothing, show what is kept", panel=flags.OUTPUT)] = False,
    render: Annotated[
        Path | None,
        _option("--render", help="write the page about all kept results", panel=flags.OUTPUT, metavar="FILE.md"),
    ] = None,
    json: flags.Json = None,
) -> None:
    """Reproduce a published table or figure. Without a name: list them, what they need, and how long they take here.

    Cells that are kept are not computed again, unless --verify marked them; after an interruption the same command goes on.

    \b
    Examples:
      fedkin reproduce
      fedkin reproduce fedu.table1 --scale desk --columns har_convex
      fedkin reproduce fedpnp.table1 --scale paper --rows local,fedavg,soft_0005
      fedkin reproduce --render docs/reproduction.md
      fedkin reproduce --verify fedu.full
    """
    if render is not None:
        from fedkin.commands.show import wrote
        from fedkin.reproduction.page import write_page

        wrote(write_page(out, render))
        return
    from fedkin.reproduction.kept import Kept

    kept = Kept(out)
    if verify:
        write_verified(tables, kept, json)
        return
    if not tables:
        write_listing(kept, json)
        return

    def plan_of(name: str) -> Reproduction:
        from fedkin.reproduction.reproduce import plan

        return plan(name, scale, kept, _names(rows), _names(columns), seeds, any_code, download=True, showing=show)

    chosen = [plan_of(name) for name in tables]  # every fault is told before anything is computed
    done = True
    if not show:
        for name in tables:  # planned anew: the tables before may have computed some of its cells
            done = done and _run(plan_of(name), jobs)
    summaries = [plan.summary() for plan in chosen]
    for plan, summary in zip(chosen, summaries):
        print_summary(plan, summary)
    if json is not None:
        from fedkin.files import write_json

        write_json(json, {"tables": summaries})
    if not done:
        print("interrupted; the same command goes on where it stopped, nothing computed is lost", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _run(plan: Reproduction, jobs: int | None) -> bool:
    from fedkin.reproduction.reproduce import carry_out, cores

    for what, reason in plan.missing.items():
        print(f"left out {what}: {reason}", file=sys.stderr)
    kept = len(plan.found - {cell.key for cell in plan.todo})
    reduced = plan.table.reduction(plan.scale).says or "as published"
    side = min(cores() if jobs is None else jobs, max(1, len(plan.todo)))
    print(
        f"{plan.table.name} at {plan.scale} scale ({reduced}): {len(plan.todo)} cells to compute, {side} side by side; "
        f"{kept} kept in {plan.kept.folder}",
        file=sys.stderr,
    )
    with CellProgress(plan) as progress:
        return carry_out(plan, jobs, progress.tell)


class CellProgress:
    """Rounds done of all rounds, with the time left; where there is no terminal, a line per finished cell."""

    def __init__(self, plan: Reproduction) -> None:
        self.rounds: dict[str, int] = {cell.key: 0 for cell in plan.todo}
        self.total = sum(cell.rounds for cell in plan.todo)
        self.cells, self.finished, self.started = len(plan.todo), 0, time.monotonic()
        self.bar: Any = None

    def __enter__(self) -> CellProgress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        if sys.stderr.isatty() and self.total:
            text = TextColumn("{task.fields[news]}")
            self.bar = Progress(BarColumn(bar_width=24), TimeElapsedColumn(), text, console=Console(stderr=True))
            self.bar.start()
            self.work = self.bar.add_task("", total=self.total, news="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def tell(self, cell: Cell, kind: str, detail: Any) -> None:
        """What a cell has to say of itself (see `fedkin.reproduction.pool`)."""
        from fedkin.reports.wording import duration

        self.rounds[cell.key] = cell.rounds if kind == "done" else int(detail or 0) if kind == "round" else 0
        self.finished += kind == "done"
        done, spent = sum(self.rounds.values()), time.monotonic() - self.started
        left = duration(spent * (self.total - done) / done) if done else "?"
        news = f"{self.finished} of {self.cells} cells, about {left} left"
        if kind == "crashed":
            print(f"{cell.label} broke off ({detail}); run the command again to retry it", file=sys.stderr)
        if self.bar is not None:
            self.bar.update(self.work, completed=done, news=f"{news} · {cell.label}")
        elif kind == "done":
            print(f"{cell.label} done; {news}", file=sys.stderr)


def print_summary(plan: Reproduction, summary: dict[str, Any]) -> None:
    """The table with verdicts, the claims, the doubts."""
    from fedkin.commands.show import console, table
    from fedkin.reproduction import text

    screen = console()
    screen.print(f"\n{summary['title']} ({plan.scale}: {summary['reduced'] or 'as published'})")
    for title, lines in text.blocks(plan.table, summary):
        if any(line[2] != "–" or line[3] != "–" for line in lines):
            made = table(title, *text.CELL_HEAD[1:])
            made.columns[0].no_wrap = made.columns[-1].no_wrap = False
            made.columns[-1].justify = "left"
            for line in lines:
                made.add_row(*line)
            screen.print(made)
    for says, marks in text.shown_claims(plan.table, summary) if plan.scale != "smoke" else ():
        screen.print(f"• {says}\n    {marks}")
    if plan.table.kind == "figure":
        screen.print(f"published shape: {plan.table.shows}")
        if plan.picture.exists():
            screen.print(f"picture: {plan.picture}")
    if summary["older_code"]:
        screen.print(f"{summary['older_code']} cells are of an older version of the code (found by --verify)")
    for note in (*summary["notes"], *summary["uncertain"]):
        screen.print(f"note: {note}")


def write_verified(tables: list[str] | None, kept: Kept, json: Path | None) -> None:
    """Of every table: how many kept cells the code at hand would give again."""
    from fedkin.commands.show import console, table, working, wrote
    from fedkin.files import write_json
    from fedkin.reproduction.reproduce import verify
    from fedkin.reproduction.tables import find_table, table_names

    found = {}
    for name in [find_table(name).name for name in tables or table_names()]:
        with working(f"{name}: short runs …"):
            found[name] = verify(name, kept)
    made = table("name", "same", "outdated", "cannot be told", caption="kept cells; outdated ones are computed anew")
    for name, counts in found.items():
        if counts:
            made.add_row(name, *(str(counts[kind]) for kind in ("same", "outdated", "unknown")))
    console().print(made)
    if json is not None:
        write_json(json, {"tables": found})
        wrote(json)


def write_listing(kept: Kept, json: Path | None) -> None:
    """All tables and figures: what they need, what is kept, how long they take here."""
    from fedkin.commands.show import console, table, wrote
    from fedkin.files import write_json
    from fedkin.reports.wording import duration
    from fedkin.reproduction.estimate import listing

    found = listing(kept)
    made = table(
        "name",
        "desk",
        "paper",
        "kept",
        "needs",
        caption="times by the round of kept cells like these, wherever they were computed; >: some have none like them",
    )
    for entry in found:
        told = [(entry["seconds"][scale], entry["unknown"][scale]) for scale in ("desk", "paper")]
        times = [f"{'> ' if unknown else ''}{duration(seconds)}" if seconds else "–" for seconds, unknown in told]
        made.add_row(entry["name"], *times, ", ".join(entry["kept"]) or "–", entry["needs"])
    made.columns[-1].no_wrap, made.columns[-1].justify = False, "left"
    console().print(made)
    if json is not None:
        write_json(json, {"tables": found})
        wrote(json)
