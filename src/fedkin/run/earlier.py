"""Earlier: a run that another one begins from. Its rows are taken over where shapes agree, by client and tensor name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedkin.algorithm import Setting, State
from fedkin.clients import UNSET
from fedkin.errors import FedkinError
from fedkin.models import Layout, ModelLike
from fedkin.result import Models, load
from fedkin.run import checkpoint


@dataclass(frozen=True)
class Earlier:
    """What a finished run leaves to the next: server rows (K, B) of named clients, and their private state."""

    where: str
    names: tuple[str, ...]
    algorithm: str
    rows: Tensor
    layout: Layout
    private: Mapping[str, Tensor]

    @classmethod
    def read(cls, path: str | Path, model: ModelLike | None = None) -> Earlier:
        """From a run directory; `model` is the one it was trained with, if that was the user's own."""
        folder = Path(path)
        result = load(folder, model)
        spec = result.models.spec if isinstance(result.models, Models) else None
        if spec is None or not spec.layout.width:
            raise FedkinError(
                f"{folder} holds no rows to begin from; name a run of one method with a network of fedkin's"
            )
        last = checkpoint.latest(folder)
        private = checkpoint.read_checkpoint(last)[1] if last is not None else {}
        rows = torch.as_tensor(result.server_rows)
        return cls(str(folder), result.names, str(result.facts["algorithm"]), rows, spec.layout, private)

    def carried(self, state: State, setting: Setting) -> tuple[State, str]:
        """The first state with this run's rows in it, and one line that says what was taken over.

        Row k is the earlier row of the client of that name, a newcomer's is the mean of all earlier rows: in every tensor of the
        same name and shape. Other tensors stay as they are.
        """
        if "rows" not in state.arrays:
            raise FedkinError("this method keeps no rows, so that it cannot begin from another run")
        mine, theirs = setting.spec.layout, {slot.name: slot for slot in self.layout.slots}
        same = [slot for slot in mine.slots if slot.name in theirs and theirs[slot.name].shape == slot.shape]
        if not same:
            first = mine.slots[0]
            raise FedkinError(
                f"no tensor of {self.where} has the name and shape of one of this model (first: {first.name} "
                f"{list(first.shape)}); begin without it"
            )
        place = {name: k for k, name in enumerate(self.names)}
        mean = self.rows.mean(dim=0)
        given = torch.stack([self.rows[place[name]] if name in place else mean for name in setting.names])
        rows = state.rows.clone()
        for slot in same:
            old = theirs[slot.name]
            rows[:, slot.start : slot.stop] = given[:, old.start : old.stop].to(rows.dtype)
        known = sum(name in place for name in setting.names)
        new = len(setting.names) - known
        tensors = (
            f"all {len(same)} tensors" if len(same) == len(mine.slots) else f"{len(same)} of {len(mine.slots)} tensors"
        )
        told = f"began from {self.where}: {tensors}, the rows of {known} clients" + (
            f", the mean row for {new} newcomers" if new else ""
        )
        return state.with_arrays(rows=rows), told

    def private_of(self, setting: Setting, algorithm: str) -> dict[str, Tensor]:
        """Private state of those that were there, others marked as having none yet; nothing where method or model changed."""
        place = {name: k for k, name in enumerate(self.names)}
        there = torch.tensor([name in place for name in setting.names])
        if algorithm != self.algorithm or setting.spec.layout != self.layout or not bool(there.any()):
            return {}
        index = torch.tensor([place.get(name, 0) for name in setting.names])
        found: dict[str, Tensor] = {}
        for name, value in self.private.items():
            if not name.endswith(UNSET):
                unset = self.private.get(name + UNSET, torch.zeros(len(self.names), dtype=torch.bool))
                found[name] = value[index]
                missing = unset[index] | ~there
                found |= {name + UNSET: missing} if bool(missing.any()) else {}
        return found
