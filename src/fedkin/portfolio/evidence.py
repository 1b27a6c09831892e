"""Evidence: what members say of samples they have not seen. It stays with the clients; they tell sums of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.errors import Forgot
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, client_task
from fedkin.local.training import on_own_samples
from fedkin.local.transfer import capped_loss

SAY, FORGET, COUNT, SLOPES, ERRORS, GAINS = (
    f"{__name__}:{task}" for task in ("say", "forget training", "count", "slopes", "errors", "gains")
)
"""Names of the tasks, as `Clients.ask` takes them."""

CLIP = 20.0
"""A member that gives the true class less than e^−20 is as wrong as one that gives it e^−20."""
NO_FIT = 1e30
"""The training loss of a model that is no longer finite."""
UNSEEN = 10.0
"""Held-out samples may be outliers: a member's mean loss on them may be so many times the limit on training samples."""


@dataclass(frozen=True)
class Evidence:
    """Held-out samples of some clients, padded to the longest (k, n): what M members say of them."""

    outputs: Tensor
    """(k, n, M, …): logits, or predictions of a regression. Where a member broke off the first sound one speaks for it."""
    targets: Tensor
    real: Tensor
    """(k, n) bool: a sample, not padding."""
    group: Tensor
    """(k, n): samples of one group are judged by weights that were fitted without it."""

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

    def counted(self, variants: Tensor) -> Tensor:
        """Which samples count for each variant (V, groups) of the evidence, (k, n, V) float64."""
        return variants.double().T[self.group] * self.real[:, :, None]

    def slopes(self, logs: Tensor, weights: Tensor, variants: Tensor) -> dict[str, Tensor]:
        """L = −Σ_s log Σ_m w_m p_m(s) over the samples of each variant, at weights (k, V, M), from log p (k, n, M).

        Its "value" (k, V), "slopes" (k, V, M) and "curvature" (k, V, M, M).
        """
        likelihood = logs.exp()
        mixed = torch.einsum("knm,kvm->knv", likelihood, weights).clamp(min=1e-300)
        counted = self.counted(variants)
        each = counted / mixed.square()
        curved = [torch.einsum("kn,knm,knl->kml", each[:, :, v], likelihood, likelihood) for v in range(each.shape[2])]
        return {
            "value": -(mixed.log() * counted).sum(dim=1),
            "slopes": -torch.einsum("knv,knm->kvm", counted / mixed, likelihood),
            "curvature": torch.stack(curved, 1),
        }

    def gram(self, variants: Tensor) -> Tensor:
        """Products of the members' residuals, summed over the samples of each variant, (k, V, M, M)."""
        errors = self.errors()
        per_sample = torch.einsum("knmd,knld->knml", errors, errors) / errors.shape[3]
        return torch.einsum("knv,knml->kvml", self.counted(variants), per_sample)

    def gains(self, logs: Tensor, weights: Tensor, classes: bool) -> dict[str, Tensor]:
        """How much better the combination is than member 0, by loss, each group judged by the weights (k, V, M) without it.

        "gain" and "square" (k,): Σ d and Σ d² of the differences d per sample.
        """
        own = weights.gather(1, self.group[:, :, None].expand(-1, -1, weights.shape[2]))  # (k, n, M)
        if classes:
            together = -(logs.exp() * own).sum(dim=2).clamp(min=1e-300).log()
            alone = -logs[:, :, 0]
        else:
            errors = self.errors()
            together = (errors * own[..., None]).sum(dim=2).square().mean(dim=2)
            alone = errors[:, :, 0].square().mean(dim=2)
        apart = (alone - together) * self.real
        return {"gain": apart.sum(dim=1), "square": apart.square().sum(dim=1)}


# --- one member after the other ---------------------------------------------------------------------------------------


@client_task("say")
def say_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Have a member say what it thinks of the held-out samples: per_client "models" (k, B), "limit" (k,), shared "member",
    "grid" (G,).

    What it says stays on the client. Returns "tempered" (k, G), for classes the sums of −log p at every temperature of the
    grid, else the sums of squared errors; "fit" (k,), the mean loss on the client's training samples; and "sound" (k,):
    whether all is finite and the loss within the limit, on training samples and (ten times it) on those held out: a network at a
    large rate can fit the first and be out of all bounds on the others.
    """
    models = request.per_client["models"]
    classes, grid = shard.task.mixes_chances, request.shared["grid"]
    longest = max(1, int(shard.validation.sizes.max(initial=0)))
    tail = (shard.task.outputs,) if classes else shard.task.output_shape or (1,)
    empty = partial(torch.zeros, (longest, *tail), dtype=shard.spec.dtype)
    said = shard.private(f"said {request.shared['member']}", empty)
    well = shard.private(f"sound {request.shared['member']}", partial(torch.zeros, 1))
    sound = torch.isfinite(models).all(dim=1)
    fit = torch.full((len(sound),), NO_FIT, dtype=torch.float64)

    loss = capped_loss(shard)

    def mean_loss(outputs: Tensor, targets: Tensor, real: Tensor) -> Tensor:
        losses = loss(outputs.flatten(0, 1), targets.flatten(0, 1)).double().view(real.shape)
        own = torch.where(real, losses, 0.0).sum(dim=1) / real.sum(dim=1).clamp(min=1)
        return own.nan_to_num(nan=NO_FIT).clamp(max=NO_FIT)

    def fits(chosen: np.ndarray, outputs: Tensor, targets: Tensor, real: Tensor) -> None:
        fit[finite[chosen]] = mean_loss(outputs, targets, real)

    def speaks(chosen: np.ndarray, outputs: Tensor, targets: Tensor, real: Tensor) -> None:
        places = torch.from_numpy(well_fitted[chosen])
        there = real.view(*real.shape, *[1] * len(tail))
        padded = torch.where(there, outputs.view(*real.shape, *tail), 0.0)
        said[request.ids[well_fitted[chosen]], : real.shape[1]] = padded
        within = mean_loss(outputs, targets, real) <= UNSEEN * limit[places]
        sound[places] = torch.isfinite(padded).flatten(1).all(dim=1) & within

    finite = np.flatnonzero(sound.numpy())
    on_own_samples(shard, request.ids[finite], models[torch.from_numpy(finite)], "train", fits)
    limit = request.per_client["limit"]
    sound &= fit <= limit
    well_fitted = np.flatnonzero(sound.numpy())
    on_own_samples(shard, request.ids[well_fitted], models[torch.from_numpy(well_fitted)], "validation", speaks)
    well[request.ids, 0] = sound.to(well.dtype)
    found = _padded(shard, request.ids, [request.shared["member"]])
    told = torch.zeros((len(request.ids), len(grid)), dtype=torch.float64)
    if classes:
        told = torch.stack([-found.log_likelihood(value.view(1)).sum(dim=(1, 2)) for value in grid.double()], dim=1)
    else:
        told += found.errors().square().mean(dim=3).sum(dim=(1, 2))[:, None]
    return {"tempered": torch.where(sound[:, None], told, 0.0), "sound": sound, "fit": fit}


@client_task("forget training")
def forget_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Private state of a method that trained before is dropped; what members said stays."""
    for name in [*shard.store]:
        if not name.startswith(("said ", "sound ")):
            shard.store.pop(name), shard.unset.pop(name, None)
    shard.private("begun", partial(torch.zeros, 1))
    return {"forgot": torch.ones(len(request.ids), dtype=torch.int64)}


def _padded(shard: Shard, ids: np.ndarray, members: list[str], groups: int = 1, fold: Tensor | None = None) -> Evidence:
    """The evidence of some clients and members, from what was said. A process that does not hold it raises Forgot."""
    names = [f"{what} {member}" for what in ("said", "sound") for member in members]
    if any(name not in shard.store for name in names):
        raise Forgot
    sizes = shard.validation.sizes[ids]
    longest = max(1, int(sizes.max(initial=0)))
    outputs = torch.stack([shard.store[f"said {member}"][ids, :longest] for member in members], dim=2)
    sound = torch.stack([shard.store[f"sound {member}"][ids, 0] > 0 for member in members], dim=1)
    first = sound.double().argmax(dim=1)
    stand_in = outputs[torch.arange(len(ids)), :, first][:, :, None].expand_as(outputs)
    spoken = sound[:, None, :].reshape(len(ids), 1, len(members), *[1] * (outputs.ndim - 3))
    outputs = torch.where(spoken, outputs, stand_in)
    y = shard.validation.y
    targets = torch.zeros((len(ids), longest, *y.shape[1:]), dtype=y.dtype)
    for place, k in enumerate(ids):
        own = shard.validation.targets(int(k))
        targets[place, : len(own)] = own
    real = torch.arange(longest)[None, :] < torch.from_numpy(sizes)[:, None]
    group = (torch.arange(longest) % groups).expand(len(ids), -1)
    if fold is not None and groups == 1:
        group = fold.view(-1, 1).expand(-1, longest)
    return Evidence(outputs, targets, real, group)


def _gathered(shard: Shard, request: Request) -> tuple[Evidence, Tensor]:
    """The evidence that a question is about, and log p (k, n, M) of the true classes; made once for several questions."""
    shared = request.shared
    members, groups = list(shared["members"]), int(shared["groups"])
    temperatures = shared.get("temperatures")
    warm = None if temperatures is None else temperatures.numpy().tobytes()
    key = (*members, groups, warm, request.ids.tobytes())
    known: dict[Any, tuple[Evidence, Tensor]] = shard.objects.setdefault("evidence", {})
    if key not in known:
        found = _padded(shard, request.ids, members, groups, request.per_client["fold"])
        logs = torch.zeros(0) if temperatures is None else found.log_likelihood(temperatures)
        known.clear()
        known[key] = found, logs
    return known[key]


# --- sums over the members together -----------------------------------------------------------------------------------


@client_task("count")
def count_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """How much there is to judge by: "held_out" (k, V) samples of every variant, "effective" (k,), "sound" (k, M)."""
    evidence, _ = _gathered(shard, request)
    effective = [effective_samples(shard.validation.targets(int(k)), shard.task.mixes_chances) for k in request.ids]
    members = request.shared["members"]
    return {
        "held_out": evidence.counted(request.shared["variants"]).sum(dim=1),
        "effective": torch.tensor(effective, dtype=torch.float64),
        "sound": torch.stack([shard.store[f"sound {m}"][request.ids, 0] > 0 for m in members], dim=1),
    }


def effective_samples(targets: Tensor, classes: bool) -> float:
    """n·min(1, 2·(1 − share of the largest class)): with one class only, a client's own samples say little."""
    if not classes or not len(targets):
        return float(len(targets))
    return len(targets) * min(1.0, 2 * (1 - float(torch.bincount(targets).max()) / len(targets)))


@client_task("slopes")
def slopes_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """`Evidence.slopes` at per_client "weights" (k, V, M): "value" (k, V), "slopes" (k, V, M), "curvature" (k, V, M, M)."""
    evidence, logs = _gathered(shard, request)
    return evidence.slopes(logs, request.per_client["weights"].double(), request.shared["variants"])


@client_task("errors")
def errors_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Products of the members' residuals, summed over the samples of each variant: "gram" (k, V, M, M)."""
    evidence, _ = _gathered(shard, request)
    return {"gram": evidence.gram(request.shared["variants"])}


@client_task("gains")
def gains_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """`Evidence.gains` by per_client "weights" (k, V, M), row v those fitted without group v: "gain" and "square" (k,)."""
    evidence, logs = _gathered(shard, request)
    return evidence.gains(logs, request.per_client["weights"].double(), shard.task.mixes_chances)
