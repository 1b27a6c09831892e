"""fedkin compare: several methods, several seeds, one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedkin.commands import flags
from fedkin.commands.run import INTERRUPTED

if TYPE_CHECKING:
    from fedkin.comparison import Comparison
    from fedkin.config import Experiment
    from fedkin.result.contenders import Standing
    from fedkin.run.callbacks import Callback


@flags.take_settings
def compare(
    given: dict[str, Any],
    algorithms: Annotated[
        str | None,
        flags.option("--algorithms", "methods, separated by commas (default: all that fit)", flags.METHOD, "A,B,C"),
    ] = None,
    seeds: Annotated[
        str | None,
        flags.option("--seeds", "how many seeds, or a list such as 1,2,5 (default: 1)", flags.RUN),
    ] = None,
    robust: flags.Guard = None,
    out: Annotated[
        Path | None,
        flags.out_folder("keep every run in DIR; finished ones are not trained again"),
    ] = None,
    json: flags.Json = None,
) -> None:
    """Compare methods: who does best, and which clients gain against training alone.

    The seed varies training and, unless --data-seed fixes it, the partition. Local is always run, for the gains.

    \b
    Examples:
      fedkin compare --data digits --clients 20 --algorithms fedavg,fedprox
      fedkin compare --csv visits.csv --client site --target y --seeds 3
      fedkin compare --data digits --algorithms local,auto --set auto.effort=quick
      fedkin compare experiment.toml --set fedprox.mu=0.1 --out results
    """
    from fedkin import config
    from fedkin.algorithms import names

    listed = None if algorithms is None else [name.strip() for name in algorithms.split(",") if name.strip()]
    flag = flags.layer(**given, algorithms=listed, seeds=seeds)
    layers = [config.read_toml(given["file"]) if given["file"] else {}, flag]
    everything = not any(layer.get(key) for layer in layers for key in ("algorithm", "algorithms"))
    settings = config.settle(layers, flags.assignments(given, robust), names(), with_auto=True)
    comparison = run_comparison(settings, out, skip_unfit=everything)
    finish_comparison(comparison, settings, json)
    from fedkin.commands import show

    show.wrote(out)


def run_comparison(settings: Experiment, out: Path | None = None, skip_unfit: bool = False) -> Comparison:
    """Train everything, with one progress bar per method."""
    from fedkin.commands.show import working
    from fedkin.comparison import train_all

    def federation(seed: int) -> Any:
        with working(f"loading {settings.data.name} …"):
            return settings.federation(seed)

    algorithms, options = list(settings.algorithms.values()), settings.options
    listed = [*settings.algorithms, *(["auto"] if settings.auto else [])]
    with Bars(listed, settings.seeds, options[0].rounds) as bars:
        watch, auto = bars.watch, settings.auto
        found = train_all(federation, settings.model, algorithms, options, settings.graph, out, skip_unfit, watch, auto)
        bars.complete(found)
    return found


def finish_comparison(comparison: Comparison, settings: Experiment, json: Path | None) -> None:
    """Print the table, write the JSON, and end with the right exit code."""
    from fedkin.commands import show
    from fedkin.files import write_json

    if not comparison.finished:
        show.say("interrupted; with --out, the same command goes on where it stopped")
        raise typer.Exit(INTERRUPTED)
    show.console().print(show.comparison_table(comparison))
    for name, reason in comparison.skipped.items():
        show.say(f"skipped {name}: {reason}")
    for note in dict.fromkeys(note for result in comparison.results for note in result.notes):
        show.say(f"note: {note}")
    if json is not None:
        write_json(json, {"config": resolved(settings), **comparison.to_dict()})
        show.wrote(json)
    if comparison.failed:
        from fedkin.errors import FedkinError

        first = comparison.failed[0]
        raise FedkinError(
            f"{len(comparison.failed)} runs broke off, first {first['algorithm']} with seed {first['seed']}: {first['reason']}"
        )


def resolved(settings: Experiment) -> dict[str, Any]:
    """The settings of a comparison as they were resolved."""
    return {
        "data": settings.data.model_dump(),
        "model": settings.model,
        "graph": settings.graph,
        "algorithms": {name: method.model_dump() for name, method in settings.algorithms.items()}
        | ({} if settings.auto is None else {"auto": settings.auto.model_dump(exclude_unset=True)}),
        "run": settings.options[0].model_dump(exclude={"seed"}),
        "seeds": settings.seeds,
    }


class Bars:
    """One progress bar per method, over all seeds, on standard error, from the first round on."""

    def __init__(self, methods: Sequence[str], seeds: Sequence[int], rounds: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.seeds, self.rounds = list(seeds), rounds
        self.progress = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"),
            console=Console(stderr=True),
        )
        order = dict.fromkeys(["local", *methods])
        total = rounds * len(self.seeds)
        self.bars = {name: self.progress.add_task(name, total=total, start=False, news="") for name in order}

    def __enter__(self) -> Bars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def watch(self, name: str, seed: int) -> list[Callback]:
        from fedkin.run.callbacks import Callback

        bar, before = self.bars[name], self.seeds.index(seed) * self.rounds
        progress = self.progress

        class Advance(Callback):
            def on_start(self, run: Any) -> None:
                progress.start()
                progress.start_task(bar)
                progress.update(bar, completed=before + run.state.round, news=f"seed {seed}")

            def on_round(self, run: Any, record: Any) -> None:
                progress.update(bar, completed=before + record["round"])

        return [Advance()]

    def complete(self, comparison: Comparison) -> None:
        """Bars of runs that were read from disk, or left out."""
        for name, bar in self.bars.items():
            done = sum(result.facts["rounds"] for result in comparison.results if result.algorithm == name)
            line = next((line for line in comparison.lines if line.algorithm == name), None)
            news = "does not fit" if line is None else _news(comparison, line)
            self.progress.update(bar, completed=done, news=news)
            self.progress.stop_task(bar)


def _news(comparison: Comparison, line: Standing) -> str:
    metric = comparison.results[0].task.headline_metric
    return f"{metric.label} {metric.amount(line.deployed['mean'])}"
