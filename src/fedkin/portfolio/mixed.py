"""auto for models that share no weights: forests beside ridge regressions; what is combined is what they predict."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedkin import algorithms
from fedkin.algorithms.kin import candidates, kin_weights
from fedkin.clients import Traffic, n_bytes
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.federation.folds import assign
from fedkin.local.transfer import CAP, judged_losses
from fedkin.models.adapters import Augmented, FitEffort
from fedkin.models.adapters.scikit import held_bytes
from fedkin.models.estimators import Estimators
from fedkin.portfolio.evidence import ERRORS, GAINS, Evidence, effective_samples
from fedkin.portfolio.members import WatchMembers
from fedkin.portfolio.outcome import CAUTION, told
from fedkin.portfolio.simplex import Expansion
from fedkin.portfolio.weights import Prior, Weighed, weigh
from fedkin.result import History, Result
from fedkin.result.blended import Blend, Blends, said
from fedkin.run import Options
from fedkin.run.recorded import config_of
from fedkin.streams import Streams

MEMBERS = ("local", "kin", "all")
VISITORS = 20
"""Others' estimators that visit a client at most."""


class HeldOut:
    """Sums over held-out samples that are all in this process (see `weights.Sums`)."""

    def __init__(self, evidence: Evidence, effective: np.ndarray, classes: bool, groups: int, traffic: Traffic) -> None:
        self.evidence, self.classes, self.effective, self.traffic = evidence, classes, effective, traffic
        self.size, self.members = len(evidence.real), list(MEMBERS)
        self.variants = torch.cat([1 - torch.eye(groups), torch.ones(1, groups)]).double()
        self.logs = evidence.log_likelihood(torch.ones(len(MEMBERS))) if classes else torch.zeros(0)
        self.count = evidence.counted(self.variants).sum(dim=1).numpy()
        self.sound = np.ones((self.size, len(MEMBERS)), dtype=bool)
        traffic.asked(self.size, 0, self.count.nbytes + effective.nbytes)

    def ask(self, task: str, weights: np.ndarray | None = None) -> dict[str, np.ndarray]:
        if task == ERRORS:
            return self._told({"gram": self.evidence.gram(self.variants)})
        assert task == GAINS
        return self._told(self.evidence.gains(self.logs, torch.as_tensor(weights), self.classes), weights)

    def slopes(self, weights: np.ndarray) -> Expansion:
        found = self._told(self.evidence.slopes(self.logs, torch.as_tensor(weights), self.variants), weights)
        return found["value"], found["slopes"], found["curvature"]

    def _told(self, answers: Mapping[str, torch.Tensor], weights: np.ndarray | None = None) -> dict[str, np.ndarray]:
        self.traffic.asked(self.size, 0 if weights is None else weights.nbytes, n_bytes(answers))
        return {name: value.numpy() for name, value in answers.items()}


class Fits:
    """Every client's estimator, fitted to all of its samples and without each fold, and what they say of each other's."""

    def __init__(self, clients: Federation, spec: Estimators, seed: int, count: int, used: int) -> None:
        self.clients, self.spec, self.streams, self.used = clients, spec, Streams(seed), used
        self.groups = used if used > 1 else 2
        self.classes = clients.task.outputs if clients.task.classes else 0
        self.samples = [(x.reshape(len(x), -1), y) for x, y in clients.train]
        fold = [assign(clients, k, count, seed) for k in range(len(clients))]
        self.fold = [np.where(own < used, own, -1) for own in fold]
        """Per client the fold (n_k,) in which a sample is held out, −1: never."""

    def fit(self, k: int, ids: np.ndarray, number: int) -> Any:
        """The estimator of client k, fitted to these of its samples."""
        x, y = self.samples[k][0][ids], self.samples[k][1][ids]
        name, task = self.clients.names[k], self.clients.task
        if self.classes and len(np.unique(y)) == 1:  # nothing to learn: it says this class
            from sklearn.dummy import DummyClassifier

            return DummyClassifier(strategy="most_frequent").fit(x, y)
        effort = FitEffort(seed=self.streams.integer("fit", name, number))
        learner = self.spec.learner(name, task, self.streams, effort)
        if not learner.refits:
            raise FedkinError(
                f"client {name!r}: auto mixes estimators that are fitted (predict and fit); give all clients one network, or an "
                "estimator to this one"
            )
        learner.improve(Augmented(x, task.soft(y), np.ones(len(x)), len(x)), effort)
        return learner.model

    def said(self, fitted: Any, x: np.ndarray, samples: int) -> np.ndarray:
        return said(fitted, x, samples, self.classes)

    def losses(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Cross entropy (at most 6) or squared error of outputs (…, n, C), (…, n)."""
        if self.classes:
            chance = np.take_along_axis(outputs, np.broadcast_to(y[:, None], (*outputs.shape[:-1], 1)), -1)[..., 0]
            return np.asarray(np.minimum(-np.log(np.maximum(chance, 1e-12)), CAP))
        return np.asarray(((outputs - y.reshape(len(y), -1)) ** 2).mean(axis=-1))

    def whole(self) -> list[Any]:
        """Every client's estimator, fitted to all of its samples."""
        return [self.fit(k, np.arange(len(fold)), self.used) for k, fold in enumerate(self.fold)]

    def statistics(self) -> np.ndarray:
        """How a client's inputs lie and go with its targets, (K, d(1 + C)): means of x and of y xᵀ."""
        told = [(x, self.clients.task.soft(y)) for x, y in self.samples]
        return np.stack([np.concatenate([x.mean(axis=0), (y.T @ x / len(x)).ravel()]) for x, y in told])

    def peers(self, statistics: np.ndarray) -> np.ndarray:
        """Whose estimators visit a client, (K, p): where there are many, those whose statistics are nearest."""
        return candidates(statistics, min(VISITORS, len(statistics) - 1), self.streams.seed)


@dataclass(frozen=True)
class Heard:
    """What a client's own estimator and those that visit it say of its held-out samples."""

    outputs: np.ndarray
    """Of every member, (n, M, C)."""
    y: np.ndarray
    group: np.ndarray
    """Which group of held-out samples each belongs to, (n,)."""
    shares: np.ndarray
    """A_k (1 + p), own first, from all of its samples."""


def heard(fits: Fits, k: int, visitors: Sequence[Any], sizes: np.ndarray) -> Heard:
    """The members on the held-out samples of client k, from visiting estimators and how many samples (p,) each was fitted to."""
    (x, y), own_size = fits.samples[k], np.array([len(fits.samples[k][1])])
    visiting = np.stack([fits.said(fitted, x, int(n)) for fitted, n in zip(visitors, sizes)])
    each = fits.losses(visiting, y)

    def weights(rows: np.ndarray) -> np.ndarray:
        """A_k (1 + p), own first, from the losses on these samples."""
        mean, noise = judged_losses(torch.from_numpy(each[:, rows]))
        return kin_weights(mean[None].numpy(), noise[None].numpy(), sizes[None], own_size)[0]

    found = np.zeros((len(y), len(MEMBERS), visiting.shape[2]))
    for number in range(fits.used):
        out_ids, rest = (np.flatnonzero(test) for test in (fits.fold[k] == number, fits.fold[k] != number))
        if len(out_ids) and len(rest):
            own = fits.said(fits.fit(k, rest, number), x[out_ids], len(rest))
            everyone = np.concatenate([own[None], visiting[:, out_ids]])
            found[out_ids] = np.stack([own, np.tensordot(weights(rest), everyone, 1), everyone.mean(axis=0)], axis=1)
    held = np.flatnonzero(fits.fold[k] >= 0) if len(y) > 1 else np.arange(0)
    group = fits.fold[k][held] if fits.used > 1 else np.arange(len(held)) % fits.groups
    return Heard(found[held], y[held], group, weights(np.arange(len(y))))


def weighed(fits: Fits, found: Sequence[Heard], traffic: Traffic, known: Prior | None = None) -> Weighed:
    """Weights and gains of all clients; `known` is not estimated again."""
    judged = [effective_samples(torch.from_numpy(own.y), bool(fits.classes)) for own in found]
    sums = HeldOut(_evidence(found, bool(fits.classes)), np.array(judged), bool(fits.classes), fits.groups, traffic)
    none = np.zeros((len(found), len(MEMBERS)))
    return weigh(sums, np.ones(len(MEMBERS)), bool(fits.classes), none, known)


def mixed(
    clients: Federation, spec: Estimators, options: Options, effort: str, cut: tuple[int, int], out: Path | None,
    watch: WatchMembers,
) -> Result:  # fmt: skip
    """auto over estimators. Members are a client's own estimator, the mean Σ_j A_ij f_j(x) of its kin's, and that of all::

        own   f_i, fitted without the fold that is judged
        A_ij  as Kin has it, from losses T_ij of f_j on client i's training samples outside of the fold: f_j has seen none of them
        p     of classes by Laplace's rule, (n_j p + 1)/(n_j + C)

    Weights, the gate and what it prints are auto's. What is deployed are estimators that were fitted to everything. They move between
    clients, so this works in one process; bytes are those of the arrays that they hold, of the clients' statistics and sums.
    """
    begun, traffic = time.perf_counter(), Traffic()
    fits = Fits(clients, spec, options.seed, *cut)
    statistics, whole = fits.statistics(), fits.whole()
    watch("local", 1, 2)
    peers, sizes = fits.peers(statistics), clients.train.sizes
    bill_visits(traffic, statistics, whole, [[whole[j] for j in own] for own in peers])
    found = [heard(fits, k, [whole[j] for j in own], sizes[own]) for k, own in enumerate(peers)]
    watch("local", 2, 2)
    judged = weighed(fits, found, traffic)
    result = blended_outcome(
        fits, options, judged, found, [np.array([k, *own]) for k, own in enumerate(peers)], clients.names,
        dict(zip(clients.names, whole)), sizes, traffic, time.perf_counter() - begun, {"name": "auto", "effort": effort},
        {"kin_peers": torch.from_numpy(peers), "kin_weights": torch.from_numpy(np.stack([own.shares for own in found]))},
        {
            "title": "auto", "effort": effort, "mean_gain": judged.prior.gain, "gain_samples": judged.prior.samples,
            "pooled": dict(zip(MEMBERS, judged.prior.pooled.tolist())), "left_out": [],
        },
    )  # fmt: skip
    if out is not None:
        result.save(out)
    return result


def bill_visits(
    traffic: Traffic, statistics: np.ndarray, fitted: Sequence[Any], visitors: Sequence[Sequence[Any]]
) -> None:
    """Statistics and estimators to the server, and those that visit a client to it."""
    traffic.asked(len(fitted), 0, statistics.nbytes + sum(map(held_bytes, fitted)))
    traffic.asked(len(fitted), sum(held_bytes(own) for some in visitors for own in some), 0)


def blended_outcome(
    fits: Fits,
    options: Options,
    judged: Weighed,
    found: Sequence[Heard],
    reach: Sequence[np.ndarray],
    whose: tuple[str, ...],
    fitted: Mapping[str, Any],
    sizes: np.ndarray,
    traffic: Traffic,
    seconds: float,
    algorithm: Mapping[str, Any],
    extras: Mapping[str, torch.Tensor],
    facts: Mapping[str, Any],
) -> Result:
    """The result: the gate, every client's blend of the estimators `fitted` of `whose`, and what they reach on test samples.

    `reach` says whose estimators a client's `shares` are of, (1 + p,), places in `whose`, its own first.
    """
    clients, size = fits.clients, len(fits.clients)
    alone = judged.gain < CAUTION * judged.error
    blend = torch.zeros((size, len(whose)), dtype=torch.float64)
    for k, own in enumerate(found):
        w = np.array([1.0, 0, 0]) if alone[k] else judged.personal[k]
        blend[k, torch.from_numpy(reach[k])] = torch.from_numpy(w[1] * own.shares + w[2] / len(reach[k]))
        blend[k, reach[k][0]] += w[0]
    theirs = torch.zeros_like(blend)
    theirs[torch.arange(size), torch.tensor([int(own[0]) for own in reach])] = 1
    models, own_models = (Blends(clients.names, whose, fitted, w, sizes, fits.classes) for w in (blend, theirs))
    together = tested(clients, models)
    spent = {"seconds": seconds, "evaluation_seconds": 0.0, "bytes": traffic.total(), "messages": traffic.messages}
    record = {"round": 0, "participants": size, "log": {}, "pre": together, "post": together}
    roster = clients.roster()
    config = config_of(roster, fits.spec, algorithms.make("local"), options, None)
    return Result(
        names=clients.names,
        task=clients.task,
        sizes=roster.train,
        server_rows=torch.zeros((size, 0)),
        models=models,
        choice=tuple("alone" if own else "together" for own in alone),
        metrics=dict.fromkeys(("pre", "post", "deployed"), together),
        history=History(clients.names, [record | spent]),
        config={**config, "algorithm": dict(algorithm)},
        extras={**models.tensors(), "statistics": torch.from_numpy(fits.statistics()), **extras},
        label_counts=roster.label_counts,
        notes=roster.notes,
        facts={
            "algorithm": "auto", "rounds": 0, "finished": True, **spent, "test_sizes": roster.test, "truth": {},
            "inputs": roster.inputs, "single_class": {}, "alone": tested(clients, own_models),
            "auto": told(clients.names, MEMBERS, judged, alone), **facts,
        },
    )  # fmt: skip


def _evidence(heard: Sequence[Heard], classes: bool) -> Evidence:
    """What the members say of the clients' held-out samples, (n_k, M, C) each, padded: log p of classes, or numbers."""
    longest = max(1, *(len(own.y) for own in heard))

    def padded(parts: list[np.ndarray]) -> torch.Tensor:
        found = np.zeros((len(parts), longest, *parts[0].shape[1:]), dtype=parts[0].dtype)
        for place, part in enumerate(parts):
            found[place, : len(part)] = part
        return torch.from_numpy(found)

    spoken = padded([own.outputs for own in heard])
    real = padded([np.ones(len(own.y), dtype=bool) for own in heard])
    return Evidence(
        torch.log(spoken.clamp(min=1e-12)) if classes else spoken,
        padded([own.y for own in heard]),
        real,
        padded([own.group.astype(np.int64) for own in heard]),
    )


def tested(clients: Federation, models: Blends) -> dict[str, list[float]]:
    """Every client's metrics on its test samples; NaN where it has none."""
    found: dict[str, list[float]] = {}
    for k, name in enumerate(clients.names):
        x, y = clients.test[k]
        model: Blend = models[name]
        flat = x.reshape(len(x), -1)
        if len(y):
            outputs = torch.from_numpy(model.predict_proba(flat) if models.classes else model.predict(flat))
            values = clients.task.judge(clients.task.unlinked(outputs), torch.from_numpy(y))
        for key in clients.task.metric_keys:
            found.setdefault(f"test_{key}", []).append(values[key] if len(y) else float("nan"))
    return found
