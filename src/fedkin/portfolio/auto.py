"""auto: for every client the best model that collaboration can give, and nobody harmed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedkin import algorithms
from fedkin.algorithm import Setting
from fedkin.algorithms.kin import weights_of
from fedkin.engines import connect
from fedkin.errors import FedkinError, unknown
from fedkin.federation import Federation, Split
from fedkin.local.sgd import Sgd
from fedkin.models import ModelLike, ModelSpec
from fedkin.portfolio.folds import folded
from fedkin.portfolio.judged import JUDGE
from fedkin.portfolio.members import EFFORTS, Effort, TrainedMember, WatchMembers, train_member, train_members
from fedkin.portfolio.together import Folds
from fedkin.portfolio.weights import Weighed, weigh
from fedkin.result import History, Result
from fedkin.result.combined import CombinedModels, Parts
from fedkin.run import make_options, make_run, with_learning
from fedkin.run.deployed import per_client_metrics
from fedkin.run.model import model_of_run
from fedkin.streams import Streams

CAUTION = 0.0
"""A client keeps its own model where the estimated gain is below so many standard errors."""


def auto(
    federation: Federation,
    model: ModelLike = "mlp",
    effort: Literal["quick", "standard", "thorough"] = "standard",
    seed: int = 0,
    rounds: int = 30,
    out: str | Path | None = None,
    watch: WatchMembers = lambda member, round, rounds: None,
    **options: Any,
) -> Result:
    """Give every client the best model that collaboration can give, without a choice of method, graph or strength::

        1 folds      every client cuts its own training samples into F folds; test samples are out of reach
        2 members    Local, FedAvg, Kin, each also after 10, 50 and 200 local steps, and pFedBayes, once per fold
        3 calibrate  one temperature per member, pooled over the federation
        4 pooled     w0: the weights that combine the members best on held-out samples, every client counting alike
        5 personal   w_i: a client's own weights, drawn to w0 as if that were ten of its samples
        6 gate       where the combination is not better than Local on samples that neither saw, the client keeps Local,
                     trained on all of its samples
        7 deploy     Σ_m w_im · (mean over the folds of member m)

    `options` are those of local training (lr, steps, batch_size, …; the rate is chosen on the folds unless given) and of
    `fedkin.train` (engine, workers, dtype). Returns a Result: `models[name]` is one nn.Module, `auto[name]` says which
    members it combines, whether the gate kept the client alone and the gain to expect, `kin` who helps whom.
    """
    if effort not in EFFORTS:
        raise unknown("effort", effort, EFFORTS)
    if len(federation) < 2:
        raise FedkinError("auto needs at least two clients; with one there is nobody to learn from")
    started = time.perf_counter()
    training = {"steps": 10, "batch_size": 32, **{k: v for k, v in options.items() if k in Sgd.model_fields}}
    rest = {key: value for key, value in options.items() if key not in Sgd.model_fields}
    chosen = make_options(rounds=rounds, seed=seed, **rest)
    if (chosen.device, chosen.precision) != ("cpu", "float32"):
        raise FedkinError("auto computes on the CPU in float32; leave out device and precision, or use fedkin.train")
    federation = with_learning(federation, chosen)
    if not federation.task.usual:
        raise FedkinError(
            "auto combines models by the default loss of classification and regression; drop loss, class_weight and "
            "label_smoothing, or train one method: fedkin.train"
        )
    clients = whole_training(federation)
    if chosen.private:
        raise FedkinError(
            "auto moves whole models between clients; leave private out, or train one method: fedkin.train"
        )
    spec = model_of_run(algorithms.make("local"), model, federation.names, federation.task, chosen)
    plan = EFFORTS[effort]
    work = _Work(clients, model, spec, plan, training, rounds, chosen, watch)
    members, weighed, kin, traffic, rate = work.found()
    training = {**training, "lr": rate}
    alone = make_run(clients, model, algorithms.make("local", training), chosen).run()
    kept_alone = weighed.gain < CAUTION * weighed.error
    parts = parts_of(members, weighed, kept_alone, torch.from_numpy(alone.rows), spec)
    metrics = judged(clients, spec, chosen, parts)
    facts = {
        **alone.facts,
        "title": "auto",
        "finished": True,
        "seconds": time.perf_counter() - started,
        "bytes": traffic[0],
        "messages": traffic[1],
        "alone": alone.metrics["pre"],
        "auto": told(federation.names, list(members), weighed, kept_alone),
        "pooled": dict(zip(members, weighed.prior.pooled.tolist())),
        "temperatures": dict(zip(members, weighed.prior.temperatures.tolist())),
        "mean_gain": weighed.prior.gain,
        "effort": effort,
    }
    config = {**alone.config, "algorithm": {"name": "auto", "effort": effort, **training}}
    record = {"round": rounds, "participants": len(federation), "log": {}, "pre": metrics, "post": metrics}
    record |= {"seconds": facts["seconds"], "evaluation_seconds": 0.0, "bytes": traffic[0], "messages": traffic[1]}
    result = replace(
        alone,
        models=CombinedModels(federation.names, parts, spec, federation.task.one_label),
        choice=tuple("alone" if kept else "together" for kept in kept_alone),
        metrics={"pre": metrics, "post": metrics, "deployed": metrics},
        history=History(federation.names, [record]),
        config=config,
        extras={
            **parts.tensors(),
            "kin": torch.from_numpy(kin),
            "start_fedavg": members["fedavg"].rows[0, :1],
            "start_kin": members["kin"].rows[0],
        },
        raw_influence=None,
        facts=facts,
    )
    if out is not None:
        result.save(out)
    return result


def joined_splits(one: Split, other: Split) -> Split:
    """The samples of two splits of the same clients as one."""
    if not other.sizes.any():
        return one
    pairs = [[split.part(k, np.arange(split.sizes[k])) for split in (one, other)] for k in range(len(one))]
    both = Split.join([part for pair in pairs for part in pair], one.scaling)
    return Split(both.stored, both.y, both.offsets[::2], one.scaling)


def whole_training(federation: Federation) -> Federation:
    """The federation with its validation samples among those for training: folds take their place."""
    nothing = Split.join([federation.train.part(0, np.arange(0))] * len(federation), federation.train.scaling)
    return replace(federation, train=joined_splits(federation.train, federation.validation), validation=nothing)


@dataclass
class _Work:
    """The training of all members on folds, up to the weights."""

    federation: Federation
    model: ModelLike
    spec: ModelSpec
    effort: Effort
    training: dict[str, Any]
    rounds: int
    options: Any
    watch: WatchMembers

    def found(self) -> tuple[dict[str, TrainedMember], Weighed, np.ndarray, tuple[int, int], float]:
        size = len(self.federation)
        median = float(np.median(self.federation.train.sizes))
        count = self.effort.folds or (3 if median >= 100 else 5)
        used = self.effort.used or count
        cut = folded(self.federation, count, used, self.options.seed)
        streams = Streams(self.options.seed)
        how = self.options.engine, cut, self.spec, streams, self.options.workers, self.options.engine_options
        clients = connect(*how)
        try:
            folds = Folds(clients, self.federation.names, used)
            settings = tuple(
                Setting(self.federation.names, view.sizes, self.federation.task, self.spec, streams, rounds=self.rounds)
                for view in folds.views
            )
            classes = self.federation.task.one_label
            rate = self.training.get("lr") or self._rate(folds, settings)
            training = {**self.training, "lr": rate}
            members = train_members(folds, settings, self.effort, training, self.rounds, self.watch)
            models = torch.stack([member.rows for member in members.values()], dim=2)  # (F, K, M, B)
            weighed = weigh(clients, models, classes, groups=1 if used > 1 else 2)
            states = [state for state in members["kin"].states if "kin_weights" in state.arrays]
            kin = np.mean([weights_of(s).toarray() for s in states], axis=0) if states else np.eye(size)
            return members, weighed, kin, (clients.traffic.total(), clients.traffic.messages), rate
        finally:
            clients.close()

    def _rate(self, folds: Folds, settings: tuple[Setting, ...]) -> float:
        """The learning rate with the smallest held-out loss after a third of the rounds alone."""
        losses = {}
        for rate in self.effort.rates:
            method = algorithms.make("local", {**self.training, "lr": rate})
            rounds = max(1, self.rounds // 3)
            trained = train_member(folds, settings, method, rounds, lambda *_: None)
            losses[rate] = held_out_loss(folds, trained.rows)
        return min(losses, key=lambda rate: losses[rate])


def held_out_loss(folds: Folds, rows: Tensor) -> float:
    """The mean loss of (F, K, B) models on the samples held out from them, every client counting alike."""
    rows = rows.flatten(0, 1)
    sound = np.flatnonzero(torch.isfinite(rows).all(dim=1).cpu().numpy())
    if len(sound) < len(rows):
        return float("inf")
    replies = folds.clients.ask("evaluate", sound, {"rows": rows}, {"parts": ["validation"]}, bill=False)
    count = replies["validation_count"]
    return float(replies["validation_loss"][count > 0].clamp(max=1e6).mean()) if bool((count > 0).any()) else 0.0


def parts_of(
    members: dict[str, TrainedMember], weighed: Weighed, kept_alone: np.ndarray, alone: Tensor, spec: ModelSpec
) -> Parts:
    """What each client's model is made of: all fold models of its members, or Local alone."""
    clients: list[list[tuple[Tensor, float, float]]] = []
    found = list(members.values())
    for k, kept in enumerate(kept_alone):
        if kept:
            clients.append([(alone[k], 1.0, float(weighed.prior.temperatures[0]))])
            continue
        own: list[tuple[Tensor, float, float]] = []
        for m in np.flatnonzero(weighed.personal[k]):
            rows = found[m].rows[:, k]
            rows = rows[torch.isfinite(rows).all(dim=1)]
            share = float(weighed.personal[k, m]) / len(rows)
            own += [(row, share, float(weighed.prior.temperatures[m])) for row in rows]
        clients.append(own)
    return Parts.of(clients, spec.initial_counters())


def judged(federation: Federation, spec: ModelSpec, options: Any, parts: Parts) -> dict[str, list[float]]:
    """Test metrics of the combined models, one value per client."""
    streams = Streams(options.seed)
    how = options.engine, federation, spec, streams, options.workers, options.engine_options
    clients = connect(*how)
    lengths = np.diff(parts.offsets.cpu().numpy())
    width, size = int(lengths.max()), len(federation)
    per_client = {
        "index": torch.zeros((size, width), dtype=torch.int64),
        "weights": torch.zeros((size, width), dtype=torch.float64),
        "temperatures": torch.ones((size, width), dtype=torch.float64),
    }
    for k, n in enumerate(lengths):
        own = slice(int(parts.offsets[k]), int(parts.offsets[k + 1]))
        for name, values in per_client.items():
            values[k, :n] = getattr(parts, name)[own]
    try:
        replies = clients.ask(JUDGE, np.arange(size), per_client, {"rows": parts.rows}, bill=False)
    finally:
        clients.close()
    return per_client_metrics(replies.ids, replies.arrays, size, ["test"])


def told(
    names: Sequence[str], members: Sequence[str], weighed: Weighed, kept_alone: np.ndarray
) -> dict[str, dict[str, Any]]:
    """Per client: the members of its model and their weights, whether the gate kept it alone, the gain to expect."""
    entries = {}
    for k, name in enumerate(names):
        gain, error = float(weighed.gain[k]), float(weighed.error[k])
        mixed = {members[int(m)]: float(weighed.personal[k, m]) for m in np.flatnonzero(weighed.personal[k])}
        entries[name] = {
            "members": {"local": 1.0} if kept_alone[k] else mixed,
            "kept_alone": bool(kept_alone[k]),
            "gain": (gain, gain - 1.96 * error, gain + 1.96 * error),
            "samples": int(weighed.count[k]),
        }
    return entries
