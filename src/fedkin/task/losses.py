"""Losses by name: what one sample costs. A loss is one function (outputs, targets) → (n,) and one registration.

Outputs are what the model puts out, (n, C); targets are labels (n,) or distributions over classes (n, C) for
classification, 0/1 columns (n, C) for multi-label tasks, numbers (n, …) for regression. A sample's loss depends on that
sample alone, because samples of many clients are worked on at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedkin.errors import FedkinError, unknown
from fedkin.plugins import find

if TYPE_CHECKING:
    from fedkin.task.task import Kind, Task

PerSample = Callable[..., Tensor]
"""(outputs of n samples, their targets, more per-sample arrays of a method's own) → the loss of each sample, (n,)."""

Link = Literal["softmax", "sigmoid", "exp", "identity"]
"""How outputs become what they predict: probabilities of classes or of columns, rates of counts, the numbers themselves."""


@dataclass(frozen=True)
class Loss:
    """A registered loss: for which kinds of task, how outputs are read, and the option that may follow its name."""

    name: str
    function: Callable[..., Tensor]
    kinds: tuple[Kind, ...]
    link: Link
    option: str | None = None
    """The name of the number after the colon ("gamma" of focal:2); None: there is none."""
    default: float = 1.0
    low: float = 0.0
    high: float = float("inf")
    """The option lies strictly between these."""
    compares: Literal["", "means", "each"] = ""
    """Whether it is least where the outputs predict what the targets say, so that it can compare two models' predictions:
    "means" if of several predictions of one input their mean is enough, "each" if every one counts by itself."""


LOSSES: dict[str, Loss] = {}


def loss(
    name: str,
    kinds: Sequence[Kind] = ("classification", "regression", "multilabel"),
    link: Link | None = None,
    **option: Any,
) -> Callable[[PerSample], PerSample]:
    """Register a function (outputs, targets) → (n,) under a name. `option`: option=, default=, … of `Loss`."""

    for kind in kinds:
        check_kind_of_task(kind)
    if link is not None and link not in get_args(Link):
        raise unknown("link", link, get_args(Link))

    def register(function: PerSample) -> PerSample:
        how: Link = link or LINKS[kinds[0]]
        LOSSES[name] = Loss(name, function, tuple(kinds), how, **option)
        return function

    return register


def check_kind_of_task(kind: str) -> None:
    """Refuse a registration for a kind of task that there is not."""
    if kind not in LINKS:
        raise unknown("kind of task", kind, LINKS)


LINKS: dict[str, Link] = {"classification": "softmax", "multilabel": "sigmoid", "regression": "identity"}


def paired(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and numbers as (n, entries of one target)."""
    return outputs.reshape(len(targets), -1), targets.reshape(len(targets), -1)


@loss("cross-entropy", ("classification",), compares="means")
def cross_entropy(
    outputs: Tensor, targets: Tensor, weight: Tensor | None = None, label_smoothing: float = 0.0
) -> Tensor:
    """−w_y Σ_c q_c log softmax(z)_c, q the label or distribution, smoothed to (1 − s)·q + s/C."""
    return functional.cross_entropy(outputs, targets, weight=weight, reduction="none", label_smoothing=label_smoothing)


@loss("focal", ("classification",), option="gamma", default=2.0, low=-1e-12)
def focal(
    outputs: Tensor,
    targets: Tensor,
    gamma: float = 2.0,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """−Σ_c w_c q_c (1 − p_c)^γ log p_c (Lin et al., Focal Loss for Dense Object Detection, 2017). γ = 0: cross entropy."""
    classes = outputs.shape[1]
    codes = torch.arange(classes)  # functional.one_hot cannot be stacked by vmap
    share = (targets[:, None] == codes).to(outputs.dtype) if targets.dim() == 1 else targets
    share = share * (1 - label_smoothing) + label_smoothing / classes
    logs = functional.log_softmax(outputs, dim=1)
    each = -share * (1 - logs.exp()).clamp(min=1e-12) ** gamma * logs
    return (each if weight is None else each * weight).sum(dim=1)


@loss("bce", ("multilabel",), compares="means")
def bce(outputs: Tensor, targets: Tensor, weight: Tensor | None = None, label_smoothing: float = 0.0) -> Tensor:
    """Binary cross entropy of every 0/1 column, averaged; w_c weighs the ones of column c; smoothed towards ½."""
    outputs, targets = paired(outputs, targets)
    soft = targets * (1 - label_smoothing) + label_smoothing / 2
    return functional.binary_cross_entropy_with_logits(outputs, soft, pos_weight=weight, reduction="none").mean(dim=1)


@loss("mse", ("regression",), compares="means")
def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared error, averaged over the entries of one target."""
    outputs, targets = paired(outputs, targets)
    return (outputs - targets).square().mean(dim=1)


@loss("mae", ("regression",), compares="each")
def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """Absolute error, averaged over the entries of one target; its minimiser is the median."""
    outputs, targets = paired(outputs, targets)
    return (outputs - targets).abs().mean(dim=1)


@loss("huber", ("regression",), option="delta", default=1.0, compares="each")
def huber(outputs: Tensor, targets: Tensor, delta: float = 1.0) -> Tensor:
    """½e² where |e| ≤ δ, else δ(|e| − ½δ), averaged over the entries of one target."""
    outputs, targets = paired(outputs, targets)
    return functional.huber_loss(outputs, targets, reduction="none", delta=delta).mean(dim=1)


@loss("quantile", ("regression",), option="q", default=0.5, high=1.0, compares="each")
def quantile(outputs: Tensor, targets: Tensor, q: float = 0.5) -> Tensor:
    """max(q·e, (q − 1)·e) of e = y − ŷ, averaged over the entries of one target; its minimiser is the q-quantile."""
    outputs, targets = paired(outputs, targets)
    error = targets - outputs
    return torch.maximum(q * error, (q - 1) * error).mean(dim=1)


@loss("poisson", ("regression",), link="exp", compares="means")
def poisson(outputs: Tensor, targets: Tensor) -> Tensor:
    """exp(z) − y·z: counts y of rate exp(z), up to a constant; averaged over the entries of one target."""
    outputs, targets = paired(outputs, targets)
    return (outputs.exp() - targets * outputs).mean(dim=1)


# --- choosing one -----------------------------------------------------------------------------------------------------


def parse_loss(name: str) -> tuple[Loss, float | None]:
    """A loss and its option, from "name[:option]"; an unknown name or a wrong option is refused in one line.

    The loss may be one that an installed package announces (`fedkin.plugins`) and registers under this name.
    """
    first, _, option = name.partition(":")
    if first not in LOSSES:
        find("loss", first, LOSSES)
    if first not in LOSSES:
        raise FedkinError(f'loss {first!r} is not registered; decorate the function: @fedkin.loss("{first}", …)')
    found = LOSSES[first]
    if not option:
        return found, (found.default if found.option else None)
    if found.option is None:
        raise FedkinError(f"loss {name!r}: {first} takes no option; write {first!r}")
    try:
        value = float(option)
    except ValueError:
        value = float("nan")
    if not found.low < value < found.high or not np.isfinite(value):
        span = (
            f"{'above' if found.low >= 0 else 'at least'} {max(found.low, 0):g}"
            if found.high == float("inf")
            else f"between {found.low:g} and {found.high:g}"
        )
        raise FedkinError(f"loss {name!r}: its {found.option} must be a number {span}, as in {first}:{found.default:g}")
    return found, value


def names_an_import(name: str) -> bool:
    """Whether a name is "package.module:function", rather than one of fedkin's own."""
    module, _, attribute = name.rpartition(":")
    return module not in LOSSES and attribute.isidentifier() and all(map(str.isidentifier, module.split(".")))


def imported(name: str) -> Any:
    """The object "package.module:function"; None where a name is not of this form. Registrations happen by the import."""
    if ":" not in name or not names_an_import(name):
        return None
    module, _, attribute = name.rpartition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as problem:
        raise FedkinError(f"{name!r} cannot be imported: {problem}") from problem


def described(chosen: str | PerSample) -> Loss | None:
    """The registered loss behind a choice; None for a function of the user's own."""
    if callable(chosen) or imported(chosen) is not None:
        return None
    return parse_loss(chosen)[0]


def loss_of(task: Task) -> PerSample:
    """The loss of a task as a function (outputs, targets) → (n,), with its option, class weights and smoothing."""
    own = task.loss if callable(task.loss) else imported(task.loss)
    if own is not None:
        return own
    found, value = parse_loss(str(task.loss))
    extras: dict[str, Any] = {} if value is None else {str(found.option): value}
    if task.class_weight is not None:
        extras["weight"] = _Weights(task.class_weight)
    if task.label_smoothing:
        extras["label_smoothing"] = task.label_smoothing
    if "weight" in extras:
        return partial(_weighted, found.function, extras.pop("weight"), extras)
    return partial(found.function, **extras) if extras else found.function


class _Weights:
    """Class weights as a tensor of the outputs' type, made once per type."""

    def __init__(self, values: Sequence[float]) -> None:
        self.tensors = {t: torch.tensor(values, dtype=t) for t in (torch.float32, torch.float64)}

    def like(self, outputs: Tensor) -> Tensor:
        return self.tensors[outputs.dtype]


def _weighted(
    function: PerSample, weights: _Weights, extras: Mapping[str, Any], outputs: Tensor, targets: Tensor
) -> Tensor:
    return function(outputs, targets, weight=weights.like(outputs), **extras)


def balanced(counts: np.ndarray) -> tuple[float, ...]:
    """w_c = n / (C·n_c) over the whole federation, from the samples of each class (C,), as scikit-learn's "balanced".

    >>> balanced(np.array([90, 10]))
    (0.5555555555555556, 5.0)
    """
    if (counts == 0).any():
        raise FedkinError(
            f"class_weight = 'balanced': nobody has a training sample of class number {int(np.argmin(counts))}; "
            "drop the class, or give the weights"
        )
    return tuple((counts.sum() / (len(counts) * counts)).tolist())


# --- checks before training -------------------------------------------------------------------------------------------

TRIAL_SAMPLES = 16
"""How many made-up samples a loss is tried on."""


def check_loss(task: Task) -> None:
    """Refuse, in one line, a loss that does not fit the task, has the wrong shape, no gradient or no finite value."""
    name = task.loss if isinstance(task.loss, str) else getattr(task.loss, "__name__", type(task.loss).__name__)
    known = described(task.loss)
    if known is not None:
        if task.kind not in known.kinds:
            fitting = ", ".join(sorted(n for n, each in LOSSES.items() if task.kind in each.kinds))
            fits = "counts" if known.link == "exp" else known.kinds[0]
            raise FedkinError(
                f"loss {name!r} is not for {task.kind} tasks; choose one of: {fitting} (or say task={fits!r})"
            )
        parse_loss(str(task.loss))
    for option in ("class_weight", "label_smoothing"):
        if getattr(task, option) and task.numeric:
            raise FedkinError(f"{option} needs classes, but the task is regression; drop it")
        if getattr(task, option) and known is None:
            raise FedkinError(f"{option} belongs to the losses of fedkin; put it into your own loss {name!r}")
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn((TRIAL_SAMPLES, task.outputs), generator=generator, dtype=torch.float64, requires_grad=True)
    targets = task.probe((TRIAL_SAMPLES,), torch.float64)
    function = loss_of(task)
    try:
        each = function(outputs, targets)
    except Exception as problem:
        said = str(problem).strip().splitlines() or [type(problem).__name__]
        raise FedkinError(
            f"loss {name!r} fails on outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}: {said[0][:120]}"
        ) from problem
    if not isinstance(each, Tensor) or each.shape != (TRIAL_SAMPLES,):
        shape = tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__
        raise FedkinError(
            f"loss {name!r} returns {shape} for {TRIAL_SAMPLES} samples; it must return one number per sample, ({TRIAL_SAMPLES},)"
        )
    if not each.requires_grad:
        raise FedkinError(f"loss {name!r} is not differentiable: its value does not depend on the outputs")
    try:
        (slope,) = torch.autograd.grad(each.sum(), outputs)
    except RuntimeError as problem:
        raise FedkinError(f"loss {name!r} is not differentiable: {str(problem).splitlines()[0][:120]}") from problem
    if not bool(torch.isfinite(each).all() and torch.isfinite(slope).all()):
        raise FedkinError(f"loss {name!r} or its gradient is not finite on a probe of random outputs")
    alone = function(outputs[:1].detach(), targets[:1])
    if not torch.allclose(alone, each[:1].detach(), rtol=1e-6, atol=1e-9):
        raise FedkinError(f"loss {name!r}: the loss of a sample depends on the other samples; it must not")
