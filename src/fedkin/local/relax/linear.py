"""Linear regression models of all clients at once: FedRelax on second moments, in batched products.

With Φ the inputs (and a column of ones where the model has a bias), P_j the public points of client j,
G_i = Φ_iᵀΦ_i/m_i, b_i = Φ_iᵀy_i/m_i, S_j = P_jᵀP_j/m_j and the received predictions ŷ_j:

    objective of i   wᵀG_iw − 2b_iᵀw + α Σ_j A_ij (wᵀS_jw − 2 (P_jᵀŷ_j/m_j)ᵀw) + const
    exact update     w_i = (G_i + α Σ_j A_ij S_j)⁺ (b_i + α Σ_j A_ij P_jᵀŷ_j/m_j)

The matrices stay the same from round to round; only P_jᵀŷ_j, one vector per client, is new. All that is used of other
clients is their public points and predictions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedkin.compute.steps import Rule
from fedkin.couplings.sparse import ClientMatrix
from fedkin.local.curves import row_curves
from fedkin.local.kernels.linear import Dense, dense_layers
from fedkin.local.mail import Mail
from fedkin.local.relax.settings import Relaxation, edge_weights, neighbours_of
from fedkin.local.shard import Shard
from fedkin.local.training import evaluate_rows
from fedkin.models.adapters import FitEffort
from fedkin.models.estimators import Estimators
from fedkin.task.discrepancy import discrepancy_of

MOMENT_ENTRIES = 2**27
"""Entries of one stack of second moments (1 GiB in double precision); larger models go through the general path."""


def linear_layer(shard: Shard, effort: FitEffort) -> Dense | None:
    """The only layer of a linear least-squares model whose second moments fit in memory; None for anything else."""
    squares = shard.task.loss == "mse" and discrepancy_of(shard.task, effort.discrepancy).name == "mse"
    if isinstance(shard.spec, Estimators) or not squares:
        return None
    layers = dense_layers(shard.spec.template(), shard.spec.layout)
    if layers is None or len(layers) != 1 or len(shard) * layers[0].weight.shape[1] ** 2 > MOMENT_ENTRIES:
        return None
    return layers[0]


@dataclass(frozen=True)
class Links:
    """What a set of receivers and senders needs in every step; made once while the set stays the same."""

    key: tuple[tuple[str, ...], tuple[str, ...]]
    matrix: ClientMatrix | None
    """A_ij (or as weighted), (receivers, senders); None without letters."""
    points: Tensor
    """Public points of the senders over their number, (S, m, p)."""
    moments: Tensor
    """Σ_j A_ij S_j, (k, p, p)."""
    degree: Tensor
    """Σ_j A_ij as it counts on the receiver's own public points, (k,)."""
    inverse: Tensor | None
    """(G_i + α …)⁺ for exact updates, (k, p, p)."""


class LinearNodes:
    """The linear models of a shard's clients; their rows and the step rule's moments are private state of the shard."""

    def __init__(self, shard: Shard, layer: Dense, known: Mail) -> None:
        self.shard, self.layer = shard, layer
        self.features, self.outputs = layer.weight.shape[1], layer.weight.shape[0]
        dtype = shard.spec.dtype
        self.gram, self.cross, self.power = self._own_moments(dtype)
        own = shard.store["public"]
        self.own_points, self.own_count = self._design(own), _counts(own)
        self.neighbours = neighbours_of(known)
        self.place = {name: s for s, name in enumerate(known.senders)}
        self.points, self.count = self._design(known.letters), _counts(known.letters)
        self.links: Links | None = None
        if "weights" not in shard.store:
            shard.store["weights"] = torch.stack([initial_row(shard, name) for name in shard.names])
            n = shard.spec.layout.n_parameters
            shard.store["moments"] = torch.zeros((len(shard), 2, n), dtype=dtype)
        if "counts" not in shard.store:
            shard.store["counts"] = torch.zeros(len(shard), dtype=torch.float64)

    def _of(self, stack: Tensor, ids: np.ndarray) -> Tensor:
        """The entries of clients `ids`, without a copy when these are all clients in order."""
        return stack if np.array_equal(ids, np.arange(len(stack))) else stack[ids]

    def _design(self, x: Tensor) -> Tensor:
        """Inputs (…, *input) as rows of numbers, with a one at the end where the model has a bias; NaN becomes 0."""
        flat = x.flatten(x.ndim - len(self.shard.task.input_shape)).to(self.shard.spec.dtype)
        if self.layer.bias is not None:
            flat = torch.cat([flat, flat[..., :1] * 0 + 1], dim=-1)
        return torch.nan_to_num(flat)

    def _own_moments(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """G (k, p, p), b (k, C, p) and the mean of y² (k,), all in double precision first."""
        train, found = self.shard.federation.train, []
        for k in range(len(self.shard)):
            x, y = (torch.as_tensor(part, dtype=torch.float64) for part in train[k])
            x, y = self._design(x).double(), y.reshape(len(y), -1)
            found.append((x.T @ x / len(x), y.T @ x / len(x), y.square().mean()))
        gram, cross, power = (torch.stack(parts).to(dtype) for parts in zip(*found))
        return gram, cross, power

    def _unpack(self, rows: Tensor) -> Tensor:
        """Rows (k, B) as weights (k, C, p)."""
        weight = self.layer.weight.view(rows)
        return weight if self.layer.bias is None else torch.cat([weight, self.layer.bias.view(rows)[..., None]], dim=2)

    def _pack(self, weights: Tensor) -> Tensor:
        k, d = len(weights), self.features
        parts = [weights[:, :, :d].reshape(k, -1)] + ([weights[:, :, d]] if self.layer.bias is not None else [])
        return torch.cat(parts, dim=1)

    def _linked(self, ids: np.ndarray, mail: Mail, method: Relaxation, effort: FitEffort) -> Links:
        key = (mail.receivers, mail.senders)
        if self.links is not None and self.links.key == key:
            return self.links
        senders = torch.tensor([self.place[name] for name in mail.senders], dtype=torch.int64)
        points, count = self.points[senders], self.count[senders]
        scaled = points / count[:, None, None].to(points.dtype)
        sizes = self.shard.train.sizes[ids]
        links = edge_weights(mail.links, count.numpy(), sizes, method.weight)
        matrix = ClientMatrix(links) if len(senders) else None
        p = points.shape[2]
        own = torch.bmm(scaled.transpose(1, 2), points).flatten(1)
        moments = (matrix.times(own) if matrix else points.new_zeros((len(ids), p * p))).reshape(-1, p, p)
        degree = edge_weights(mail.links, None, sizes, method.weight, self.own_count[ids].numpy()).sum(axis=1)
        degree_ = torch.as_tensor(np.asarray(degree).ravel(), dtype=points.dtype)
        inverse = None
        if method.update == "exact":
            curvature = self._curvature(ids, moments, degree_, method)
            ridge = torch.eye(p, dtype=torch.float64) * (effort.weight_decay * self.outputs / 2)
            inverse = torch.linalg.pinv(curvature.double() + ridge, hermitian=True).to(points.dtype)
        self.links = Links(key, matrix, scaled, moments, degree_, inverse)
        return self.links

    def _curvature(self, ids: np.ndarray, moments: Tensor, degree: Tensor, method: Relaxation) -> Tensor:
        """G_i + α Σ_j A_ij S_j (+ α deg_i S_i for the exact block), (k, p, p)."""
        matrix = self._of(self.gram, ids) + method.alpha * moments
        if method.exact_block:
            points = self._of(self.own_points, ids)
            own = torch.bmm(points.transpose(1, 2), points) / self.own_count[ids][:, None, None].to(points.dtype)
            matrix = matrix + method.alpha * degree[:, None, None] * own
        return matrix

    def step(
        self, ids: np.ndarray, mail: Mail, answers: Tensor | None, method: Relaxation, round: int, effort: FitEffort
    ) -> tuple[Tensor, Tensor]:
        """Update the models of clients `ids`; the loss (k,) and the variation Σ_j A_ij δ_ij (k,) before the update."""
        links, alpha = self._linked(ids, mail, method, effort), method.alpha
        rows = self.shard.store["weights"][ids]
        rule = self._rule(ids, rows, effort)
        weights, c = self._unpack(rows), self.outputs
        gram, cross = self._of(self.gram, ids), self._of(self.cross, ids)
        pulled, said = self._heard(links, mail, weights)
        block = self._block(ids, links, mail, answers, method, weights)

        by_own, by_others = torch.bmm(weights, gram), torch.bmm(weights, links.moments)
        loss = (weights * (by_own - 2 * cross)).sum(dim=(1, 2)) / c + self.power[ids]
        variation = ((weights * (by_others - 2 * pulled)).sum(dim=(1, 2)) + said) / c
        if links.inverse is not None:
            target = cross + alpha * (pulled if block is None else pulled + block[1])
            rows = self._pack(torch.bmm(target, links.inverse))
        for step in range(effort.steps if links.inverse is None else 0):
            if step:
                weights = self._unpack(rows)
                by_own, by_others = torch.bmm(weights, gram), torch.bmm(weights, links.moments)
            slope = by_own - cross + alpha * (by_others - pulled)
            if block is not None:
                slope += alpha * (torch.bmm(weights, block[0]) - block[1])
            packed = self._pack(slope * (2 / c))
            for term in effort.terms:
                term.add(packed, rows)
            rule.step(rows, packed)
        self.shard.store["weights"][ids] = rows
        for kept, moment in self._moments(rule):
            kept[ids] = moment
        return loss.clamp(min=0).double(), variation.clamp(min=0).double()

    def _rule(self, ids: np.ndarray, rows: Tensor, effort: FitEffort) -> Rule:
        """The step rule of clients `ids`, which goes on from what was kept of it."""
        rule = effort.rule(rows)
        for kept, moment in self._moments(rule) if effort.keep else ():
            moment.copy_(kept[ids])
        return rule

    def _moments(self, rule: Rule) -> list[tuple[Tensor, Tensor]]:
        """Where in the shard's store each moment of a rule is kept, and the moment: at most two of (k, P), and a count."""
        wide = [moment for moment in rule.state.values() if moment.dim() == 2]
        counts = [moment for moment in rule.state.values() if moment.dim() == 1]
        slots = [self.shard.store["moments"][:, slot] for slot in range(len(wide))]
        return list(zip([*slots, self.shard.store["counts"]], [*wide, *counts]))

    def _heard(self, links: Links, mail: Mail, weights: Tensor) -> tuple[Tensor, Tensor]:
        """What neighbours said: Σ_j A_ij (1/m_j) Σ_x ŷ_j(x) xᵀ (k, C, p), and Σ_j A_ij (1/m_j) Σ_x ‖ŷ_j(x)‖² (k,)."""
        if links.matrix is None:
            return torch.zeros_like(weights), weights.new_zeros(len(weights))
        letters = mail.letters.to(weights.dtype)
        products = torch.bmm(letters.transpose(1, 2), links.points).flatten(1)
        power = (letters.square().sum(dim=(1, 2)) / self.count[[self.place[s] for s in mail.senders]])[:, None]
        pulled = links.matrix.times(products).reshape(weights.shape)
        return pulled, links.matrix.times(power.to(weights.dtype))[:, 0]

    def _block(
        self, ids: np.ndarray, links: Links, mail: Mail, answers: Tensor | None, method: Relaxation, weights: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """The exact block's curvature deg_i S_i (k, p, p) and what neighbours answered on one's own points, (k, C, p)."""
        if not method.exact_block:
            return None
        if method.common and links.matrix is not None:
            letters = mail.letters.to(weights.dtype)
            total = links.matrix.times(letters.flatten(1)).reshape(len(weights), -1, self.outputs)
            answers = total / links.degree.clamp(min=1e-30)[:, None, None]
        if answers is None:
            return None
        points, degree = self._of(self.own_points, ids), links.degree[:, None, None]
        scaled = points / self.own_count[ids][:, None, None].to(weights.dtype)
        curvature = degree * torch.bmm(scaled.transpose(1, 2), points)
        return curvature, degree * torch.bmm(answers.to(weights.dtype).transpose(1, 2), scaled)

    def predict(self, ids: np.ndarray) -> Tensor:
        """Predictions on the clients' own public points, (k, m, C); 0 where a set has fewer points."""
        return torch.bmm(self._of(self.own_points, ids), self._unpack(self.shard.store["weights"][ids]).transpose(1, 2))

    def answer(self, k: int, sender: str) -> Tensor:
        """Predictions of client k on the public points of a neighbour, (m, C)."""
        return self.points[self.place[sender]] @ self._unpack(self.shard.store["weights"][k : k + 1])[0].T

    def evaluate(self, ids: np.ndarray, parts: list[str]) -> dict[str, Tensor]:
        rows = self.shard.store["weights"][ids]
        found = {part: evaluate_rows(self.shard, ids, rows, part) for part in parts}  # type: ignore[arg-type]
        return {f"{part}_{name}": value for part, values in found.items() for name, value in values.items()}

    def curves(self, ids: np.ndarray) -> dict[str, Tensor]:
        """The arrays of `row_curves`."""
        return row_curves(self.shard, ids, self.shard.store["weights"][ids])

    def disclose(self, ids: np.ndarray) -> dict[str, Tensor]:
        """The clients' rows, to be saved where they were asked for."""
        return {"model": self.shard.store["weights"][ids], "counters": torch.zeros((len(ids), 0), dtype=torch.int64)}

    def memory_width(self) -> int:
        return 0


def initial_row(shard: Shard, name: str) -> Tensor:
    """The initial weights of one client, from its own stream (torch: U(−1/√d, 1/√d) for linear layers)."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(shard.streams.integer("init", name))
        return shard.spec.layout.pack(shard.spec.factory(), shard.spec.dtype)


def _counts(public: Tensor) -> Tensor:
    """How many points each set holds: the rest of its rows is NaN. (S, m, *input) → (S,)."""
    return torch.isfinite(public.flatten(2)).all(dim=2).sum(dim=1)
