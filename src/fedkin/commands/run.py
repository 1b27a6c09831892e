"""fedkin run, fedkin resume."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedkin.commands import flags

if TYPE_CHECKING:
    from fedkin.config import Experiment
    from fedkin.federation import Federation
    from fedkin.result import Result
    from fedkin.task import Task

INTERRUPTED = 130


@flags.take_settings
def run(
    given: dict[str, Any],
    algorithm: Annotated[
        str | None,
        flags.option("--algorithm", "the method, see: fedkin algorithms (default: fedavg)", flags.METHOD),
    ] = None,
    robust: flags.Guard = None,
    rows_file: flags.RowsPath = None,
    out: Annotated[
        Path | None,
        flags.out_folder("folder for checkpoints and result (default: a new one in runs/)"),
    ] = None,
    start: Annotated[
        Path | None,
        flags.option("--from", "begin from the rows of this run, where shapes agree", flags.RUN, "RUN"),
    ] = None,
    json: flags.Json = None,
    tensorboard: Annotated[
        Path | None,
        flags.option("--tensorboard", "write scalars for TensorBoard", flags.OUTPUT, "DIR"),
    ] = None,
    track: Annotated[
        list[str] | None,
        flags.option(
            "--track", "tell mlflow, wandb, trackio or tensorboard; wandb:project (repeatable)", flags.OUTPUT, "NAME"
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="say what would be trained and where each setting comes from, then stop",
            rich_help_panel=flags.OUTPUT,
        ),
    ] = False,
) -> None:
    """Train one method: one model per client.

    \b
    Examples:
      fedkin run --data digits --clients 20 --algorithm fedavg --rounds 30
      fedkin run --data digits --partition labels:2 --clients 10 --explain
      fedkin run --csv visits.csv --client site --target outcome --set lr=0.1
      fedkin run experiment.toml --seed 1 --json result.json
    """
    from fedkin import config
    from fedkin.commands.show import working
    from fedkin.run import begin
    from fedkin.run.callbacks import Callback, Progress
    from fedkin.run.trackers import TensorBoard, find_trackers

    layers = {
        "file": config.read_toml(given["file"]) if given["file"] else {},
        "flag": flags.layer(**given, algorithm=algorithm, rows_file=rows_file),
    }
    assignments = flags.assignments(given, robust)
    settings = config.settle([*layers.values()], assignments)
    if len(settings.algorithms) > 1:
        raise typer.BadParameter("the file lists several methods; choose one with --algorithm, or use fedkin compare")
    with working(f"loading {settings.data.name} …"):
        federation = settings.federation(settings.seeds[0])
    if explain:
        _explain(settings, federation, layers, assignments)
        return
    (chosen,), options = settings.algorithms.values(), settings.options[0]
    callbacks: list[Callback] = [Progress(), *([TensorBoard(tensorboard)] if tensorboard else [])]
    callbacks += find_trackers(track or [])
    folder = out or new_folder(f"{short_name(settings)}-{chosen.name}-seed{options.seed}")
    result = begin(federation, settings.model, chosen, options, settings.graph, folder, callbacks, start)
    _finish(result, folder, json)


def resume(
    folder: Annotated[Path, typer.Argument(help="the run's folder", metavar="RUN", show_default=False)],
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="train up to this round instead", show_default=False)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="check that the run has this seed; a run keeps its own", show_default=False),
    ] = None,
    rows_file: flags.RowsPath = None,
    ray_address: flags.RayAddress = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            "--ledger", help="the run's privacy ledger, where that lies outside of its folder", metavar="FILE"
        ),
    ] = None,
    accept_changes: Annotated[
        bool,
        typer.Option("--accept-changes", help="go on although files were changed by hand, or another fedkin began it"),
    ] = False,
    json: flags.Json = None,
) -> None:
    """Go on with an interrupted run; the numbers are those of an uninterrupted one.

    \b
    Examples:
      fedkin resume runs/digits-fedavg-seed0
      fedkin resume runs/digits-fedavg-seed0 --rounds 200 --json result.json
    """
    from fedkin import run as runs
    from fedkin.config import read_toml
    from fedkin.errors import FedkinError
    from fedkin.run.callbacks import Progress

    if seed is not None and (own := read_toml(folder / "config.toml").get("run", {}).get("seed")) != seed:
        raise FedkinError(f"{folder} was started with seed {own}; a resumed run keeps its seed, drop --seed")
    if (folder / "members").is_dir():
        from fedkin.commands import auto as together
        from fedkin.portfolio.auto import go_on

        told = read_toml(folder / "config.toml")
        with together.Members.of({**told.get("run", {}), **told.get("algorithm", {})}) as watch:
            result = go_on(folder, watch)
        together.finish_auto(result, folder, json)
        return
    engine = None if ray_address is None else {"address": ray_address}
    result = runs.resume(
        folder,
        rounds=rounds,
        callbacks=[Progress()],
        rows_file=rows_file,
        ledger=ledger,
        engine_options=engine,
        accept_changes=accept_changes,
    )
    _finish(result, folder, json)


def _finish(result: Result, folder: Path, json: Path | None) -> None:
    from fedkin.commands import show
    from fedkin.files import write_json
    from fedkin.reports.wording import human_bytes
    from fedkin.result.records import failures, run_record

    screen = show.console()
    screen.print(f"{result.title} on {len(result.names)} clients, {result.facts['rounds']} rounds")
    for part in show.result_tables(result):
        screen.print(part)
    facts = result.facts
    screen.print(f"{human_bytes(facts['bytes'])} exchanged, {facts['seconds']:.1f} s training")
    for note in result.notes:
        show.say(f"note: {note}")
    failed = failures(result)
    if failed:
        first = failed[0]
        show.say(
            f"{len(failed)} failures of clients, first {first['client']!r} in round {first['round']}: {first['reason']}"
        )
    if json is not None:
        write_json(json, run_record(result))
    show.wrote(json)
    show.wrote(folder)
    if not result.facts["finished"]:
        raise typer.Exit(INTERRUPTED)


def short_name(settings: Experiment) -> str:
    """The data in a word, for the name of a folder."""
    path = getattr(settings.data, "path", None)
    return Path(path).stem if path else settings.data.name.rpartition(":")[2]


def new_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2, … if there is one already."""
    candidates = (Path("runs") / (name if k == 1 else f"{name}-{k}") for k in count(1))
    return next(folder for folder in candidates if not folder.exists())


def _learning(task: Task) -> dict[str, Any]:
    """What will be minimised and how it will be judged, as resolved for this task."""
    return {
        "loss": task.loss,
        "class_weight": None if task.class_weight is None else ", ".join(f"{w:.3g}" for w in task.class_weight),
        "label_smoothing": task.label_smoothing or None,
        "metrics": ", ".join(task.metrics),
        "headline": f"{task.headline} ({task.headline_metric.better})",
    }


def _explain(
    settings: Experiment, federation: Federation, layers: Mapping[str, Any], assignments: Mapping[str, Any]
) -> None:
    """What would be trained, and where every setting comes from."""
    from fedkin.commands import show
    from fedkin.commands.algorithms import reference
    from fedkin.commands.parts import explained_model
    from fedkin.config import origins
    from fedkin.run import with_learning

    screen = show.console()
    (name, method), options = next(iter(settings.algorithms.items())), settings.options[0]
    found = show.table("setting", "value", "from", title=f"fedkin would train {method.title} on {federation}")
    found.columns[1].justify = found.columns[2].justify = "left"

    def add(section: str, values: Mapping[str, Any], source: Mapping[str, str]) -> None:
        for key, value in values.items():
            if value is not None:
                found.add_row(f"{section}.{key}", str(value), source.get(key, "default"))

    add("data", settings.data.model_dump(), origins(layers, "data"))
    add("model", {"name": settings.model}, origins(layers, "model"))
    own = origins(layers, "training") | origins(layers, "algorithm")
    own |= origins({k: {"x": v.get("algorithms", {}).get(name, {})} for k, v in layers.items()}, "x")
    add(name, method.model_dump(), own | {key.rpartition(".")[2]: "flag" for key in assignments})
    graph = settings.graph or (
        None if method.default_graph() is None else "the data's own" if federation.graph else method.default_graph()
    )
    add("graph", {"name": graph}, origins(layers, "graph"))
    federation = with_learning(federation, options)
    add("run", {**options.model_dump(), **_learning(federation.task)}, origins(layers, "run"))
    screen.print(found)
    for line in explained_model(federation, settings.model, method, options):
        screen.print(line, highlight=False, markup=False)
    for note in federation.notes:
        show.say(f"note: {note}")
    show.say(*([f"reference: {reference(type(method))}"] if reference(type(method)) else []))
