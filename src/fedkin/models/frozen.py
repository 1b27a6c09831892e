"""Frozen and private parts of a model: which tensors patterns of names mean, and freezing them for all clients.

A frozen tensor is the same for everybody and never changes: it is kept once per process, saved once per result and sent
once per site. Parameters with requires_grad=False are frozen; `frozen="backbone.*"` freezes by name, buffers included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from fedkin.errors import FedkinError, unknown
from fedkin.models.layout import Layout
from fedkin.models.spec import NOTHING_TRAINED, ModelSpec

WRAPPERS = ("inner.", "network.")
"""What fedkin itself puts before a user's names: of a model with `logits` among its outputs, of one with a memory."""


def matching(patterns: Sequence[str], names: Iterable[str], role: str) -> tuple[str, ...]:
    """The names that a pattern means: those it matches, and all tensors of a module that it matches.

    >>> matching(["*.lora_B"], ["a.lora_A", "a.lora_B", "b.lora_B.weight"], "private")
    ('a.lora_B', 'b.lora_B.weight')
    """
    known = list(names)
    for pattern in patterns:
        if not any(_means(pattern, name) for name in known):
            modules = {name.rpartition(".")[0] for name in known} - {""}
            raise unknown(f"tensor or module of the model for {role}", pattern, sorted({*known, *modules}))
    return tuple(name for name in known if any(_means(pattern, name) for pattern in patterns))


def _means(pattern: str, name: str) -> bool:
    plain = name
    for wrapper in WRAPPERS:
        plain = plain.removeprefix(wrapper)
    for whole in {name, plain}:
        parts = whole.split(".")
        if any(fnmatchcase(".".join(parts[:depth]), pattern) for depth in range(1, len(parts) + 1)):
            return True
    return False


def freeze(spec: ModelSpec, patterns: Sequence[str]) -> ModelSpec:
    """The model with the tensors of these patterns frozen, buffers too.

    Batch norm whose running statistics are frozen stays in evaluation mode: it normalises by them, in training as well.
    """
    if not patterns:
        return spec
    if not spec.layout.slots:
        raise FedkinError("frozen: these clients bring models of their own, without tensors in common; leave it out")
    template, factory = spec.template(), spec.factory
    everything = [name for name, _ in (*template.named_parameters(), *template.named_buffers())]
    names = set(matching(patterns, everything, "frozen"))
    names |= {
        f"{name.removesuffix('running_mean')}num_batches_tracked" for name in names if name.endswith("running_mean")
    }

    def frozen() -> nn.Module:
        return _held(factory(), names)

    layout = Layout.of(_held(template, names), held=names)
    if not layout.parameters:
        raise FedkinError(NOTHING_TRAINED)
    return replace(spec, factory=frozen, layout=layout, frozen={})


def _held(module: nn.Module, names: Collection[str]) -> nn.Module:
    for name, parameter in module.named_parameters():
        if name in names:
            parameter.requires_grad_(False)
    for prefix, layer in module.named_modules():
        statistics = {f"{prefix}.{name}".lstrip(".") for name in ("running_mean", "running_var")}
        if isinstance(layer, nn.modules.batchnorm._NormBase) and statistics & set(names):
            layer.register_forward_pre_hook(_stay_in_evaluation)
    return module


def _stay_in_evaluation(layer: nn.Module, _: Any) -> None:
    if layer.training:
        layer.eval()


def carrying(spec: ModelSpec) -> ModelSpec:
    """The model with rows that carry frozen parameters, as runs of earlier versions have them."""
    return replace(spec, layout=Layout.of(spec.template(), carried=True), frozen={}, caches=False)


def frozen_hash(frozen: Mapping[str, Tensor]) -> str:
    """SHA-256 of frozen tensors: their names, number types, shapes and values. "" where there are none."""
    if not frozen:
        return ""
    found = hashlib.sha256()
    for name in sorted(frozen):
        value = frozen[name].detach().cpu().contiguous()
        found.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return found.hexdigest()


def with_frozen(spec: ModelSpec, frozen: Mapping[str, Tensor], origin: str) -> ModelSpec:
    """The spec with frozen values from elsewhere (a file, a server), refused where they are not this model's."""
    tensors: dict[str, Tensor] = dict(spec.template().state_dict(keep_vars=True))
    if set(frozen) != set(spec.layout.frozen):
        strange = sorted(set(frozen) ^ set(spec.layout.frozen))
        raise FedkinError(f"{origin} does not fit the model: {strange[0]!r} is frozen in one and not in the other")
    for name, value in frozen.items():
        if value.shape != tensors[name].shape or value.dtype != tensors[name].dtype:
            told, due = (f"{tuple(t.shape)} {t.dtype}" for t in (value, tensors[name]))
            raise FedkinError(f"{origin} does not fit the model: {name!r} is {told}, not {due}")
    return replace(spec, frozen=dict(frozen))
