"""auto: for every client the best model that collaboration can give, or its own where that seems better."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from fedkin import algorithms
from fedkin.clients import Clients
from fedkin.engines import connect
from fedkin.errors import FedkinError, unknown
from fedkin.federation import Federation
from fedkin.federation.folds import folded, whole_training
from fedkin.graphs.directed import peers_of
from fedkin.local.sgd import Sgd, by_field
from fedkin.models import ModelLike, ModelSpec, estimators
from fedkin.models.estimators import Estimators
from fedkin.portfolio.effort import EFFORTS
from fedkin.portfolio.kept import KeptMembers
from fedkin.portfolio.members import WatchMembers
from fedkin.portfolio.mixed import mixed
from fedkin.portfolio.outcome import outcome
from fedkin.portfolio.search import MemberSearch
from fedkin.result import Result
from fedkin.result.stored import read_config
from fedkin.roster import Roster
from fedkin.run import Options, make_options, with_learning
from fedkin.run.directory import RunDirectory, trusted_options
from fedkin.run.model import model_of_run
from fedkin.run.recorded import config_of
from fedkin.run.start import loaded_data
from fedkin.streams import Streams

TRAINING = {"steps": 10, "batch_size": 32}
"""Local training in a round, unless it is said otherwise."""


def auto(
    federation: Federation,
    model: ModelLike = "mlp",
    effort: Literal["quick", "standard", "thorough"] = "standard",
    seed: int = 0,
    rounds: int = 30,
    out: str | Path | None = None,
    watch: WatchMembers = lambda member, round, rounds: None,
    distil: bool = False,
    **options: Any,
) -> Result:
    """Give every client the best model that collaboration can give, without a choice of method, graph or strength::

        1 folds      every client cuts its own training samples into F folds; test samples are out of reach
        2 members    Local, FedAvg, Kin, each also after 10, 50 and 200 local steps, and pFedBayes, once per fold; what
                     held-out samples speak against is not trained further
        3 calibrate  one temperature per member, pooled over the federation
        4 pooled     w0: the weights that combine the members best on held-out samples, every client counting alike
        5 personal   w_i: a client's own weights, drawn to w0 as if that were ten of its samples
        6 gate       where the combination is not better than Local on samples that neither saw, the client keeps Local,
                     trained on all of its samples
        7 deploy     Σ_m w_im · (mean over the folds of member m)

    `options` are those of local training (lr, steps, batch_size, …; the rate is chosen on a fold unless given) and of
    `fedkin.train` (engine, workers, dtype). Returns a Result: `models[name]` is one nn.Module, `auto[name]` says which
    members it combines, whether the gate kept the client alone and the gain to expect, `kin` who helps whom.

    `distil` teaches every client's combination to a single network of the original size, on the client's own inputs;
    `facts["distilled"]` says what the combination reached on test samples and how many networks it had.

    With `out`, a run that was killed goes on where it was when it is started again with the same settings.
    """
    if effort not in EFFORTS:
        raise unknown("effort", effort, EFFORTS)
    options = by_field(options)
    training = {**TRAINING, **{key: value for key, value in options.items() if key in Sgd.model_fields}}
    chosen = make_options(
        rounds=rounds, seed=seed, **{key: value for key, value in options.items() if key not in Sgd.model_fields}
    )
    if chosen.range_test:
        raise FedkinError("auto finds rates on folds itself; leave range_test out")
    if (chosen.device, chosen.precision) != ("cpu", "float32"):
        raise FedkinError("auto computes on the CPU in float32; leave out device and precision, or use fedkin.train")
    federation = with_learning(federation, chosen)
    refuse_unfit(federation.roster())
    clients = whole_training(federation)
    if chosen.private:
        raise FedkinError(
            "auto moves whole models between clients; leave private out, or train one method: fedkin.train"
        )
    cut_into, told = (
        EFFORTS[effort].cut(clients.train.sizes),
        estimators.of(model, federation.names, federation.task, getattr(torch, chosen.dtype)),
    )
    if isinstance(told, Estimators):
        _refuse_for_estimators(federation, chosen, options, distil)
        with owned(out) as directory:
            return mixed(clients, told, chosen, effort, cut_into, directory, watch)
    spec = model_of_run(algorithms.make("local"), model, federation.names, federation.task, chosen)
    count, used = cut_into
    streams = Streams(chosen.seed)

    def connected(of: Federation) -> Clients:
        return connect(chosen.engine, of, spec, streams, chosen.workers, chosen.engine_options)

    cut = connected(folded(clients, count, used, chosen.seed, whole=True))
    try:
        tested = connected(clients)
        try:
            folder = None if out is None else Path(out)
            how = spec, chosen, effort, used, training, folder, watch, distil
            return combined(cut, tested, clients.roster(), *how)
        finally:
            tested.close()
    finally:
        cut.close()


def refuse_unfit(roster: Roster) -> None:
    """Refuse what auto cannot work with, before any training."""
    if len(roster) < 2:
        raise FedkinError("auto needs at least two clients; with one there is nobody to learn from")
    if not roster.task.usual:
        raise FedkinError(
            "auto combines models by the default loss of classification and regression; drop loss, class_weight and "
            "label_smoothing, or train one method: fedkin.train"
        )


def _refuse_for_estimators(federation: Federation, chosen: Options, options: Mapping[str, Any], distil: bool) -> None:
    """Refuse what there is not for models that share no weights."""
    if chosen.engine != "in_process":
        raise FedkinError(f"auto mixes estimators in one process; leave out engine = {chosen.engine!r}")
    if distil:
        raise FedkinError("auto distils networks, not estimators; leave out distil")
    for name in options:
        if name in Sgd.model_fields:
            raise FedkinError(f"{name} is for networks; estimators are fitted as they are given: leave it out")
    if federation.task.estimator == "classifier" and not federation.task.classes:
        raise FedkinError("auto mixes estimators of one label or of numbers; train multi-label tasks with networks")


@contextmanager
def owned(out: str | Path | None) -> Iterator[Path | None]:
    """The folder of a run, which no other writes to at the same time and which holds no result yet."""
    if out is None:
        yield None
        return
    directory = RunDirectory(Path(out))
    if (directory.path / "result.safetensors").exists():
        raise FedkinError(f"{out} already holds a result; choose another folder")
    directory.own()
    try:
        yield directory.path
    finally:
        directory.release()


def combined(
    cut: Clients,
    tested: Clients,
    roster: Roster,
    spec: ModelSpec,
    options: Options,
    effort: str,
    used: int,
    training: Mapping[str, Any],
    out: Path | None,
    watch: WatchMembers,
    distil: bool = False,
) -> Result:
    """auto over clients of any engine: `cut` are the K·(F + 1) further clients, `tested` the K clients themselves."""
    started = time.perf_counter()
    with owned(out):
        run = options.model_dump(include={"rounds", "seed", "dtype", "metrics", "headline"})
        named = {"effort": effort, "model": spec.name or "custom", "data": roster.fingerprint, **training, **run}
        kept, own = KeptMembers(out, named), {"name": "auto", "effort": effort, **({"distil": True} if distil else {})}
        if out is not None:
            begun = config_of(roster, spec, algorithms.make("local"), options, None, out)
            RunDirectory(out).write_config({**begun, "algorithm": {**own, **training}}, None, spec)
        how = roster.names, roster.task, spec, Streams(options.seed), EFFORTS[effort], used, training
        found = MemberSearch(cut, *how, options.rounds, kept, watch).run()
        prior = found.weighed.prior
        members = list(found.members)
        algorithm = {**own, **Sgd(**{**training, "lr": found.rate}).model_dump()}
        result = outcome(
            roster, spec, options, tested, found.members, found.weighed, found.alone, cut.traffic,
            time.perf_counter() - started,
            {key: value for key, value in algorithm.items() if value is not None},
            {
                **dict(zip(("kin_peers", "kin_weights"), map(torch.from_numpy, peers_of(found.kin)))),
                "start_fedavg": found.members["fedavg"][0, :1],
                "start_kin": found.members["kin"][0],
            },
            {
                "title": "auto",
                "rate_chosen": training.get("lr") is None,
                "pooled": dict(zip(members, prior.pooled.tolist())),
                "temperatures": dict(zip(members, prior.temperatures.tolist())),
                "mean_gain": prior.gain,
                "gain_samples": prior.samples,
                "left_out": list(found.left_out),
                "training": {name: dict(how) for name, how in found.ways.items()},
                "effort": effort,
            },
            distil,
        )  # fmt: skip
        if out is not None:
            result.save(out)
            kept.clear()
        return result


def go_on(out: str | Path, watch: WatchMembers = lambda member, round, rounds: None) -> Result:
    """Go on with a run of auto that was killed, from its directory; bitwise the result of one that was not."""
    out = Path(out)
    config = read_config(out)
    source = {key: value for key, value in config["data"].items() if key != "fingerprint"}
    if not source:
        raise FedkinError(
            f"{out} was made of a federation of your own; call fedkin.auto(federation, …, out={out}) again"
        )
    if config["model"]["name"] == "custom":
        raise FedkinError(f"{out} was made with a model of your own; call fedkin.auto(…, model, out={out}) again")
    how = trusted_options(out, config["run"], None, None)
    training = {key: value for key, value in config["algorithm"].items() if key != "name"}
    return auto(loaded_data(out, source), config["model"]["name"], out=out, watch=watch, **{**how, **training})
