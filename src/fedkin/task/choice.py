"""From what a user asks for to a task: its loss, class weights, metrics and headline, checked before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedkin.augment import NEED_IMAGES, Augmentation, Drawn, augmentation, names_in
from fedkin.errors import FedkinError, unknown
from fedkin.files import OWN_FUNCTION
from fedkin.task.losses import TRIAL_SAMPLES, balanced, check_loss, imported
from fedkin.task.metrics import METRICS, find_metric
from fedkin.task.task import RARE, Task


def chosen(
    task: Task,
    loss: Any = None,
    class_weight: Any = None,
    label_smoothing: float = 0.0,
    metrics: Sequence[Any] = (),
    headline: str | None = None,
    augment: Any = None,
    counts: np.ndarray | None = None,
) -> Task:
    """The same targets, learned and judged as asked; `counts` (C,) are the federation's training samples per class."""
    for what, given in (("loss", loss), ("augment", augment)):
        if isinstance(given, str) and given.startswith(OWN_FUNCTION):
            own = given.removeprefix(OWN_FUNCTION)
            raise FedkinError(f"{what}: {own} was a function of your own; pass it again: {what}=…")
    names = tuple(map(entry_name, metrics))
    task = replace(
        task,
        loss=loss or task.loss,
        class_weight=task.class_weight if class_weight is None else class_weights(task, class_weight, counts),
        label_smoothing=label_smoothing or task.label_smoothing,
        metrics=names or task.metrics,
        headline=headline or (names[0] if names else task.headline),
        augment=augment or task.augment,
    )
    check_metrics(task)
    check_loss(task)
    check_augment(task)
    if task.scale is not None and str(task.loss).partition(":")[0] == "poisson":
        raise FedkinError(
            "loss 'poisson' needs the counts themselves, but the targets were standardised: task='counts'"
        )
    return task


def augmentation_of(task: Task) -> Augmentation:
    """What is done to the training batches of a task."""
    own = imported(task.augment) if isinstance(task.augment, str) else None
    return augmentation(task.augment if own is None else own)


def check_augment(task: Task) -> None:
    """Try the augmentation on two made-up samples, so that a mismatch is found before training."""
    if task.augment is None:
        return
    import torch

    function = augmentation_of(task)
    if len(task.input_shape) != 3 and any(name in NEED_IMAGES for name in names_in(task.augment)):
        raise FedkinError(f"augment {task.augment!r} needs images (channels, height, width), not {task.input_shape}")
    if task.tokens:
        raise FedkinError("augment changes numbers, but the inputs are tokens; leave it out")
    x, y = torch.zeros((2, *task.input_shape)), task.probe((2,), torch.float32)
    try:
        own, targets = function(Drawn(x, y, len(task.classes)), np.random.default_rng(0))
        fits = own.shape == x.shape and len(targets) == len(y)
    except FedkinError:
        raise
    except Exception as problem:
        raise FedkinError(f"augment fails on a batch of inputs {task.input_shape}: {problem}") from problem
    if not fits:
        raise FedkinError(
            f"augment makes inputs of shape {tuple(own.shape)} of {tuple(x.shape)}; it must keep the shape"
        )


def for_rare_class(task: Task, counts: np.ndarray | None) -> tuple[Task, str] | None:
    """A task of two classes, one of them rare, judged by AUROC before accuracy, and a note; None for other tasks.

    `counts` (C,) are the federation's training samples per class.
    """
    if counts is None or task.metrics != ("accuracy",) or len(task.classes) != 2:
        return None
    share = float(counts.min() / counts.sum())
    if not 0 < share < RARE:
        return None
    label = task.classes[int(counts.argmin())]
    note = (
        f"about {max(1, round(100 * share))} % of the training samples are of class {label!r}, so the headline is AUROC; "
        "headline='accuracy' (--headline accuracy) puts accuracy there"
    )
    return replace(task, metrics=("auroc", "accuracy"), headline="auroc"), note


def entry_name(entry: Any) -> str:
    """A metric by its name, also where its registered function is given."""
    if isinstance(entry, str):
        return entry
    for name, known in METRICS.items():
        if known.function is entry:
            return name
    called = getattr(entry, "__name__", entry)
    raise FedkinError(f"metric {called!r} is not registered; decorate it: @fedkin.metric('{called}', needs=…, …)")


def check_metrics(task: Task) -> None:
    """Refuse unknown metrics, those that need what the task does not have, and functions that fail on made-up samples."""
    for name in task.metrics:
        metric = find_metric(name)
        if task.kind not in metric.kinds:
            fitting = ", ".join(n for n, known in METRICS.items() if task.kind in known.kinds)
            raise FedkinError(
                f"metric {name!r} needs {metric.needs}, which a {task.kind} task does not have; choose among: {fitting}"
            )
    own = tuple(n for n in task.metrics if not str(find_metric(n).function.__module__).startswith("fedkin."))
    if own:
        import torch

        outputs = torch.randn((TRIAL_SAMPLES, task.outputs), generator=torch.Generator().manual_seed(0))
        replace(task, metrics=own, headline=own[0]).judge(outputs, task.probe((TRIAL_SAMPLES,), torch.float32))


def class_weights(task: Task, asked: Any, counts: np.ndarray | None) -> tuple[float, ...]:
    """One weight per class, from "balanced", a mapping {class: weight} (others weigh 1) or a list in class order."""
    if task.numeric:
        raise FedkinError("class_weight needs classes, but the task is regression; drop it")
    classes = [str(c) for c in (task.classes or range(task.outputs))]
    if isinstance(asked, str):
        if asked != "balanced":
            raise unknown("class_weight", asked, ["balanced"])
        if counts is None:
            raise FedkinError(
                "class_weight = 'balanced' needs label counts, which are not known here; give the weights"
            )
        return balanced(counts)
    if isinstance(asked, Mapping):
        given = {str(label): float(weight) for label, weight in asked.items()}
        for label in given:
            if label not in classes:
                raise unknown("class in class_weight", label, classes)
        weights = [given.get(label, 1.0) for label in classes]
        named = [c for c, label in enumerate(classes) if label in given]
    else:
        weights, named = [float(weight) for weight in asked], list(range(len(classes)))
        if len(weights) != len(classes):
            raise FedkinError(f"class_weight has {len(weights)} entries, but there are {len(classes)} classes")
    if any(not np.isfinite(weight) or weight < 0 for weight in weights) or not any(weights):
        raise FedkinError("class_weight: weights must be finite, not negative, and not all zero")
    for c in named:
        if counts is not None and counts[c] == 0 and weights[c] not in (0.0, 1.0):
            raise FedkinError(f"class_weight: nobody has a training sample of class {classes[c]!r}; leave it out")
    return tuple(weights)
