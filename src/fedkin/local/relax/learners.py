"""Models of any kind, one learner per client: FedRelax on weighted samples.

At every exchange client i improves its model on its own samples (weight 1), on the public points of its neighbours with
their predictions (α·A_ij·m_i/m_j each) and, for trees, on points labelled by its own model (self-distillation).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedkin.compute.threads import one_thread
from fedkin.local.mail import Mail
from fedkin.local.relax.linear import initial_row
from fedkin.local.relax.settings import Relaxation, neighbours_of
from fedkin.local.shard import Shard
from fedkin.models.adapters import Augmented, FitEffort, Learner
from fedkin.models.adapters.module import TorchLearner
from fedkin.models.estimators import Estimators
from fedkin.task.curves import no_curves, points_of, tells_curves
from fedkin.task.discrepancy import discrepancy_of
from fedkin.task.judging import may_lack, valued
from fedkin.task.losses import loss_of

DISTIL = 100
WeightedPart = tuple[np.ndarray, np.ndarray, float]
"""Points, what is said of them, and how much each counts."""


class LearnerNodes:
    """The learners of a shard's clients. What they need to be built again is private state of the shard."""

    def __init__(self, shard: Shard, known: Mail, method: Relaxation, effort: FitEffort) -> None:
        self.shard, self.task = shard, shard.task
        own = shard.store["public"]
        self.own_points = [_real(points, shard.task.tokens) for points in own]
        self.points = {name: _real(x, shard.task.tokens) for name, x in zip(known.senders, known.letters)}
        self.neighbours = neighbours_of(known)
        self.targets = [shard.task.soft(y) for _, y in shard.federation.train]
        self.loss, self.discrepancy = loss_of(shard.task), discrepancy_of(shard.task, effort.discrepancy)
        self.learners: list[Learner] = [self._made(name, effort) for name in shard.names]
        if "memory" in shard.store:
            self._restore(method, effort)
        else:
            self._fit_alone(effort)

    def _made(self, name: str, effort: FitEffort) -> Learner:
        spec = self.shard.spec
        if isinstance(spec, Estimators):
            return spec.learner(name, self.task, self.shard.streams, effort)
        module = spec.layout.unpack(initial_row(self.shard, name), spec.template())
        return TorchLearner(name, module, self.task, spec.dtype, effort)

    def _alone(self, k: int) -> Augmented:
        x = self.shard.federation.train[k][0]
        return Augmented(x, self.targets[k], np.ones(len(x)), len(x))

    def _fit_alone(self, effort: FitEffort) -> None:
        """The start: estimators are fitted to their own samples; networks have their initial weights."""
        refits = [k for k, learner in enumerate(self.learners) if learner.refits]
        self.shard.each(
            lambda k: self.learners[k].improve(self._alone(k), replace(effort, seed=self._seed(k, 0))), refits
        )
        for k in refits:
            self.learners[k].predict(self.own_points[k][:1])  # a wrong output shape is found here, before training

    def _seed(self, k: int, round: int) -> int:
        return self.shard.streams.integer("fit", self.shard.names[k], round)

    # --- one exchange -------------------------------------------------------------------------------------------------

    def step(
        self, ids: np.ndarray, mail: Mail, answers: Tensor | None, method: Relaxation, round: int, effort: FitEffort
    ) -> tuple[Tensor, Tensor]:
        """Improve the models of clients `ids`; the loss (k,) and the variation Σ_j A_ij δ_ij (k,) before that."""
        place = {name: s for s, name in enumerate(mail.senders)}
        letters = mail.letters.double().numpy()
        loss, variation = torch.zeros(len(ids), dtype=torch.float64), torch.zeros(len(ids), dtype=torch.float64)
        self._room(method, round)

        def work(position: int) -> None:
            k = int(ids[position])
            linked = {mail.senders[j] for j in mail.links.indices[slice(*mail.links.indptr[position : position + 2])]}
            heard = {name: letters[place[name]] for name in self.neighbours[k] if name in linked}
            answered = None if answers is None else answers[position].double().numpy()
            loss[position] = self._loss(self.learners[k], *self.shard.federation.train[k])[1]
            variation[position] = self._variation(k, heard, method)
            z, labels = self._distilled(k, round, method, bool(heard))
            self._keep(k, round, heard, labels)
            samples = self._augmented(k, heard, answered, z, labels, method)
            self.learners[k].improve(samples, replace(effort, seed=self._seed(k, round)))
            memory = self.learners[k].memory()
            self.shard.store["memory"][k, : len(memory)] = torch.from_numpy(memory)

        together = [p for p, k in enumerate(ids) if self.learners[int(k)].refits]
        self.shard.each(work, together)
        with one_thread():
            for position in sorted(set(range(len(ids))) - set(together)):  # torch's random state is global: one by one
                work(position)
        return loss, variation

    def _variation(self, k: int, heard: Mapping[str, np.ndarray], method: Relaxation) -> float:
        """Σ_j A_ij δ_ij, as weighted in the objective."""
        if not heard:
            return 0.0
        counts = [len(self.points[name]) for name in heard]
        asked = [self.points[name] for name in heard]
        if method.common:
            mine = np.tile(self.learners[k].predict(asked[0]), (len(heard), 1))
        else:
            mine = self.learners[k].predict(np.concatenate(asked))
        theirs = np.concatenate([said[:count] for said, count in zip(heard.values(), counts)])
        each = self.discrepancy.apart(torch.from_numpy(mine), torch.from_numpy(theirs)).numpy()
        apart = np.split(each, np.cumsum(counts)[:-1])
        edges = (self._edge(k, name, count, method) for name, count in zip(heard, counts))
        return float(sum(edge * each.mean() for edge, each in zip(edges, apart)))

    def _edge(self, k: int, name: str, count: int, method: Relaxation) -> float:
        """What an edge counts beside the local loss (see `edge_weights`)."""
        weight = self.neighbours[k][name]
        return weight if method.weight == "scaled" else weight * count / len(self.targets[k])

    def _loss(self, learner: Learner, x: np.ndarray, y: np.ndarray) -> tuple[Tensor, float]:
        """Outputs (n, C) that say what a learner predicts, and their mean loss."""
        outputs = self.task.unlinked(torch.from_numpy(learner.predict(x)))
        return outputs, float(self.loss(outputs, self.task.firm(torch.from_numpy(self.task.soft(y)))).mean())

    def _distilled(self, k: int, round: int, method: Relaxation, coupled: bool) -> tuple[np.ndarray, np.ndarray]:
        """Fresh points z and the present model's predictions there; none when nothing couples the client."""
        learner = self.learners[k]
        wanted = method.distil if method.distil is not None else (DISTIL if learner.distils else 0)
        if not learner.refits or method.alpha == 0 or not coupled or self.task.tokens:
            wanted = 0
        z = self._distillation_points(k, round, wanted, method)
        return z, learner.predict(z) if wanted else np.zeros((0, self.task.outputs))

    def _distillation_points(self, k: int, round: int, count: int, method: Relaxation) -> np.ndarray:
        """z ~ N(0, I), or with the mean and spread of the client's own inputs; fresh in every round."""
        rng = self.shard.streams.generator("distil", self.shard.names[k], round)
        z = rng.normal(size=(count, *self.task.input_shape))
        if method.distil_from == "data":
            x = self.shard.federation.train[k][0]
            z = x.mean(axis=0) + z * x.std(axis=0)
        return z

    def _augmented(
        self,
        k: int,
        heard: Mapping[str, np.ndarray],
        answers: np.ndarray | None,
        z: np.ndarray,
        labels: np.ndarray,
        method: Relaxation,
    ) -> Augmented:
        """The client's own samples, what it heard, and what it says itself."""
        own = len(self.targets[k])
        parts: list[WeightedPart] = [(self.shard.federation.train[k][0], self.targets[k], 1.0)]
        if method.alpha > 0 and heard:
            once = method.common and self.discrepancy.of_means
            told = self._told_on_common(k, heard, method) if once else self._told(k, heard, answers, method)
            parts += [(points, said, method.alpha * weight * own / len(points)) for points, said, weight in told]
        if len(z):
            parts.append((z, labels, method.distil_weight))
        x, targets, _ = (list(column) for column in zip(*parts))
        weight = np.concatenate([np.full(len(points), weight) for points, _, weight in parts])
        return Augmented(np.concatenate(x), np.concatenate(targets), weight, own)

    def _told(
        self, k: int, heard: Mapping[str, np.ndarray], answers: np.ndarray | None, method: Relaxation
    ) -> list[WeightedPart]:
        """Neighbours on their own points, each by its edge; for the exact block also their mean on the client's."""
        told: list[WeightedPart] = []
        for name, said in heard.items():
            points = self.points[name]
            told.append((points, said[: len(points)], self._edge(k, name, len(points), method)))
        if method.exact_block and answers is not None:
            points = self.own_points[k]
            total = sum(self._edge(k, name, len(points), method) for name in heard)
            told.append((points, answers[: len(points)], total))
        return told

    def _told_on_common(self, k: int, heard: Mapping[str, np.ndarray], method: Relaxation) -> list[WeightedPart]:
        """One set of points for all: the weighted mean of what neighbours say there is all that counts."""
        points = self.points[next(iter(heard))]
        edges = {name: self._edge(k, name, len(points), method) for name in heard}
        total = sum(edges.values())
        mean = np.sum([edges[name] * said[: len(points)] for name, said in heard.items()], axis=0) / total
        return [(points, mean, (2 if method.exact_block else 1) * total)]

    # --- what is kept to build estimators again -----------------------------------------------------------------------

    def _room(self, method: Relaxation, round: int) -> None:
        store, n = self.shard.store, len(self.shard)
        if "memory" in store:
            return
        store["memory"] = torch.zeros((n, method.memory), dtype=torch.float64)
        if isinstance(self.shard.spec, Estimators):
            points, outputs = store["public"].shape[1], self.task.outputs
            count = DISTIL if method.distil is None else method.distil
            store["fitted"] = torch.zeros(n, dtype=torch.int64)
            store["received"] = torch.full((n, method.degree, points, outputs), torch.nan, dtype=torch.float64)
            store["labels"] = torch.full((n, count, outputs), torch.nan, dtype=torch.float64)

    def _keep(self, k: int, round: int, heard: Mapping[str, np.ndarray], labels: np.ndarray) -> None:
        if "fitted" not in self.shard.store:
            return
        store = self.shard.store
        store["fitted"][k] = round
        store["received"][k] = torch.nan
        for slot, name in enumerate(self.neighbours[k]):
            if name in heard:
                store["received"][k, slot] = torch.from_numpy(heard[name])
        store["labels"][k] = torch.nan
        store["labels"][k, : len(labels)] = torch.from_numpy(labels)

    def _restore(self, method: Relaxation, effort: FitEffort) -> None:
        """After a restart: networks get their weights back, estimators repeat their last fit on the same samples."""
        store = self.shard.store

        def work(k: int) -> None:
            learner = self.learners[k]
            round = int(store["fitted"][k]) if "fitted" in store else 0
            if not learner.refits:
                learner.recall(store["memory"][k].numpy()) if bool(store["memory"][k].any()) else None
            elif round == 0:
                learner.improve(self._alone(k), replace(effort, seed=self._seed(k, 0)))
            else:
                received = store["received"][k].numpy()
                heard = {
                    name: received[slot]
                    for slot, name in enumerate(self.neighbours[k])
                    if np.isfinite(received[slot]).all()
                }
                labels = store["labels"][k].numpy()
                labels = labels[np.isfinite(labels).all(axis=1)]
                z = self._distillation_points(k, round, len(labels), method)
                answers = store["answers"][k].double().numpy() if "answers" in store else None
                if effort.leaves:  # the splits are those of the first fit
                    learner.improve(self._alone(k), replace(effort, seed=self._seed(k, 0)))
                again = replace(effort, resample=True, seed=self._seed(k, round))
                learner.improve(self._augmented(k, heard, answers, z, labels, method), again)

        with one_thread():
            for k in range(len(self.shard)):
                work(k)

    # --- looking ------------------------------------------------------------------------------------------------------

    def predict(self, ids: np.ndarray) -> Tensor:
        """Predictions on the clients' own public points, (k, m, C); 0 where a set has fewer points."""
        longest = self.shard.store["public"].shape[1]
        table = torch.zeros((len(ids), longest, self.task.outputs), dtype=self.shard.spec.dtype)
        for position, k in enumerate(ids):
            points = self.own_points[int(k)]
            table[position, : len(points)] = torch.from_numpy(self.learners[int(k)].predict(points))
        return table

    def answer(self, k: int, sender: str) -> Tensor:
        """Predictions of client k on the public points of a neighbour, (m, C)."""
        points = self.points[sender]
        table = torch.zeros(self.shard.store["public"].shape[1], self.task.outputs, dtype=torch.float64)
        table[: len(points)] = torch.from_numpy(self.learners[k].predict(points))
        return table

    def evaluate(self, ids: np.ndarray, parts: list[str]) -> dict[str, Tensor]:
        """Mean loss and headline metric of each client on its own samples."""
        reply: dict[str, Tensor] = {}
        for part in parts:
            split = getattr(self.shard.federation, part)
            names = ("loss", *self.task.metric_keys, *(f"{name}_count" for name in may_lack(self.task)))
            table = torch.zeros((len(ids), len(names)), dtype=torch.float64)
            for position, k in enumerate(ids):
                x, y = split[int(k)]
                if len(x):
                    outputs, loss = self._loss(self.learners[int(k)], x, y)
                    judged = valued(self.task, self.task.judge(outputs, torch.as_tensor(y)), len(y))
                    found = {"loss": loss, **judged}
                    table[position] = torch.tensor([found[name] for name in names], dtype=torch.float64)
            reply |= {f"{part}_{name}": table[:, column] for column, name in enumerate(names)}
            reply[f"{part}_count"] = torch.from_numpy(split.sizes[ids])
        return reply

    def curves(self, ids: np.ndarray) -> dict[str, Tensor]:
        """The curves of every client's estimator on its test samples; none where targets are numbers."""
        if not tells_curves(self.task):
            return {}
        told, split = no_curves(len(ids)), self.shard.federation.test
        for position, k in enumerate(ids):
            x, y = split[int(k)]
            if len(x):
                outputs, _ = self._loss(self.learners[int(k)], x, y)
                for name, points in points_of(self.task, outputs, torch.as_tensor(y)).items():
                    told[name][position] = points
        return told

    def disclose(self, ids: np.ndarray) -> dict[str, Tensor]:
        """The clients' rows and counters where they have one architecture; empty ones otherwise."""
        layout, dtype = self.shard.spec.layout, self.shard.spec.dtype
        modules = [self.learners[int(k)].model for k in ids] if layout.width else []
        counters = [[int(dict(m.named_buffers())[name].sum()) for name in layout.counters] for m in modules]
        return {
            "model": torch.stack([layout.pack(m, dtype) for m in modules]) if modules else torch.zeros((len(ids), 0)),
            "counters": torch.tensor(counters or [[]] * len(ids), dtype=torch.int64).reshape(len(ids), -1),
        }

    def models(self) -> dict[str, object]:
        """The fitted models by client name."""
        return {name: learner.model for name, learner in zip(self.shard.names, self.learners)}

    def memory_width(self) -> int:
        return max(len(learner.memory()) for learner in self.learners)


def _real(points: Tensor, tokens: bool) -> np.ndarray:
    """A set of public points without its padding, (count, *input)."""
    kept = points[torch.isfinite(points.reshape(len(points), -1)).all(dim=1)].numpy()
    return kept.astype(np.int64) if tokens else kept
