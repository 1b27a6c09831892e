"""Layout: where each tensor of a model lives in a client's row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

SMALLEST_VARIANCE = 1e-5
"""Where a negative running variance is put: the ε of batch norm."""


@dataclass(frozen=True)
class Slot:
    """One tensor of the model: its name, its shape, and its first column in the row."""

    name: str
    shape: tuple[int, ...]
    start: int

    @cached_property
    def stop(self) -> int:
        return self.start + torch.Size(self.shape).numel()

    def view(self, rows: Tensor) -> Tensor:
        """This tensor of every client, (k, B) → (k, *shape), sharing memory with `rows`."""
        return rows[:, self.start : self.stop].view(len(rows), *self.shape)


@dataclass(frozen=True)
class Layout:
    """The columns of a row: trainable parameters first (0…P−1), then floating-point buffers (P…B−1).

    Frozen parameters have no column: they are the same for all clients and kept once (`ModelSpec.frozen`). Integer buffers
    (batch counters) are not part of a row either: they are never mixed.

    >>> Layout.of(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    Layout(12 parameters, 4 buffer entries, 1 counters)
    """

    parameters: tuple[Slot, ...]
    buffers: tuple[Slot, ...]
    counters: tuple[str, ...]
    norms: tuple[str, ...]
    """Names of the tensors that belong to batch-norm layers (found by module type, not by name)."""
    frozen: tuple[str, ...] = ()
    """Names of the tensors that no client changes: parameters with requires_grad=False, and buffers told to be so."""

    @classmethod
    def of(cls, module: nn.Module, held: Collection[str] = (), carried: bool = False) -> Layout:
        """The layout of a module's rows. `held` names buffers that are frozen, too.

        `carried` gives frozen parameters columns among the buffers, as rows had them before fedkin kept them apart.
        """
        trained = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        fixed = [(n, p) for n, p in module.named_parameters() if not p.requires_grad]
        persistent = module.state_dict(keep_vars=True)
        named = [(n, b) for n, b in module.named_buffers() if n in persistent and n not in held]
        frozen = [n for n, _ in fixed] + [n for n, _ in module.named_buffers() if n in held]
        norms = []
        for prefix, layer in module.named_modules():
            if isinstance(layer, nn.modules.batchnorm._NormBase):
                tensors = [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
                norms += [f"{prefix}.{name}" if prefix else name for name, _ in tensors]
        floating = [(n, b) for n, b in named if b.is_floating_point()]
        return cls(
            parameters=tuple(Slot(n, tuple(p.shape), -1) for n, p in trained),
            buffers=tuple(Slot(n, tuple(b.shape), -1) for n, b in [*(fixed if carried else []), *floating]),
            counters=tuple(n for n, b in named if not b.is_floating_point()),
            norms=tuple(norms),
            frozen=() if carried else tuple(frozen),
        )._packed()

    def _packed(self) -> Layout:
        """The same tensors in columns without gaps."""
        parameters = _in_a_row(self.parameters)
        start = parameters[-1].stop if parameters else 0
        return replace(self, parameters=parameters, buffers=_in_a_row(self.buffers, start))

    def without(self, names: Collection[str]) -> Layout:
        """The layout of rows that lack these tensors."""
        groups = (tuple(s for s in slots if s.name not in names) for slots in (self.parameters, self.buffers))
        parameters, buffers = groups
        return replace(self, parameters=parameters, buffers=buffers)._packed() if names else self

    def renamed(self, name: Callable[[str], str]) -> Layout:
        """The same columns under other names of tensors."""
        parameters, buffers = (tuple(replace(s, name=name(s.name)) for s in g) for g in (self.parameters, self.buffers))
        others = (tuple(map(name, group)) for group in (self.counters, self.norms, self.frozen))
        return Layout(parameters, buffers, *others)

    @cached_property
    def n_parameters(self) -> int:
        """P, the number of trainable numbers."""
        return self.parameters[-1].stop if self.parameters else 0

    @cached_property
    def width(self) -> int:
        """B, the length of a row."""
        return self.buffers[-1].stop if self.buffers else self.n_parameters

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        return self.parameters + self.buffers

    def under(self, modules: Iterable[str]) -> tuple[str, ...]:
        """The names of the tensors that belong to these modules (or are named themselves), integer buffers left out.

        >>> Layout.of(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))).under(["1"])
        ('1.weight', '1.bias')
        """
        wanted = tuple(modules)
        return tuple(s.name for s in self.slots if any(s.name == m or s.name.startswith(f"{m}.") for m in wanted))

    def mask(self, names: tuple[str, ...]) -> Tensor:
        """The columns of the tensors with these names, as a boolean (B,) mask."""
        chosen = torch.zeros(self.width, dtype=torch.bool)
        for slot in self.slots:
            if slot.name in names:
                chosen[slot.start : slot.stop] = True
        return chosen

    @cached_property
    def variance_columns(self) -> Tensor:
        """The columns of running variances, which must stay positive, as a boolean (B,) mask."""
        return self.mask(tuple(s.name for s in self.buffers if s.name.endswith("running_var") and s.name in self.norms))

    @cached_property
    def running(self) -> tuple[str, ...]:
        """The names of batch norm's running means and variances."""
        return tuple(slot.name for slot in self.buffers if slot.name in self.norms)

    @cached_property
    def running_columns(self) -> Tensor:
        """Their columns, as a boolean (B,) mask."""
        return self.mask(self.running)

    def keep_positive(self, mixed: Tensor, own: Tensor) -> None:
        """Put running variances that mixing made negative, in place, at 1e-5 or what the client had, whichever is less.

        `mixed` and `own` are (k, B), own the clients' rows before they were mixed. A coupling with negative weights (a
        graph filter, a long Laplacian step) can make a variance negative; what is not negative passes unchanged, so
        averages are averages to the last bit (FedPnP's limits) and a client needs no row but its own (dFedU).
        """
        variances = self.variance_columns
        if variances.any():
            floor = own[:, variances].clamp(max=SMALLEST_VARIANCE)
            mixed[:, variances] = torch.where(mixed[:, variances] < 0, floor, mixed[:, variances])

    def pack(self, module: nn.Module, dtype: torch.dtype) -> Tensor:
        """The row of a module, shape (B,)."""
        values = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        parts = [values[slot.name].detach().reshape(-1).to(dtype) for slot in self.slots]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=dtype)

    def unpack(self, row: Tensor, module: nn.Module) -> nn.Module:
        """Write a row (B,) into a module, and return the module."""
        values = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for slot in self.slots:
                values[slot.name].copy_(row[slot.start : slot.stop].view(slot.shape))
        return module

    def __repr__(self) -> str:
        extra = self.width - self.n_parameters
        shared = f", {len(self.frozen)} frozen tensors" if self.frozen else ""
        return f"Layout({self.n_parameters} parameters, {extra} buffer entries, {len(self.counters)} counters{shared})"


def _in_a_row(slots: Sequence[Slot], start: int = 0) -> tuple[Slot, ...]:
    """One tensor after the other, from column `start`."""
    made: list[Slot] = []
    for slot in slots:
        made.append(Slot(slot.name, slot.shape, made[-1].stop if made else start))
    return tuple(made)


def rows_of(models: Mapping[str, object], otherwise: Tensor) -> Tensor:
    """The rows (K, B) of models that all have one architecture; `otherwise` where they do not."""
    modules = [model for model in models.values() if isinstance(model, nn.Module)]
    layouts = {Layout.of(module) for module in modules}
    if not models or len(modules) < len(models) or len(layouts) > 1:
        return otherwise
    return torch.stack([next(iter(layouts)).pack(module, otherwise.dtype) for module in modules])
