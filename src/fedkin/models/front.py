"""Front: the frozen layers that every sample passes first. What they make of it never changes, so it is computed once.

The front is found by watching one pass: starting from the input, the outermost module that takes exactly what came before,
has no tensor in the rows and does the same in training as in evaluation is part of it, and so on from its output. The model
with these modules replaced by the identity is the *rest*, which trains on features instead of inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedkin.models.spec import ModelSpec
from fedkin.task import Task

AT_ONCE = 256
"""Samples that pass the front at once: always of one client, so that a feature does not depend on who else is there."""


@dataclass(frozen=True)
class Front:
    """The first layers of a model, by name in the order they are passed."""

    spec: ModelSpec
    layers: tuple[str, ...]
    shape: tuple[int, ...]
    """Of one sample's feature."""

    def features(self, x: Tensor) -> Tensor:
        """What the front makes of inputs (n, *input), piece by piece: (n, *feature)."""
        return self.through(self.spec.template().eval(), x)

    def through(self, module: nn.Module, x: Tensor) -> Tensor:
        """The same by a module that is at hand, in evaluation mode."""
        made = torch.empty((len(x), *self.shape), dtype=self.spec.dtype, device=x.device)
        with torch.no_grad():
            for start in range(0, len(x), AT_ONCE):
                h = x[start : start + AT_ONCE].clone()  # the first layer may work in place
                for layer in self.layers:
                    h = module.get_submodule(layer)(h)
                made[start : start + AT_ONCE] = h
        return made

    def rest(self) -> ModelSpec:
        """The model from the features on; its rows are those of the whole model."""
        factory = self.spec.factory
        module = _bypassed(self.spec.template(), self.layers)
        there = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
        frozen = {name: value for name, value in self.spec.frozen.items() if name in there}
        layout = replace(self.spec.layout, frozen=tuple(name for name in self.spec.layout.frozen if name in there))
        return replace(
            self.spec, factory=lambda: _bypassed(factory(), self.layers), layout=layout, frozen=frozen, caches=False
        )

    def task(self, task: Task) -> Task:
        """The task of the rest: the same, from features."""
        return replace(task, input_shape=self.shape, tokens=False)


def front_of(spec: ModelSpec, task: Task) -> Front | str:
    """The front of a model, or why it has none worth keeping."""
    if not spec.layout.frozen:
        return "nothing is frozen"
    if getattr(task, "augment", None) is not None:  # the one place that says so: features of changed inputs do not stay
        return "inputs are augmented, so that no feature is seen twice"
    module, x = spec.template().eval(), _probe(spec, task)
    calls = _watched(module, x)
    used = [name for name, _, _ in calls]
    own = [*(slot.name for slot in spec.layout.slots), *spec.layout.counters]
    layers: list[str] = []
    current, covered, why_not = x, "", "the frozen part does not come first"
    for name, given, output in calls:
        if not isinstance(given, Tensor) or given is not current or (covered and name.startswith(f"{covered}.")):
            continue
        personal = any(tensor.startswith(f"{name}.") for tensor in own) or used.count(name) > 1
        if personal or not isinstance(output, Tensor) or output.ndim < 2 or len(output) != len(x):
            continue
        if not _steady(module.get_submodule(name), given):
            why_not = f"{name!r}, among the first layers, does something else in training (dropout, batch norm)"
            continue
        layers.append(name)
        current, covered = output, name
    if not any(frozen.startswith(f"{layer}.") for layer in layers for frozen in spec.layout.frozen):
        return why_not
    if not current.is_floating_point():
        return "the frozen part puts out whole numbers"
    front = Front(spec, tuple(layers), tuple(current.shape[1:]))
    return front if _agrees(front, task) else "the input reaches later layers by another path too"


def _probe(spec: ModelSpec, task: Task, seed: int = 0) -> Tensor:
    """Three made-up inputs; of tokens 0 and 1, which every vocabulary has."""
    generator, shape = torch.Generator().manual_seed(seed), (3, *task.input_shape)
    if task.tokens:
        return torch.randint(0, 2, shape, generator=generator)
    return torch.rand(shape, generator=generator, dtype=torch.float64).to(spec.dtype)


def _watched(module: nn.Module, x: Tensor) -> list[tuple[str, object, object]]:
    """The modules that one pass calls with one tensor alone, in the order of the calls, outer before inner."""
    calls: list[tuple[str, object, object]] = []
    hooks = []

    def watch(name: str, layer: nn.Module) -> None:
        def enter(_: nn.Module, given: tuple[object, ...], named: dict[str, object]) -> None:
            calls.append((name, given[0] if len(given) == 1 and not named else None, None))
            open_calls.append(len(calls) - 1)

        def leave(_: nn.Module, __: object, output: object) -> None:
            place = open_calls.pop()
            calls[place] = (*calls[place][:2], output)

        hooks.append(layer.register_forward_pre_hook(enter, with_kwargs=True))
        hooks.append(layer.register_forward_hook(leave))

    open_calls: list[int] = []
    for name, layer in module.named_modules():
        if name:
            watch(name, layer)
    with torch.no_grad():
        module(x)
    for hook in hooks:
        hook.remove()
    return calls


def _steady(layer: nn.Module, given: Tensor) -> bool:
    """Whether a layer does in training what it does in evaluation: no random numbers, no statistics of the batch."""
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        state = torch.get_rng_state()
        training, evaluation = layer.train()(given.clone()), layer.eval()(given.clone())
        drawn = not torch.equal(state, torch.get_rng_state())
    kept = all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    return kept and not drawn and torch.equal(training, evaluation)


def _agrees(front: Front, task: Task) -> bool:
    """Whether the rest makes of features what the model makes of inputs."""
    whole, rest = front.spec.template().eval(), front.rest().template().eval()
    rest.load_state_dict(whole.state_dict(), strict=False)
    try:
        with torch.no_grad():
            pairs = [(whole(x), rest(front.features(x))) for x in (_probe(front.spec, task, seed) for seed in (1, 2))]
        return all(torch.allclose(one, other, rtol=1e-5, atol=1e-6) for one, other in pairs)
    except (RuntimeError, TypeError, ValueError, IndexError):  # the rest does not take features
        return False


def _bypassed(module: nn.Module, layers: tuple[str, ...]) -> nn.Module:
    for layer in layers:
        module.set_submodule(layer, nn.Identity())
    return module
