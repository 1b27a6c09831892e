"""fedkin tune: parameters by trial, on samples held out of training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkin.commands import flags

TRIALS_SHOWN = 10
"""How many trials the terminal shows."""


@flags.take_settings
def tune(
    given: dict[str, Any],
    algorithm: Annotated[
        str | None,
        flags.option("--algorithm", "the method, see: fedkin algorithms (default: fedavg)", flags.METHOD),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials",
            min=1,
            help="how many choices to try (default: all combinations of lists, or 20)",
            rich_help_panel=flags.RUN,
            show_default=False,
        ),
    ] = None,
    folds: Annotated[
        int, typer.Option("--folds", min=2, help="cut training samples into so many folds", rich_help_panel=flags.RUN)
    ] = 4,
    used: Annotated[
        int, typer.Option("--used", min=1, help="hold out so many of them in turn", rich_help_panel=flags.RUN)
    ] = 1,
    out: Annotated[
        Path | None,
        flags.out_folder(
            "folder for trials, plot and best.toml (default: a new one in runs/); the same command goes on there"
        ),
    ] = None,
    json: flags.Json = None,
) -> None:
    """Search a method's parameters by trial, judged on samples held out of training; test samples are never seen.

    Lists and ranges say what to try, here or in the TOML file: mu = [0.01, 0.1], lr = "0.01..0.3".

    \b
    Examples:
      fedkin tune --data digits --algorithm fedprox --set mu=[0.01,0.1,1]
      fedkin tune --csv visits.csv --client site --target y --set lr=0.003..0.3
      fedkin tune experiment.toml --folds 5 --used 5 --out runs/search
    """
    from fedkin import config
    from fedkin.commands import show
    from fedkin.commands.run import new_folder, short_name
    from fedkin.files import write_json
    from fedkin.tuning import tune as find

    told: list[config.Layer] = [
        config.read_toml(given["file"]) if given["file"] else {},
        flags.layer(**given, algorithm=algorithm),
    ]
    layers, space = config.search(told, flags.assignments(given))
    settings = config.settle(layers)
    with show.working(f"loading {settings.data.name} …"):
        federation = settings.federation(settings.seeds[0])
    method, options = next(iter(settings.algorithms.values())), settings.options[0]
    folder = out or new_folder(f"{short_name(settings)}-{method.name}-tune-seed{options.seed}")
    rest = options.model_dump(exclude_unset=True)
    cut = {"trials": trials, "folds": folds, "used": used}
    try:
        found = find(federation, settings.model, method, space or None, **cut, graph=settings.graph, out=folder, **rest)  # type: ignore[arg-type]
    except KeyboardInterrupt:
        show.say(f"interrupted; the same command with --out {folder} goes on where it stopped")
        raise
    table = found.table().reset_index()
    shown = show.table(*map(str, table.columns), title=f"{method.title}: {found.metric.heading} on samples held out")
    for row in table.head(TRIALS_SHOWN).itertuples(index=False):
        shown.add_row(*(_cell(v, found.metric.number if c == found.metric.key else None) for c, v in zip(table, row)))
    show.console().print(shown)
    if len(table) > TRIALS_SHOWN:
        show.say(f"{TRIALS_SHOWN} of {len(table)} trials are shown; {folder / 'trials.csv'} has all")
    reasons = dict.fromkeys(trial.reason for trial in found.trials if trial.reason)
    for reason in list(reasons)[:3]:
        show.say(f"failed: {reason}")
    best = ", ".join(f"{name} = {value}" for name, value in found.best.items())
    show.say(f"best: {best}; judge it on test samples with: fedkin run {folder / 'best.toml'}")
    if json is not None:
        write_json(json, found.to_dict())
    show.wrote(json)
    show.wrote(folder)


def _cell(value: Any, number: Callable[[float], str] | None) -> str:
    if isinstance(value, float):
        return number(value) if number else "–" if value != value else f"{value:.4g}"
    return str(value)
