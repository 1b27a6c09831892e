"""Evidence: what members predict for samples they have not seen. It stays with the clients; they tell sums of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, client_task
from fedkin.local.transfer import outputs_of

GATHER, TEMPER, SHARES, ERRORS, GAINS = (
    f"{__name__}:{task}" for task in ("gather evidence", "temper", "shares", "errors", "gains")
)
"""Names of the tasks, as `Clients.ask` takes them."""


@dataclass
class Evidence:
    """Held-out samples of the shard's clients, padded to the longest (k, n): what M members say of them."""

    outputs: Tensor
    """(k, n, M, …): logits, or predictions of a regression."""
    targets: Tensor
    real: Tensor
    """(k, n) bool: a sample, not padding."""
    group: Tensor
    """(k, n): samples of one group are judged by weights that were fitted without it."""
    sound: Tensor
    """(k, M) bool: the member's predictions are finite for all of the client's samples."""

    def log_likelihood(self, temperatures: Tensor) -> Tensor:
        """log p of the true class under each member, (k, n, M) float64; −∞ never, padding 0."""
        logits = self.outputs.double() / temperatures.view(1, 1, -1, 1)
        found = torch.log_softmax(logits, dim=-1)
        truth = self.targets[:, :, None, None].expand(*logits.shape[:3], 1)
        return found.gather(-1, truth).squeeze(-1).clamp(min=-CLIP) * self.real[:, :, None]

    def errors(self) -> Tensor:
        """Residuals y − f_m(x), flattened over the entries of a target, (k, n, M, D) float64; padding 0."""
        shape = (*self.outputs.shape[:3], -1)
        apart = self.targets.double()[:, :, None].reshape(
            *self.outputs.shape[:2], 1, -1
        ) - self.outputs.double().reshape(shape)
        return apart * self.real[:, :, None, None]


CLIP = 20.0
"""A member that gives the true class less than e^−20 is as wrong as one that gives it e^−20."""


@client_task("gather evidence")
def gather_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Predict the held-out samples with M models; per_client "models" (k, M, B), shared "groups" (1: by fold).

    The predictions are kept on the clients. Returns "count" (k,), "effective" (k,), the number of samples that count when
    one class is rare, and "sound" (k, M).
    """
    models, groups = request.per_client["models"], int(request.shared["groups"])
    members = models.shape[1]
    sizes = shard.validation.sizes[request.ids]
    longest = max(1, int(sizes.max(initial=0)))
    y = shard.validation.y
    outputs: list[Tensor | None] = [None] * len(request.ids)

    def work(place: int) -> None:
        if sizes[place]:
            rows = torch.nan_to_num(models[place].to(shard.spec.dtype))
            outputs[place] = outputs_of(shard, shard.validation, int(request.ids[place]), rows)[0]

    shard.each(work, list(range(len(request.ids))))
    some = next((value for value in outputs if value is not None), None)
    tail = (shard.task.outputs,) if some is None else tuple(some.shape[2:])
    kept = torch.zeros((len(request.ids), longest, members, *tail), dtype=shard.spec.dtype)
    targets = torch.zeros((len(request.ids), longest, *y.shape[1:]), dtype=y.dtype)
    effective = np.zeros(len(request.ids))
    for place, value in enumerate(outputs):
        if value is None:
            continue
        own = shard.validation.targets(int(request.ids[place]))
        kept[place, : len(own)] = value.transpose(0, 1)
        targets[place, : len(own)] = own
        effective[place] = _effective(own, shard.task.one_label)
    real = torch.arange(longest)[None, :] < torch.from_numpy(sizes)[:, None]
    sound = torch.isfinite(models).all(dim=2) & torch.isfinite(kept).flatten(3).all(dim=3).all(dim=1)
    group = (torch.arange(longest) % groups).expand(len(request.ids), -1)
    if groups == 1:
        group = request.per_client["fold"].view(-1, 1).expand(-1, longest)
    shard.objects["evidence"] = Evidence(torch.nan_to_num(kept), targets, real, group, sound)
    told = {"count": torch.from_numpy(sizes.copy()), "effective": torch.from_numpy(effective), "sound": sound}
    for number in range(int(request.shared["variants"])):  # samples per group
        told[f"group{number}"] = (real & (group == number)).sum(dim=1)
    return told


def _effective(targets: Tensor, classes: bool) -> float:
    """n·min(1, 2·(1 − share of the largest class)): with one class only, a client's own samples say little."""
    if not classes or not len(targets):
        return float(len(targets))
    return len(targets) * min(1.0, 2 * (1 - float(torch.bincount(targets).max()) / len(targets)))


@client_task("temper")
def temper_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Sums of −log p under each member at each temperature of a grid, "loss" (k, M, G)."""
    evidence: Evidence = shard.objects["evidence"]
    grid: Tensor = request.shared["grid"]
    members = evidence.outputs.shape[2]
    told = [-evidence.log_likelihood(value.expand(members)).sum(dim=1) for value in grid]
    return {"loss": torch.stack(told, dim=2)}


def _without(evidence: Evidence, variants: int) -> Tensor:
    """Which samples count for variant v: all but group v, and all for the last, (k, n, V) float64."""
    apart = evidence.group[:, :, None] != torch.arange(variants)
    return (apart & evidence.real[:, :, None]).double()


@client_task("shares")
def shares_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """One step of EM: per_client "weights" (k, V, M) → "shares" (k, V, M), Σ_s w_m p_m(s)/Σ_l w_l p_l(s) without group v."""
    evidence: Evidence = shard.objects["evidence"]
    weights = request.per_client["weights"].double()
    likelihood = evidence.log_likelihood(request.shared["temperatures"]).exp()
    mixed = torch.einsum("knm,kvm->knv", likelihood, weights).clamp(min=1e-300)
    counted = _without(evidence, weights.shape[1]) / mixed
    return {"shares": weights * torch.einsum("knv,knm->kvm", counted, likelihood)}


@client_task("errors")
def errors_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Products of the members' residuals, summed without group v: "gram" (k, V, M, M), for regression."""
    evidence: Evidence = shard.objects["evidence"]
    errors = evidence.errors()
    per_sample = torch.einsum("knmd,knld->knml", errors, errors) / errors.shape[3]
    counted = _without(evidence, int(request.shared["variants"]))
    return {"gram": torch.einsum("knv,knml->kvml", counted, per_sample)}


@client_task("gains")
def gains_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """How much better the combination is than member 0, by loss, each group judged by the weights fitted without it.

    per_client "weights" (k, V, M). Returns "gain" and "square" (k,): Σ d and Σ d² of the differences d per sample.
    """
    evidence: Evidence = shard.objects["evidence"]
    weights = request.per_client["weights"].double()
    own = weights.gather(1, evidence.group[:, :, None].expand(-1, -1, weights.shape[2]))  # (k, n, M)
    if shard.task.one_label:
        logs = evidence.log_likelihood(request.shared["temperatures"])
        together = -(logs.exp() * own).sum(dim=2).clamp(min=1e-300).log()
        alone = -logs[:, :, 0]
    else:
        errors = evidence.errors()
        together = (errors * own[..., None]).sum(dim=2).square().mean(dim=2)
        alone = errors[:, :, 0].square().mean(dim=2)
    apart = (alone - together) * evidence.real
    return {"gain": apart.sum(dim=1), "square": apart.square().sum(dim=1)}
