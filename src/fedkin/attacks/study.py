"""A study: methods without attack, under attack, and under attack with a defence. Honest clients are counted alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from fedkin.algorithm import Algorithm
from fedkin.algorithms import make, method_of, with_parameters
from fedkin.attacks.behaviour import ATTACKS, Attack
from fedkin.attacks.clients import Attacked
from fedkin.attacks.samples import TARGET, poisoned, refuse_attack, stamped, unfit
from fedkin.errors import FedkinError, unknown
from fedkin.federation import Federation
from fedkin.graphs import ClientGraph
from fedkin.local.sgd import Sgd
from fedkin.models import ModelLike
from fedkin.result import Result
from fedkin.result.contenders import ALONE
from fedkin.run import Options, make_options, make_run
from fedkin.streams import Streams, client_keys


@dataclass(frozen=True)
class Attempt:
    """One method under one attack: the metric of the honest clients' deployed models, as a mean over them."""

    algorithm: str
    title: str
    attack: str
    attackers: int
    seed: int
    clean: float
    alone: float
    """Local, the same honest clients."""
    attacked: float | None
    """None: the run broke off."""
    guarded: float | None
    robust: str
    guarded_clean: float
    """With the defence and no attacker."""
    losses: dict[str, float | None] = field(default_factory=dict)
    """Mean loss of the honest clients' deployed models on what a choice may be made by (validation, else training)."""
    backdoor: dict[str, float | None] = field(default_factory=dict)
    """Share of the honest clients' marked test samples that are taken for the target class, under a backdoor."""
    broke: str = ""
    """Why a run broke off."""


@dataclass(frozen=True)
class Study:
    """All cells, and influence matrices: (algorithm, attack, attackers, "attacked" or "guarded") → (K, K)."""

    cells: tuple[Attempt, ...]
    influence: dict[tuple[str, str, int, str], np.ndarray]
    names: tuple[str, ...]
    hostile: dict[int, tuple[str, ...]]
    """Number of attackers → their names."""
    metric: str = "test_accuracy"

    def to_dict(self) -> dict[str, Any]:
        """Everything but the matrices, ready for JSON."""
        return {"cells": [asdict(cell) for cell in self.cells], "metric": self.metric, "hostile": self.hostile}


def attackers(names: Sequence[str], count: int, seed: int) -> np.ndarray:
    """Who is hostile: `count` clients, drawn by name; more attackers include the fewer."""
    if not 1 <= count < len(names):
        raise FedkinError(
            f"attackers = {count} of {len(names)} clients; give at least 1, and leave at least one honest client"
        )
    return np.sort(np.argsort(Streams(seed).words("attackers", 0, client_keys(names)), kind="stable")[:count])


def under_attack(
    federation: Federation,
    model: ModelLike,
    algorithm: Algorithm,
    options: Options,
    attack: Attack | str,
    hostile: np.ndarray,
    graph: ClientGraph | str | None = None,
) -> Result:
    """Train with the clients `hostile` (positions) attacking."""
    how = attack if isinstance(attack, Attack) else find_attack(attack)
    data = federation if how.samples is None else poisoned(federation, hostile, how.samples, options.seed)
    run = make_run(data, model, algorithm, options, graph)
    initial = run.setting.spec.initial_row(run.setting.streams)
    run.judging = None  # a further run would not be attacked
    run.clients = Attacked(run.clients, how, hostile, run.setting.streams, initial)
    return run.run()


def find_attack(name: str) -> Attack:
    if name not in ATTACKS:
        raise unknown("attack", name, list(ATTACKS))
    return ATTACKS[name]


def study(
    federation: Federation,
    model: ModelLike,
    algorithms: Sequence[Algorithm | str],
    attacks: Sequence[str] | None = None,
    counts: Sequence[int] = (1,),
    options: Options | None = None,
    graph: ClientGraph | str | None = None,
    robust: str | None = None,
    tell: Callable[[str], None] = lambda what: None,
) -> Study:
    """Every method under every attack (None: all that the task allows), with and without its defence: `robust`, or the one
    that the method has or recommends.

    What cannot be run is refused before the first one; runs that break off are told in their cells.
    """
    options = (options or make_options()).model_copy(update={"validation": "given"})  # a further run is not attacked
    methods = [method_of(each) for each in algorithms]
    hows = [find_attack(name) for name in (ATTACKS if attacks is None else attacks)]
    hows = [
        how for how in hows if attacks is not None or how.samples is None or not unfit(federation.task, how.samples)
    ]
    hostile = {count: attackers(federation.names, count, options.seed) for count in counts}
    if not methods or not hows or not hostile:
        raise FedkinError("nothing to do; name at least one method, one attack and a number of attackers")
    for each in methods:
        if not each.couples:
            raise FedkinError(f"{each.name} has no coupling of rows, and so no defence to compare; leave it out")
    bench = Bench(federation, model, options, graph)
    tried = [(each, with_parameters(each, robust=robust or each.robust or each.defence)) for each in methods]
    alone_too = make(ALONE, methods[0].model_dump(include=set(Sgd.model_fields)))
    for how in hows:
        refuse_attack(federation.task, how.samples)
    for each in (alone_too, *itertools.chain(*tried)):
        bench.check(each)
    tell("local")
    alone = bench.run(alone_too)
    cells: list[Attempt] = []
    influence: dict[tuple[str, str, int, str], np.ndarray] = {}
    for method, guarded in tried:
        plain = method.model_copy(update={"robust": None})
        tell(f"{method.name}, no attack")
        unharmed = {"alone": alone, "clean": bench.run(plain), "guarded_clean": bench.run(guarded)}
        for (count, who), how in itertools.product(hostile.items(), hows):
            tell(f"{method.name}, {how.name}, {count} of {len(federation)}")
            cell, shaped = bench.attempt(plain, guarded, unharmed, how, who)
            cells.append(cell)
            influence |= {(method.name, how.name, count, kind): matrix for kind, matrix in shaped.items()}
    named = {count: tuple(federation.names[k] for k in who) for count, who in hostile.items()}
    return Study(tuple(cells), influence, federation.names, named, alone.metric)


def mean_of(result: Result, honest: np.ndarray) -> float:
    """The metric of the deployed models, as a mean over the honest clients that have test samples."""
    return float(np.nanmean(np.array(result.metrics["deployed"][result.metric], dtype=float)[honest]))


@dataclass(frozen=True)
class Bench:
    """What all runs of a study have in common."""

    federation: Federation
    model: ModelLike
    options: Options
    graph: ClientGraph | str | None

    def check(self, algorithm: Algorithm) -> None:
        """Refuse in one line what cannot be run."""
        make_run(self.federation, self.model, algorithm, self.options, self.graph).clients.close()

    def run(self, algorithm: Algorithm) -> Result:
        return make_run(self.federation, self.model, algorithm, self.options, self.graph).run()

    def attempt(
        self, plain: Algorithm, guarded: Algorithm, unharmed: Mapping[str, Result], how: Attack, hostile: np.ndarray
    ) -> tuple[Attempt, dict[str, np.ndarray]]:
        """One attack on a method without and with its defence, and who shaped whom in these two runs.

        `unharmed` are results without attackers: of Local ("alone"), of the method ("clean") and with its defence ("guarded_clean").
        """
        honest = np.setdiff1d(np.arange(len(self.federation)), hostile)
        found = {"attacked": self.tried(plain, how, hostile), "guarded": self.tried(guarded, how, hostile)}
        results = {kind: result for kind, result in found.items() if isinstance(result, Result)}
        runs = {"clean": unharmed["clean"], **results}
        fooled = {kind: self.fooled(run, honest) for kind, run in runs.items()} if how.samples == "backdoor" else {}
        cell = Attempt(
            plain.name,
            plain.title,
            how.name,
            len(hostile),
            self.options.seed,
            clean=mean_of(unharmed["clean"], honest),
            alone=mean_of(unharmed["alone"], honest),
            attacked=mean_of(results["attacked"], honest) if "attacked" in results else None,
            guarded=mean_of(results["guarded"], honest) if "guarded" in results else None,
            robust=str(guarded.robust),
            guarded_clean=mean_of(unharmed["guarded_clean"], honest),
            losses={kind: self.loss(run, honest) for kind, run in runs.items()},
            backdoor=fooled,
            broke=next((why for why in found.values() if isinstance(why, str)), ""),
        )
        return cell, {kind: run.influence for kind, run in results.items() if run.influence is not None}

    def tried(self, algorithm: Algorithm, attack: Attack, hostile: np.ndarray) -> Result | str:
        """The result, or why the run broke off."""
        try:
            return under_attack(self.federation, self.model, algorithm, self.options, attack, hostile, self.graph)
        except FedkinError as problem:
            return str(problem)

    def loss(self, result: Result, honest: np.ndarray) -> float | None:
        """Mean loss of the honest clients' deployed models on validation samples, or on training samples without."""
        part = self.federation.validation if self.federation.validation.sizes.any() else self.federation.train
        return self._mean(result, honest, lambda k: part[k], _loss)

    def fooled(self, result: Result, honest: np.ndarray) -> float | None:
        """The share of marked test samples of other classes that the honest clients' models take for the target."""
        high = float(self.federation.train.x.max())

        def marked(k: int) -> tuple[np.ndarray, np.ndarray]:
            x, y = self.federation.test[k]
            return stamped(x[y != TARGET], high), y[y != TARGET]

        return self._mean(
            result, honest, marked, lambda outputs, y: float((outputs.argmax(dim=1) == TARGET).double().mean())
        )

    def _mean(
        self,
        result: Result,
        honest: np.ndarray,
        samples: Callable[[int], tuple[np.ndarray, np.ndarray]],
        score: Callable[[torch.Tensor, torch.Tensor], float],
    ) -> float | None:
        found = []
        for k in honest:
            x, y = samples(int(k))
            if len(x):
                with torch.no_grad():
                    outputs = result.models[result.names[k]](torch.as_tensor(x).to(getattr(torch, self.options.dtype)))
                found.append(score(outputs, torch.as_tensor(y)))
        return float(np.mean(found)) if found else None


def _loss(outputs: torch.Tensor, y: torch.Tensor) -> float:
    if y.is_floating_point():
        return float((outputs - y).double().square().mean())
    return float(torch.nn.functional.cross_entropy(outputs.double(), y.long(), reduction="none").clamp(max=6).mean())
