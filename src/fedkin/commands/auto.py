"""fedkin auto and fedkin join: for every client the best model that collaboration can give."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedkin.commands import flags

if TYPE_CHECKING:
    from rich.table import Table

    from fedkin.portfolio.progress import Done
    from fedkin.result import Result

CLIENTS_SHOWN = 50
"""How many clients the terminal shows."""
WIDE = 110
"""Columns of a terminal in which a client needs one line."""

Out = Annotated[Path | None, flags.out_folder("folder for the result and its report (default: a new one in runs/)")]


@flags.take_settings
def auto(
    given: dict[str, Any],
    effort: Annotated[
        str, typer.Option("--effort", help="quick, standard or thorough", rich_help_panel=flags.METHOD)
    ] = "standard",
    distil: Annotated[
        bool,
        typer.Option(
            "--distil",
            help="one network of the original size per client, with what it costs",
            rich_help_panel=flags.METHOD,
        ),
    ] = False,
    out: Out = None,
    json: flags.Json = None,
) -> None:
    """For every client the best model that collaboration can give, or its own where that seems better; nothing has to be chosen.

    \b
    Examples:
      fedkin auto --csv visits.csv --client hospital --target died
      fedkin auto --data digits --clients 20 --effort quick
      fedkin auto --data school --seed 1 --out runs/schools --json schools.json
      fedkin auto --data digits --clients 20 --effort quick --distil
    """
    from fedkin import config
    from fedkin.commands.run import new_folder, short_name
    from fedkin.commands.show import working
    from fedkin.local.sgd import Sgd
    from fedkin.portfolio.auto import auto as find

    layers = [config.read_toml(given["file"]) if given["file"] else {}, flags.layer(**given)]
    settings = config.settle(layers, flags.assignments(given), default=("local",))
    with working(f"loading {settings.data.name} …"):
        federation = settings.federation(settings.seeds[0])
    training = next(iter(settings.algorithms.values()))
    chosen = training.model_dump(include=training.model_fields_set & set(Sgd.model_fields))
    rest = settings.options[0].model_dump(exclude_unset=True)
    folder = out or new_folder(f"{short_name(settings)}-auto-seed{settings.seeds[0]}")
    with Members.of({**rest, **chosen, "effort": effort}) as watch:
        result = find(federation, settings.model, effort, out=folder, watch=watch, distil=distil, **{**rest, **chosen})  # type: ignore[arg-type]
    finish_auto(result, folder, json)


def join(
    run: Annotated[Path, typer.Argument(help="folder of a result of fedkin auto", metavar="RUN", show_default=False)],
    csv: Annotated[Path, typer.Option("--csv", help="the newcomers' table", metavar="FILE", show_default=False)],
    client: Annotated[
        str | None, typer.Option("--client", help="column that names the client (default: as in the run)")
    ] = None,
    target: Annotated[str | None, typer.Option("--target", help="column to predict (default: as in the run)")] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="seed of the newcomers' training (default: the run's)", show_default=False),
    ] = None,
    add: Annotated[bool, typer.Option("--add", help="add them to the run, for those that come next")] = False,
    out: Out = None,
    json: flags.Json = None,
) -> None:
    """Models for clients that come later, without a round of the others.

    \b
    Examples:
      fedkin join runs/visits-auto-seed0 --csv new.csv
      fedkin join runs/visits-auto-seed0 --csv new.csv --add
    """
    from fedkin.commands import show
    from fedkin.commands.run import new_folder
    from fedkin.commands.show import working
    from fedkin.portfolio.join import join as find
    from fedkin.portfolio.newcomers import read_newcomers
    from fedkin.result import load

    result = load(run)
    newcomers = read_newcomers(result, csv, client, target)
    with working(f"finding models for {', '.join(newcomers.names)} …"):
        joined = find(result, newcomers, seed=seed)
    folder = out or new_folder(f"{Path(run).name}-newcomers")
    joined.save(folder)
    finish_auto(joined, folder, json)
    if add:
        show.say(f"added to {result.grown(joined).save(run)}: {', '.join(joined.names)}")


class Members:
    """Progress: which member is being trained, and about how long all of it will take."""

    def __init__(self, done: Done | None) -> None:
        self.done = done

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Members:
        """With an estimate by effort, rounds and steps; other efforts are refused elsewhere."""
        from fedkin.portfolio.auto import TRAINING
        from fedkin.portfolio.effort import EFFORTS
        from fedkin.portfolio.progress import Done

        effort = EFFORTS.get(str(settings.get("effort")))
        length = int(settings.get("rounds") or 30), int(settings.get("steps") or TRAINING["steps"])
        return cls(None if effort is None else Done(effort, *length))

    def __enter__(self) -> Members:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        left = (
            TextColumn("about"),
            TimeRemainingColumn(),
            TextColumn("left,"),
            TimeElapsedColumn(),
            TextColumn("so far"),
        )
        columns = TextColumn("{task.description}"), BarColumn(), *left
        self.progress = Progress(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=600)
        self.task = self.progress.add_task("choosing a learning rate", total=1.0)
        self.progress.start()
        return self

    def __call__(self, member: str, round: int, rounds: int) -> None:
        share = 0.0 if self.done is None else self.done.share(member, round, rounds)
        self.progress.update(self.task, description=f"training {member} on folds", completed=share)

    def __exit__(self, *_: object) -> None:
        self.progress.stop()


def finish_auto(result: Result, folder: Path, json: Path | None) -> None:
    """The table, the sentence, and where everything is."""
    import numpy as np

    from fedkin.commands import show
    from fedkin.files import write_json
    from fedkin.result.records import run_record
    from fedkin.result.result import DENSE
    from fedkin.result.summary import coverage
    from fedkin.result.verdict import distilled_text, sentence

    metric = result.task.headline_metric
    screen = show.console()
    screen.print(clients_table(result, screen.width))
    screen.print(sentence(result), highlight=False)
    show.say(
        f"alone, together: {metric.heading} on test samples, {metric.better}",
        "gain: expected, in loss per sample, with its 95 % interval; from training samples alone",
    )
    if "distilled" in result.facts:
        show.say(distilled_text(result))
    if missing := coverage(metric.label, result.valued, len(result.names)):
        show.say(missing)
    if len(result.names) > CLIENTS_SHOWN:
        show.say(f"{CLIENTS_SHOWN} of {len(result.names)} clients are shown; fedkin report {folder} shows all")
    for note in result.notes:
        show.say(f"note: {note}")
    if json is not None:
        record = run_record(result) | {"auto": result.auto, "headline": sentence(result)}
        kin = {"kin": np.asarray(result.kin).tolist()} if len(result.names) <= DENSE and result.kin is not None else {}
        write_json(json, record | kin)
    show.wrote(json)
    show.wrote(folder)


def clients_table(result: Result, width: int) -> Table:
    """One line per client; numbers are never cut. On a narrow screen members and kin stand below each other."""
    from fedkin.commands import show
    from fedkin.result.verdict import combination, gain_text, kin_of

    metric, between = result.task.headline_metric, ", " if width >= WIDE else "\n"
    table = show.table("client", "n", "alone", "together", "gain", "model", "kin")
    for column in table.columns[5:]:
        column.justify, column.no_wrap, column.overflow, column.min_width = "left", False, "fold", 13
    table.columns[0].max_width = 20 if width >= WIDE else 14
    for k, name in enumerate(result.names[:CLIENTS_SHOWN]):
        told = result.auto[name]
        table.add_row(
            name,
            str(int(result.sizes[k])),
            metric.number(result.facts["alone"][result.metric][k]),
            metric.number(result.metrics["deployed"][result.metric][k]),
            gain_text(told),
            between.join(combination(told, most=2)),
            between.join(kin_of(result, k, most=2)),
        )
    return table
