"""train and resume: a run from what a user has at hand, or from its directory."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedkin import algorithms, data
from fedkin.algorithm import Algorithm
from fedkin.clients import Clients
from fedkin.compute.placement import Placement
from fedkin.engines import connect
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.federation.federation import retold
from fedkin.federation.folds import folded, without_fold
from fedkin.federation.notices import of_numbers
from fedkin.files import OWN_FUNCTION
from fedkin.graphs import ClientGraph
from fedkin.models import ModelLike
from fedkin.result import Result
from fedkin.result.stored import read_config
from fedkin.roster import Roster
from fedkin.run import checkpoint, judging, range_test
from fedkin.run.callbacks import Callback, Progress, as_callbacks, shows_progress
from fedkin.run.directory import RunDirectory, trusted_options, trusted_parameters
from fedkin.run.earlier import Earlier
from fedkin.run.loop import Run
from fedkin.run.model import model_of_run
from fedkin.run.options import Options, make_options
from fedkin.run.trackers import find_trackers
from fedkin.streams import Streams
from fedkin.task.choice import chosen, for_rare_class


def make_run(
    federation: Federation,
    model: ModelLike,
    algorithm: Algorithm,
    options: Options,
    graph: ClientGraph | str | None = None,
    out: Path | None = None,
    callbacks: Sequence[Callback] = (),
    start: str | Path | None = None,
    began: tuple[Path, Mapping[str, Any]] | None = None,
) -> Run:
    """A run on clients whose data are in this process, or shared from it by the engine; `began`: see `model_of_run`."""
    federation = with_learning(federation, options)
    said = []
    if options.range_test and began is None:  # a run that goes on has its training in config.toml
        algorithm, line = _range_tested(federation, model, algorithm, options, graph, start)
        said.append(line)
    spec = model_of_run(algorithm, model, federation.names, federation.task, options, began)
    far = options.engine != "in_process"
    asked = options.device, options.precision, options.dtype
    placed = replace(spec, placement=Placement.chosen(*asked, elsewhere=far))
    placed = placed if far else placed.placed()
    ours = spec if far else placed  # other processes have devices of their own; rows that travel are mixed on the CPU
    earlier = None if start is None else Earlier.read(start, None if isinstance(model, str) else model)

    def connected(of: Federation) -> Clients:
        return connect(options.engine, of, placed, Streams(options.seed), options.workers, options.engine_options)

    clients = connected(federation)
    with ours.placement.here():
        run = Run(federation.roster(), clients, ours, algorithm, options, graph, out, callbacks, earlier)
    run.notes += said

    def held() -> tuple[Roster, Clients]:
        cut = folded(federation, judging.JUDGING_FOLDS, 1, options.seed)
        return cut.roster(), connected(cut)

    if judging.is_wanted(run.roster, algorithm, options, earlier):
        run.judging = lambda: judging.judge_of(run, held)
    return run


def _range_tested(
    federation: Federation,
    model: ModelLike,
    algorithm: Algorithm,
    options: Options,
    graph: ClientGraph | str | None,
    start: str | Path | None,
) -> tuple[Algorithm, str]:
    range_test.refuse(algorithm)
    cut = without_fold(federation, range_test.TRIAL_FOLDS, 0, options.seed)
    brief = range_test.short(options)
    with warnings.catch_warnings(action="ignore"):  # what there is to say is said of the run
        return range_test.best_way(algorithm, lambda way: make_run(cut, model, way, brief, graph, start=start).run())


def with_learning(federation: Federation, options: Options) -> Federation:
    """The federation with the loss and metrics that the options ask for; what does not fit its task is refused.

    Data of the user's own with a rare class are judged by AUROC unless metrics are named; named data sets are not, so that
    their numbers stay comparable.
    """
    counts = federation.class_counts()
    if any(options.learning.values()):
        task = chosen(federation.task, **options.learning, counts=counts)
        federation = federation if task == federation.task else retold(federation, task=task)
        _refuse_negative_rates(federation)
    own = federation.source.get("name", "csv") == "csv"
    if own and (said := [note for note in of_numbers(federation) if note not in federation.notes]):
        federation = replace(federation, notes=(*federation.notes, *said))
    if own and not options.metrics and not options.headline and (found := for_rare_class(federation.task, counts)):
        task, note = found
        federation = retold(federation, task=task, notes=(*federation.notes, note))
    return federation


def _refuse_negative_rates(federation: Federation) -> None:
    """Where outputs are logarithms of rates, a negative target would pull its rate below any number."""
    train = federation.train
    if federation.task.link != "exp" or not len(train.y) or train.y.min() >= 0:
        return
    row = int((train.y.reshape(len(train.y), -1).min(axis=1) < 0).argmax())
    name = federation.names[int(train.offsets.searchsorted(row, side="right")) - 1]
    raise FedkinError(
        f"client {name!r}: loss {federation.task.loss!r} needs counts, 0 or more, but has the target "
        f"{train.y[row].min():g}; take 'mse' or 'mae'"
    )


def begin(
    federation: Federation,
    model: ModelLike,
    algorithm: Algorithm,
    options: Options,
    graph: ClientGraph | str | None = None,
    out: Path | None = None,
    callbacks: Sequence[Callback] = (),
    start: str | Path | None = None,
) -> Result:
    """`train`, with everything made. A directory that already holds a run is refused."""
    if out is not None and checkpoint.latest(out) is not None:
        raise FedkinError(f"{out} already holds a run; resume it, or choose another directory")
    return make_run(federation, model, algorithm, options, graph, out, callbacks, start).run()


def train(
    federation: Federation,
    model: ModelLike = "mlp",
    algorithm: Algorithm | type[Algorithm] | str = "fedavg",
    graph: ClientGraph | str | None = None,
    rounds: int = 50,
    seed: int = 0,
    engine: str = "in_process",
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    start: str | Path | None = None,
    track: str | Sequence[str] = (),
    progress: bool | None = None,
    privacy: Mapping[str, Any] | None = None,
    robust: str | None = None,
    **options: Any,
) -> Result:
    """Train one model per client.

    `model` is a callable that returns an nn.Module, a module (copied), or the name of a built-in network; `algorithm` an object from
    `fedkin.algorithms` or a name; `graph` a ClientGraph, a builder ("knn:5") or a file; `out` a directory for
    checkpoints and the result; `start` the directory of an earlier run, whose rows are taken over where shapes agree: by name, and
    their mean for clients that came since; `track` names trackers (mlflow, wandb, trackio, tensorboard). A
    `progress` bar is shown at a terminal and in notebooks unless told otherwise; `privacy` is a table such as
    {"level": "sample", "epsilon": 6, "delta": 1e-5, "clip": 1.0} (docs/private-training.md) and `robust` a guard against hostile
    clients such as "clip" (docs/robustness.md): parameters of the method, as in `FedAvg(robust="clip")`.
    `options` are the fields of `Options`: loss, metrics, headline, fraction, eval_every, …

    >>> from fedkin import data, train
    >>> federation = data.load("digits", clients=5, partition="dirichlet:0.3", seed=0)
    >>> train(federation, "mlr", "fedavg", rounds=2)  # doctest: +ELLIPSIS
    Result(FedAvg, 5 clients, 2 rounds, test accuracy pre ... post ...)
    """
    asked = {"privacy": privacy, "robust": robust}
    also = {name: value for name, value in asked.items() if value is not None}
    method = algorithms.method_of(algorithm)
    if also:
        method = algorithms.with_parameters(method, **also)
    chosen = make_options(rounds=rounds, seed=seed, engine=engine, **options)
    shown = [Progress()] if shows_progress(progress) else []
    told = [*shown, *as_callbacks(callbacks), *find_trackers(track)]
    return begin(federation, model, method, chosen, graph, None if out is None else Path(out), told, start)


def resume(
    directory: str | Path,
    federation: Federation | None = None,
    model: ModelLike | None = None,
    algorithm: Algorithm | None = None,
    callbacks: Sequence[Callback] = (),
    rounds: int | None = None,
    loss: Any = None,
    augment: Any = None,
    device: str | None = None,
    rows_file: str | Path | None = None,
    engine_options: Mapping[str, Any] | None = None,
    accept_changes: bool = False,
    ledger: str | Path | None = None,
) -> Result:
    """Go on with an interrupted run from its last good checkpoint; the numbers are those of an uninterrupted run.

    A federation, model, algorithm, loss or augmentation of the user's own must be given again; named ones are built from config.toml.
    `rounds` extends the run, `device` moves it to another device. What leads out of the directory must be given again, too: a
    `rows_file` or a privacy `ledger` elsewhere, the address of a cluster. Files that were changed since fedkin wrote them are
    refused unless you accept the changes.
    """
    out = Path(directory)
    config = read_config(out)
    RunDirectory(out).refuse_changes(accept_changes)
    if checkpoint.latest(out, accept_changes) is None:
        raise FedkinError(f"{out} holds no intact checkpoint; start the run again")
    options = trusted_options(out, config["run"], None if rows_file is None else str(rows_file), engine_options)
    source = dict(config["data"])
    source.pop("fingerprint", None)
    if federation is None:
        if not source:
            raise FedkinError(f"{out} was trained on a federation of your own; pass it: resume(dir, federation=…)")
        federation = loaded_data(out, source)
    if model is None:
        if config["model"]["name"] == "custom":
            raise FedkinError(f"{out} was trained with a model of your own; pass it: resume(dir, model=…)")
        model = config["model"]["name"]
    if algorithm is None:
        parameters = trusted_parameters(out, config["algorithm"], None if ledger is None else str(ledger))
        for name, value in parameters.items():
            if str(value).startswith(OWN_FUNCTION):
                raise FedkinError(
                    f"{out} was trained with a function of your own ({name} = {value.removeprefix(OWN_FUNCTION)}); "
                    "pass the algorithm again: resume(dir, algorithm=…)"
                )
        algorithm = algorithms.make(parameters.pop("name"), parameters)
    graph = ClientGraph.load(out / "graph.npz") if "file" in config["graph"] else None
    settings = {**options, **({} if rounds is None else {"rounds": rounds})}
    settings |= {} if device is None else {"device": device}
    for what, given in (("loss", loss), ("augment", augment)):
        settings |= {} if given is None else {what: given}
        if str(settings.get(what)).startswith(OWN_FUNCTION):
            raise FedkinError(f"{out} was trained with a {what} of your own; pass it: resume(dir, {what}=…)")
    run = make_run(federation, model, algorithm, make_options(**settings), graph, out, callbacks, began=(out, config))
    run.take_up(accept_changes)
    return run.run()


def loaded_data(out: Path, source: Mapping[str, Any]) -> Federation:
    """The data that config.toml names."""
    try:
        return data.load(**source)
    except TypeError as problem:  # crafted: arguments that no data set has
        raise FedkinError(f"{out}: config.toml does not name data that can be loaded: {problem}") from problem
