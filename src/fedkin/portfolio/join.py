"""Newcomers: clients that come later get their models from the same machinery, without a round of the others."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedkin.algorithms.kin import kin_weights
from fedkin.clients import Clients
from fedkin.engines import connect
from fedkin.errors import FedkinError, unknown
from fedkin.federation import Federation
from fedkin.federation.folds import folded, whole_training
from fedkin.local.sgd import Sgd
from fedkin.local.transfer import TRANSFER, in_pieces
from fedkin.models import ModelLike, ModelSpec
from fedkin.models.frozen import freeze, with_frozen
from fedkin.portfolio.effort import EFFORTS
from fedkin.portfolio.kept import KeptMembers
from fedkin.portfolio.mixed_join import join_mixed
from fedkin.portfolio.outcome import outcome
from fedkin.portfolio.search import MemberSearch
from fedkin.portfolio.together import Folds
from fedkin.portfolio.weights import Prior, Told, weigh
from fedkin.result import Result
from fedkin.result.blended import BLENDS
from fedkin.roster import Roster
from fedkin.run import Options, make_options, with_learning
from fedkin.run.deployed import PSEUDO_SAMPLES
from fedkin.streams import Streams
from fedkin.task import Task

PEERS = 200
"""At most this many models visit a newcomer."""


def join(
    result: Result,
    federation: Federation,
    model: ModelLike | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> Result:
    """Models for newcomers, from a result of `fedkin.auto`; with `name`, for that client of the federation alone. The only
    client of a federation may be given another name by it.

    Each scores the peers' models on its own training samples (A_new as Kin has it), begins from A_new·Ψ and from the
    common model, takes local steps on folds of its own samples, and combines the members with the federation's pooled
    weights as prior. The gate keeps it alone where that is better. Nobody else trains, and nothing of theirs changes.
    `grown(result, joined)` is the run with the newcomers in it.
    """
    if name is not None:
        federation = _the_one(federation, name)
    refuse_strange(result, federation)
    named = result.config["model"]["name"] if model is None else model
    if named == "custom":
        raise FedkinError("the run was trained with models of your own; pass one: join(federation, model=…)")
    judged_as = {"metrics": result.task.metrics, "headline": result.task.headline}
    chosen = make_options(**{**result.config["run"], **judged_as, **({} if seed is None else {"seed": seed})})
    federation = with_learning(federation, chosen)
    newcomers = whole_training(federation)
    if BLENDS in result.extras:
        return join_mixed(result, newcomers, named, chosen)
    spec = spec_of_run(result, named, federation.task, chosen)
    count, used = EFFORTS[str(result.config["algorithm"]["effort"])].cut(newcomers.train.sizes)
    engine = spec, Streams(chosen.seed), chosen.workers, chosen.engine_options
    cut = folded(newcomers, count, used, chosen.seed, whole=True)
    with (
        closing(connect(chosen.engine, cut, *engine)) as clients,
        closing(connect(chosen.engine, newcomers, *engine)) as tested,
    ):
        return joined_by(result, clients, tested, newcomers.roster(), spec, chosen, used)


def _the_one(federation: Federation, name: str) -> Federation:
    if name in federation.names:
        return federation.take([federation.names.index(name)])
    if len(federation) > 1:
        raise unknown("newcomer", name, federation.names)
    return replace(federation, names=(name,), public=None, graph=None)


def spec_of_run(result: Result, model: ModelLike, task: Task, options: Options) -> ModelSpec:
    """The network of the run, with what is frozen of it."""
    spec = freeze(ModelSpec.of(model, task, result.extras["start_kin"].dtype), options.frozen)
    return with_frozen(spec, result.models.spec.frozen, "the result") if spec.layout.frozen else spec  # type: ignore[attr-defined]


def joined_by(
    result: Result, cut: Clients, tested: Clients, roster: Roster, spec: ModelSpec, options: Options, used: int
) -> Result:
    """`join` over clients of any engine: `cut` are the newcomers' K·(F + 1) further clients, `tested` the K newcomers."""
    started = time.perf_counter()
    algorithm, size, task = result.config["algorithm"], len(roster), roster.task
    sgd = Sgd(**{key: value for key, value in algorithm.items() if key in Sgd.model_fields})
    effort = EFFORTS[str(algorithm["effort"])]
    how = roster.names, task, spec, Streams(options.seed), effort, used, sgd.model_dump()
    search = MemberSearch(cut, *how, options.rounds, KeptMembers(None, {}), lambda *_: None)
    kin, starts = _starts(result, search.folds(range(used)), size)
    alone = search.alone(sgd)
    members = {"local": alone[:used]}
    for name, start in starts.items():
        members[name], done, now = start, 0, start
        search.say(name, start, range(used))
        for number, steps in enumerate(effort.fine_tuning):
            longer = f"{name}+{steps}"
            if longer in result.facts["pooled"]:  # what the federation stopped is not tried again
                now = search.stretch(longer, now, sgd.model_dump(), steps - done, number)
                members[longer], done = now, steps
    prior, classes = _prior(result, list(members)), task.mixes_chances
    groups = 1 if used > 1 else 2
    told = Told(cut, size, range(used), list(members), groups, prior.temperatures if classes else None)
    weighed = weigh(told, prior.temperatures, classes, search.fits(list(members)), prior)
    return outcome(
        roster, spec, options, tested, members, weighed, alone[used], cut.traffic, time.perf_counter() - started,
        algorithm, {"kin_of_peers": torch.from_numpy(kin), "start_kin": now[0]},
        {"title": "newcomers", "peers": result.names}, bool(algorithm.get("distil")),
    )  # fmt: skip


def refuse_strange(result: Result, federation: Federation | Roster) -> None:
    """Refuse newcomers that do not fit a run, and runs that have nothing for them."""
    if "pooled" not in result.facts:
        raise FedkinError(f"{result.title} has nothing for newcomers; join a result of fedkin.auto")
    for name in federation.names:
        if name in result.names:
            raise FedkinError(f"client {name!r} is part of the run already; newcomers need names of their own")
    mine, theirs = federation.task, result.task
    if (mine.kind, mine.input_shape, mine.outputs) != (theirs.kind, theirs.input_shape, theirs.outputs):
        raise FedkinError(
            f"newcomers have {mine.kind} with inputs {mine.input_shape} and {mine.outputs} outputs, the run has "
            f"{theirs.kind} with {theirs.input_shape} and {theirs.outputs}; prepare them alike (classes=…)"
        )
    if mine.scale != theirs.scale:
        raise FedkinError(
            "newcomers' targets are scaled otherwise than the run's; prepare them alike: fedkin join --csv"
        )
    if mine.classes != theirs.classes:
        raise FedkinError(f"newcomers have the classes {list(mine.classes)}, the run has {list(theirs.classes)}")


def _starts(result: Result, folds: Folds, size: int) -> tuple[np.ndarray, dict[str, Tensor]]:
    """A_new (K', K) of the first fold, and where newcomers begin: the common model, and A_new·Ψ in every fold."""
    psi, common = result.extras["start_kin"], result.extras["start_fedavg"]
    sound = torch.isfinite(psi).all(dim=1).cpu().numpy().nonzero()[0][:PEERS]
    models = psi[torch.from_numpy(sound)]
    rows, first = torch.empty((folds.count * size, psi.shape[1]), dtype=psi.dtype), np.zeros((size, len(psi)))
    for some in in_pieces(folds.count * size, models.numel() * models.element_size()):
        replies = folds.clients.ask(TRANSFER, some, {"models": models.expand(len(some), *models.shape)})
        sizes = np.tile(np.asarray(result.sizes)[sound], (len(replies), 1))
        shares = kin_weights(
            replies["transfer"].cpu().numpy(), replies["noise"].cpu().numpy(), sizes, np.zeros(len(replies))
        )[:, 1:]
        rows[torch.from_numpy(replies.ids)] = torch.from_numpy(shares).to(psi.dtype) @ models
        for share, k in zip(shares, replies.ids):
            if k < size:
                first[k, sound] = share
    shape = folds.count, size, psi.shape[1]
    return first, {"fedavg": common.expand(shape).clone(), "kin": rows.view(shape)}


def _prior(result: Result, members: list[str]) -> Prior:
    """The federation's weights and temperatures for these members; those it had besides are shared out."""
    pooled: Mapping[str, float] = result.facts["pooled"]
    weights = np.array([max(float(pooled.get(name, 0.0)), 1e-3) for name in members])
    temperatures = np.array([float(result.facts["temperatures"].get(name, 1.0)) for name in members])
    gain = float(result.facts["mean_gain"]), float(result.facts.get("gain_samples", PSEUDO_SAMPLES))
    return Prior(temperatures, weights / weights.sum(), *gain)
