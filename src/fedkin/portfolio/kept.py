"""What a run of auto keeps on disk while it goes on: each member once it is trained, so that a killed run loses one at most."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedkin.clients import Traffic
from fedkin.errors import FedkinError
from fedkin.files import plain, read_json, read_tensors, write_json, write_tensors

FOLDER = "members"


@dataclass(frozen=True)
class MemberShapes:
    """What may be kept for K clients, F folds and rows of B numbers; a file that says something else is another run's, or crafted."""

    clients: int
    folds: int
    width: int
    dtype: torch.dtype

    def fit(self, name: str, tensors: Mapping[str, Tensor]) -> bool:
        """Whether shapes and kinds are those that training gives, and peers are clients."""
        folds = self.folds + (name.partition(",")[0] == "local")
        folds = folds - 1 if name.endswith(", other folds") else 1 if name.endswith(" in the first fold") else folds
        peers = tensors.get("peers", torch.zeros((folds, self.clients, 0), dtype=torch.int64))
        due = {
            "rate": ((), torch.float64),
            "losses": ((self.clients,), torch.float64),
            "rows": ((folds, self.clients, self.width), self.dtype),
            "peers": ((folds, self.clients, peers.shape[-1] if peers.ndim else 0), torch.int64),
            "weights": ((folds, self.clients, 1 + peers.shape[-1] if peers.ndim else 0), torch.float64),
        }
        same = all(due.get(key) == (tuple(value.shape), value.dtype) for key, value in tensors.items())
        return same and bool(((peers >= 0) & (peers < self.clients)).all())


class KeptMembers:
    """The folder of members in a run's directory; without a directory nothing is kept.

    What is trained depends on its inputs alone, so a run that goes on has bitwise the numbers of one that was not killed.
    """

    def __init__(self, out: Path | None, settings: Mapping[str, Any]) -> None:
        self.folder = None if out is None else out / FOLDER
        if self.folder is None:
            return
        told, path = plain(dict(settings)), self.folder / "settings.json"
        if path.exists():
            before = read_json(path)
            for key in sorted({*before, *told}):
                if before.get(key) != told.get(key):
                    raise FedkinError(
                        f"{out} holds a run of auto with {key} = {before.get(key)}, now it is {told.get(key)}; choose "
                        "another folder"
                    )
        write_json(path, told)

    def once(
        self, name: str, traffic: Traffic, make: Callable[[], Mapping[str, Tensor]], shapes: MemberShapes
    ) -> dict[str, Tensor]:
        """What `make` gives, or what it gave before; bytes and messages are counted as if it were made now."""
        path = None if self.folder is None else self.folder / f"{name}.safetensors"
        if path is not None and path.with_suffix(".json").exists():
            try:
                tensors, facts = read_tensors(path)
                billed = Traffic(**facts["traffic"])
                if not shapes.fit(name, tensors):
                    raise ValueError(f"{path} is of another run")
                for key, so_far in asdict(traffic).items():
                    setattr(traffic, key, so_far + int(getattr(billed, key)))
                return tensors
            except (FedkinError, KeyError, TypeError, ValueError):
                pass  # damaged, half-written or another run's: it is made again
        before = asdict(traffic)
        made = dict(make())
        if path is not None:
            spent = {key: value - before[key] for key, value in asdict(traffic).items()}
            write_tensors(path, {key: value.clone() for key, value in made.items()}, {"traffic": spent})
        return made

    def clear(self) -> None:
        """The run is finished."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
