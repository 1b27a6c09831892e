"""What cannot go together in a run, refused in one line before it starts."""

from __future__ import annotations

from fedkin.algorithm import Algorithm
from fedkin.errors import FedkinError
from fedkin.models import ModelSpec
from fedkin.run.options import Options
from fedkin.task import Task


def refuse_misfits(task: Task, spec: ModelSpec, algorithm: Algorithm, options: Options) -> None:
    """Options that the model, its method or its place have no use for."""
    if options.global_test and not spec.layout.width:
        raise FedkinError("global_test moves models between clients, but these clients bring models of their own")
    if task.augment is not None and not algorithm.augments:
        raise FedkinError(f"{algorithm.name} fits models of the clients' own, not by batches; leave out augment")
    if algorithm.privacy is not None and task.augment is not None:
        raise FedkinError("private training counts every sample as it is; leave out augment or privacy")
    if algorithm.privacy is not None and (options.device, options.precision) != ("cpu", "float32"):
        raise FedkinError("private training computes on the CPU in float32; leave out device and precision")
    if not spec.placement.on_host and (options.rows_file is not None or not spec.layout.width):
        raise FedkinError(f"device {options.device!r} needs rows, and has them in its memory: leave out rows_file")
    if options.validation == "fold" and algorithm.privacy is not None:
        raise FedkinError(
            "validation = 'fold' trains a second time, which private training would pay for; leave it out"
        )
    if options.validation == "fold" and options.engine == "flower":
        raise FedkinError(
            "validation = 'fold' needs the data at hand; give validation_fraction in [federation] instead"
        )
