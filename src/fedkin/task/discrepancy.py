"""Discrepancies: how far what one model says is from what another says of the same inputs (FedRelax's δ).

A discrepancy is a loss with the other's predictions as its targets: cross entropy is then the Kullback–Leibler divergence,
up to a constant. It must be least where both agree, which focal loss or class weights are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedkin.errors import FedkinError
from fedkin.files import OWN_FUNCTION
from fedkin.task.losses import LOSSES, TRIAL_SAMPLES, described, imported, parse_loss
from fedkin.task.task import LOSS, Task


@dataclass(frozen=True)
class Discrepancy:
    """δ of a task's outputs (n, C) to predictions (n, C), (n,)."""

    task: Task
    name: str
    function: Callable[[Tensor, Tensor], Tensor]
    on_outputs: bool
    """Whether the function takes outputs, as losses do; else what they predict."""
    of_means: bool
    """Whether the mean of several predictions of one input says as much as all of them."""

    def each(self, outputs: Tensor, said: Tensor) -> Tensor:
        """The discrepancy of every sample, up to a constant that depends on `said` alone."""
        return self.function(outputs if self.on_outputs else self.task.linked(outputs), said)

    def apart(self, mine: Tensor, said: Tensor) -> Tensor:
        """The discrepancy of predictions (n, C) to others, less its value at agreement: 0 where both say the same."""
        outputs, agreed = self.task.unlinked(mine), self.task.unlinked(said)
        return self.each(outputs, said) - self.each(agreed, said)


def default_discrepancy(task: Task) -> str:
    """The task's own loss where it compares predictions; otherwise that of its kind, as if nothing else had been asked."""
    if isinstance(task.loss, str) and not task.loss.startswith(OWN_FUNCTION):
        known = described(task.loss)
        if known is not None and known.compares:
            return task.loss
    return LOSS[task.kind]


def discrepancy_of(task: Task, name: str | None = None) -> Discrepancy:
    """The discrepancy of a name: a loss, or "package.module:function" of (predictions, predictions) → (n,)."""
    name = name or default_discrepancy(task)
    own = imported(name)
    if own is not None:
        return _checked(Discrepancy(task, name, own, on_outputs=False, of_means=False))
    found, value = parse_loss(name)
    fitting = sorted(n for n, each in LOSSES.items() if each.compares and each.link in ("identity", task.link))
    if found.name not in fitting:
        why = (
            "is not least where both agree" if not found.compares else f"does not read a {task.kind} task's predictions"
        )
        raise FedkinError(f"discrepancy {name!r} {why}; choose one of: {', '.join(fitting)}")
    function = found.function if value is None else partial(found.function, **{str(found.option): value})
    return Discrepancy(task, name, function, found.link == task.link, found.compares == "means")


def _checked(found: Discrepancy) -> Discrepancy:
    """Refuse, in one line, a function that is no discrepancy of this task's predictions."""
    drawn = torch.randn((2, TRIAL_SAMPLES, found.task.outputs), generator=torch.Generator().manual_seed(0)).double()
    mine, said = drawn[0].requires_grad_(), found.task.linked(drawn[1].detach())
    try:
        each = found.each(mine, said)
        (slope,) = torch.autograd.grad(each.sum(), mine)
    except Exception as problem:
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:120]
        raise FedkinError(f"discrepancy {found.name!r} fails on predictions {tuple(said.shape)}: {reason}") from problem
    if each.shape != (TRIAL_SAMPLES,):
        raise FedkinError(
            f"discrepancy {found.name!r} returns {tuple(each.shape)} for {TRIAL_SAMPLES} samples, not one each"
        )
    if not bool(torch.isfinite(each).all() and torch.isfinite(slope).all()):
        raise FedkinError(f"discrepancy {found.name!r} or its gradient is not finite on a probe of random predictions")
    if bool((found.apart(found.task.linked(mine.detach()), said) < -1e-9).any()):
        raise FedkinError(f"discrepancy {found.name!r} is not least where both predictions agree")
    return found
