"""What of a model is shared, private and frozen, and what a round sends: for `fedkin run --explain`."""

from __future__ import annotations

from collections.abc import Sequence

from fedkin.algorithm import Algorithm, Setting
from fedkin.federation import Federation
from fedkin.local.kernels import choose_kernel
from fedkin.models import ModelLike
from fedkin.models.front import Front, front_of
from fedkin.reports.wording import human_bytes
from fedkin.run.model import model_of_run
from fedkin.run.options import Options
from fedkin.streams import Streams

NAMES_TOLD = 6
"""Names of tensors that a line shows."""


def explained_model(federation: Federation, model: ModelLike, method: Algorithm, options: Options) -> list[str]:
    """Lines: how local training computes its gradients, what is shared, private and frozen, bytes per round."""
    spec = model_of_run(method, model, federation.names, federation.task, options)
    known = federation.names, federation.train.sizes, federation.task, spec, Streams(options.seed)
    setting = Setting(*known).keeping(options.private)
    front = front_of(spec, federation.task) if spec.caches else "cache_features is off"
    seen, task = (front.rest(), front.task(federation.task)) if isinstance(front, Front) else (spec, federation.task)
    choice = choose_kernel(seen, task)
    size = choice.make().chunk if spec.layout.slots else 1
    together = f", up to {size} clients at once per core" if size > 1 else ""
    lines = [f"local training: {choice.name} kernel ({choice.reason}){together}"]
    if not spec.layout.slots:
        return lines
    private = {*setting.home, *method.private(setting)}
    numbers = {slot.name: slot.stop - slot.start for slot in spec.layout.slots}
    shared = [name for name in numbers if name not in private]
    lines.append(f"shared: {_told(shared, sum(numbers[name] for name in shared))}")
    if private:
        own = [name for name in numbers if name in private]
        lines.append(f"private: {_told(own, sum(numbers[name] for name in own))}")
    if spec.frozen:
        count = sum(value.numel() for value in spec.frozen.values())
        once = human_bytes(sum(value.numel() * value.element_size() for value in spec.frozen.values()))
        lines.append(f"frozen: {_told(list(spec.frozen), count)}; kept once, {once} to each site once, not per round")
        kept = f"kept, {front.shape} per sample" if isinstance(front, Front) else f"not kept: {front}"
        lines.append(f"features of the frozen part: {kept}")
    each = sum(numbers[name] for name in shared) * spec.dtype.itemsize
    cohort = options.cohort_size(len(federation))
    lines.append(
        f"a round: {human_bytes(2 * each * cohort)} of rows, {human_bytes(each)} to and from each of {cohort} clients "
        "(what else a method sends comes on top)"
    )
    return lines


def _told(names: Sequence[str], count: int) -> str:
    more = f", … {len(names) - NAMES_TOLD} more" if len(names) > NAMES_TOLD else ""
    return f"{count:,} numbers in {len(names)} tensors ({', '.join(names[:NAMES_TOLD])}{more})" if names else "nothing"
