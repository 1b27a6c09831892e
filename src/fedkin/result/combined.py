"""Combined: a client's model as one nn.Module, a weighted combination of networks, and the mapping that builds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedkin.errors import FedkinError, unknown
from fedkin.models import ModelSpec


class Combined(nn.Module):
    """Σ_m w_m f_m(x): for classes log Σ_m w_m softmax(f_m(x)/T_m), whose softmax are calibrated probabilities; else numbers."""

    weights: Tensor
    temperatures: Tensor

    def __init__(self, networks: list[nn.Module], weights: Tensor, temperatures: Tensor, classes: bool) -> None:
        super().__init__()
        self.networks, self.classes = nn.ModuleList(networks), classes
        dtype = next((p.dtype for p in networks[0].parameters()), weights.dtype)
        self.register_buffer("weights", weights.to(dtype))  # a file of the state is the whole model
        self.register_buffer("temperatures", temperatures.to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        found = [
            self.weights[p] * (torch.softmax(network(x) / self.temperatures[p], dim=-1) if self.classes else network(x))
            for p, network in enumerate(self.networks)
        ]
        total = torch.stack(found).sum(dim=0)
        return torch.log(total.clamp(min=torch.finfo(total.dtype).tiny)) if self.classes else total


def one_module(
    spec: ModelSpec, rows: Tensor, counters: Tensor, weights: Tensor, temperatures: Tensor, classes: bool
) -> nn.Module:
    """The combination of networks with rows (P, B); a single one, taken as it is, needs nothing around it.

    `outputs` says what it puts out: "logits", whose softmax are the probabilities, or "numbers".
    """
    networks = [spec.module(row, counters) for row in rows]
    alone = len(networks) == 1 and float(weights[0]) == float(temperatures[0]) == 1
    found = networks[0] if alone else Combined(networks, weights, temperatures, classes)
    if not hasattr(found, "outputs"):  # a network's own stays
        found.outputs = "logits" if classes else "numbers"  # type: ignore[assignment]
    return found.eval()


@dataclass(frozen=True)
class Parts:
    """Which rows make up each client's model: entries offsets[k]:offsets[k+1] of the lists are client k's."""

    rows: Tensor
    """(U, B): every network that somebody uses, once."""
    counters: Tensor
    index: Tensor
    weights: Tensor
    temperatures: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, clients: list[list[tuple[Tensor, float, float]]], counters: Tensor) -> Parts:
        """From (row, weight, temperature) of every part of every client; equal rows are kept once."""
        known: dict[bytes, int] = {}
        rows: list[Tensor] = []
        index: list[int] = []
        for parts in clients:
            for row, _, _ in parts:
                key = row.contiguous().numpy().tobytes()
                if key not in known:
                    known[key] = len(rows)
                    rows.append(row)
                index.append(known[key])
        flat = [part for parts in clients for part in parts]
        return cls(
            torch.stack(rows),
            counters,
            torch.tensor(index),
            torch.tensor([weight for _, weight, _ in flat], dtype=torch.float64),
            torch.tensor([temperature for _, _, temperature in flat], dtype=torch.float64),
            torch.from_numpy(np.cumsum([0, *map(len, clients)])),
        )

    def of_client(self, k: int) -> dict[str, Tensor]:
        """The "rows" (P, B), "weights" and "temperatures" (P,) of client k's model."""
        own = slice(int(self.offsets[k]), int(self.offsets[k + 1]))
        return {
            "rows": self.rows[self.index[own]],
            "weights": self.weights[own],
            "temperatures": self.temperatures[own],
        }

    def tensors(self) -> dict[str, Tensor]:
        """To be saved."""
        return {f"parts_{name}": getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], clients: int) -> Parts | None:
        """From what `tensors` gave, for so many clients; None where there are none. A file may hold anything."""
        names = list(cls.__dataclass_fields__)
        if "parts_rows" not in tensors:
            return None
        lacking = [name for name in names if f"parts_{name}" not in tensors]
        if lacking:
            raise FedkinError(f"a combined model lacks its {lacking[0]}; the result is damaged")
        found = cls(*(tensors[f"parts_{name}"] for name in names))
        steps = found.offsets.diff()
        fits = (
            found.rows.ndim == 2
            and len(found.offsets) == clients + 1
            and bool((steps > 0).all())
            and int(found.offsets[0]) == 0
            and int(found.offsets[-1]) == len(found.index) == len(found.weights) == len(found.temperatures)
            and bool(((found.index >= 0) & (found.index < len(found.rows))).all())
        )
        if not fits:
            raise FedkinError("the parts of a combined model do not fit together; the result is damaged")
        return found


class CombinedModels(Mapping[str, nn.Module]):
    """The clients' combined models by name, each built when it is asked for."""

    def __init__(self, names: tuple[str, ...], parts: Parts, spec: ModelSpec | None, classes: bool) -> None:
        self.names, self.parts, self.spec, self.classes = names, parts, spec, classes

    def tensors(self) -> dict[str, Tensor]:
        """To be saved."""
        return self.parts.tensors()

    def __getitem__(self, name: str) -> nn.Module:
        if name not in self.names:
            raise unknown("client", name, self.names)
        if self.spec is None:
            raise FedkinError("the architecture is your own; load the result with fedkin.load(dir, model=your_factory)")
        own = self.parts.of_client(self.names.index(name))
        return one_module(
            self.spec, own["rows"], self.parts.counters, own["weights"], own["temperatures"], self.classes
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
