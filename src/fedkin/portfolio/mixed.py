"""auto for models that share no weights: forests beside ridge regressions; what is combined is what they predict."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedkin import algorithms
from fedkin.algorithms.kin import candidates, kin_weights
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.federation.folds import assign
from fedkin.local.transfer import CAP, judged_losses
from fedkin.models.adapters import Augmented, FitEffort
from fedkin.models.estimators import Estimators
from fedkin.portfolio.evidence import ERRORS, GAINS, Evidence, effective_samples
from fedkin.portfolio.members import WatchMembers
from fedkin.portfolio.outcome import CAUTION, told
from fedkin.portfolio.simplex import Expansion
from fedkin.portfolio.weights import weigh
from fedkin.result import History, Result
from fedkin.result.blended import BLENDS, Blend, Blends, said
from fedkin.run import Options
from fedkin.run.recorded import config_of
from fedkin.streams import Streams

MEMBERS = ("local", "kin", "all")
VISITORS = 20
"""Others' estimators that visit a client at most."""


class HeldOut:
    """Sums over held-out samples that are all in this process (see `weights.Sums`)."""

    def __init__(self, evidence: Evidence, effective: np.ndarray, classes: bool, groups: int) -> None:
        self.evidence, self.classes, self.effective = evidence, classes, effective
        self.size, self.members = len(evidence.real), list(MEMBERS)
        self.variants = torch.cat([1 - torch.eye(groups), torch.ones(1, groups)]).double()
        self.logs = evidence.log_likelihood(torch.ones(len(MEMBERS))) if classes else torch.zeros(0)
        self.count = evidence.counted(self.variants).sum(dim=1).numpy()
        self.sound = np.ones((self.size, len(MEMBERS)), dtype=bool)

    def ask(self, task: str, weights: np.ndarray | None = None) -> dict[str, np.ndarray]:
        if task == ERRORS:
            return {"gram": self.evidence.gram(self.variants).numpy()}
        assert task == GAINS
        found = self.evidence.gains(self.logs, torch.as_tensor(weights), self.classes)
        return {name: value.numpy() for name, value in found.items()}

    def slopes(self, weights: np.ndarray) -> Expansion:
        found = self.evidence.slopes(self.logs, torch.as_tensor(weights), self.variants)
        return found["value"].numpy(), found["slopes"].numpy(), found["curvature"].numpy()


@dataclass(frozen=True)
class Heard:
    """What the members say of one client's held-out samples, and how its kin's mean is made."""

    outputs: np.ndarray
    """(n, M, C)."""
    group: np.ndarray
    """By which of them others are judged, (n,): the fold, or every other one where there is a single fold."""
    y: np.ndarray
    shares: np.ndarray
    """Of its own estimator and its peers', (1 + p,), by all of its samples."""


class Fits:
    """Every client's estimator, fitted to all of its samples and without each fold, and what they say of each other's."""

    def __init__(self, clients: Federation, spec: Estimators, seed: int, count: int, used: int) -> None:
        self.clients, self.spec, self.streams, self.used = clients, spec, Streams(seed), used
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

    @property
    def groups(self) -> int:
        return self.used if self.used > 1 else 2

    def heard(self, k: int, whole: Sequence[Any], peers: np.ndarray) -> Heard:
        """What the members say of client k's held-out samples: `whole` are all clients' estimators, of which `peers` (p,) visit it."""
        (x, y), fold, sizes = self.samples[k], self.fold[k], self.clients.train.sizes
        visiting = np.stack([self.said(whole[j], x, int(sizes[j])) for j in peers])
        each = self.losses(visiting, y)

        def weights(rows: np.ndarray) -> np.ndarray:
            """A_k (1 + p), own first, from the losses on these samples."""
            mean, noise = judged_losses(torch.from_numpy(each[:, rows]))
            return kin_weights(mean[None].numpy(), noise[None].numpy(), sizes[peers][None], sizes[k : k + 1])[0]

        found = np.zeros((len(y), len(MEMBERS), visiting.shape[2]))
        for number in range(self.used):
            out, rest = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
            if len(out) and len(rest):
                own = self.said(self.fit(k, rest, number), x[out], len(rest))
                everyone = np.concatenate([own[None], visiting[:, out]])
                found[out] = np.stack([own, np.tensordot(weights(rest), everyone, 1), everyone.mean(axis=0)], axis=1)
        held = np.flatnonzero(fold >= 0) if len(y) > 1 else np.arange(0)
        group = fold[held] if self.used > 1 else np.arange(len(held)) % self.groups
        return Heard(found[held], group, y[held], weights(np.arange(len(y))))

    def peers(self) -> np.ndarray:
        """Whose estimators visit a client, (K, p): where there are many, those whose inputs go with targets as its own."""
        size = len(self.clients)
        rows = [
            np.concatenate([x.mean(axis=0), (self.clients.task.soft(y).T @ x / len(x)).ravel()])
            for x, y in self.samples
        ]
        return candidates(np.stack(rows), min(VISITORS, size - 1), self.streams.seed)


def mixed(
    clients: Federation, spec: Estimators, options: Options, effort: str, cut: tuple[int, int], out: Path | None,
    watch: WatchMembers,
) -> Result:  # fmt: skip
    """auto over estimators. Members are a client's own estimator, the mean Σ_j A_ij f_j(x) of its kin's, and that of all::

        own   f_i, fitted without the fold that is judged
        A_ij  as Kin has it, from losses T_ij of f_j on client i's training samples outside of the fold: f_j has seen none of them
        p     of classes by Laplace's rule, (n_j p + 1)/(n_j + C)

    Weights, the gate and what it prints are auto's. What is deployed are estimators that were fitted to everything. They move between
    clients, so this works in one process.
    """
    begun = time.perf_counter()
    count, used = cut
    size, sizes, classes = len(clients), clients.train.sizes, clients.task.outputs if clients.task.classes else 0
    fits = Fits(clients, spec, options.seed, count, used)
    whole = [fits.fit(k, np.arange(len(fold)), used) for k, fold in enumerate(fits.fold)]
    watch("local", 1, 2)
    peers = fits.peers()
    heard = [fits.heard(k, whole, peers[k]) for k in range(size)]
    watch("local", 2, 2)
    judged = [effective_samples(torch.from_numpy(each.y), bool(classes)) for each in heard]
    sums = HeldOut(_evidence(heard, bool(classes)), np.array(judged), bool(classes), fits.groups)
    weighed = weigh(sums, np.ones(len(MEMBERS)), bool(classes), np.zeros((size, len(MEMBERS))))
    alone = weighed.gain < CAUTION * weighed.error
    shares = np.stack([each.shares for each in heard])
    blend = _blended(np.where(alone[:, None], [1.0, 0, 0], weighed.personal), shares, peers)
    models = Blends(clients.names, dict(zip(clients.names, whole)), blend, sizes, classes)
    own_models = Blends(clients.names, models.fitted, torch.eye(size, dtype=torch.float64), sizes, classes)
    tests = {name: tested(clients, own) for name, own in (("together", models), ("alone", own_models))}
    spent = {"seconds": time.perf_counter() - begun, "evaluation_seconds": 0.0, "bytes": 0, "messages": 0}
    record = {"round": 0, "participants": size, "log": {}, "pre": tests["together"], "post": tests["together"]}
    roster, prior = clients.roster(), weighed.prior
    config = config_of(roster, spec, algorithms.make("local"), options, None)
    result = Result(
        names=clients.names,
        task=clients.task,
        sizes=sizes,
        server_rows=torch.zeros((size, 0)),
        models=models,
        choice=tuple("alone" if own else "together" for own in alone),
        metrics=dict.fromkeys(("pre", "post", "deployed"), tests["together"]),
        history=History(clients.names, [record | spent]),
        config={**config, "algorithm": {"name": "auto", "effort": effort}},
        extras={BLENDS: blend, "kin_peers": torch.from_numpy(peers), "kin_weights": torch.from_numpy(shares)},
        label_counts=roster.label_counts,
        notes=roster.notes,
        facts={
            "algorithm": "auto", "title": "auto", "rounds": 0, "finished": True, **spent, "test_sizes": roster.test,
            "truth": {}, "inputs": roster.inputs, "single_class": {}, "alone": tests["alone"],
            "auto": told(clients.names, MEMBERS, weighed, alone), "effort": effort, "mean_gain": prior.gain,
            "pooled": dict(zip(MEMBERS, prior.pooled.tolist())), "left_out": [],
        },
    )  # fmt: skip
    if out is not None:
        result.save(out)
    return result


def _blended(weights: np.ndarray, shares: np.ndarray, peers: np.ndarray) -> torch.Tensor:
    """How much of each client's estimator every client deploys, (K, K): members at `weights` (K, 3), kin's at `shares` (K, 1 + p)."""
    size = len(weights)
    blend = torch.zeros((size, size), dtype=torch.float64)
    for k, (own, kin, everyone) in enumerate(weights):
        reach = torch.tensor([k, *peers[k]])
        blend[k, reach] = torch.from_numpy(kin * shares[k] + everyone / len(reach))
        blend[k, k] += own
    return blend


def _evidence(heard: Sequence[Heard], classes: bool) -> Evidence:
    """What the members say of all clients' held-out samples, padded: log p of classes, or numbers."""
    longest = max(1, *(len(each.y) for each in heard))

    def padded(parts: list[np.ndarray]) -> torch.Tensor:
        found = np.zeros((len(parts), longest, *parts[0].shape[1:]), dtype=parts[0].dtype)
        for place, part in enumerate(parts):
            found[place, : len(part)] = part
        return torch.from_numpy(found)

    spoken = padded([each.outputs for each in heard])
    return Evidence(
        torch.log(spoken.clamp(min=1e-12)) if classes else spoken,
        padded([each.y for each in heard]),
        padded([np.ones(len(each.y), dtype=bool) for each in heard]),
        padded([each.group.astype(np.int64) for each in heard]),
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
