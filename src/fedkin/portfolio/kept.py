"""What a run of auto keeps on disk while it goes on: each member once it is trained, so that a killed run loses one at most."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from fedkin.clients import Traffic
from fedkin.errors import FedkinError
from fedkin.files import plain, read_json, read_tensors, write_json, write_tensors

FOLDER = "members"


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

    def once(self, name: str, traffic: Traffic, make: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """What `make` gives, or what it gave before; bytes and messages are counted as if it were made now."""
        path = None if self.folder is None else self.folder / f"{name}.safetensors"
        if path is not None and path.with_suffix(".json").exists():
            try:
                tensors, facts = read_tensors(path)
                billed = Traffic(**facts["traffic"])
                for key, so_far in asdict(traffic).items():
                    setattr(traffic, key, so_far + int(getattr(billed, key)))
                return tensors
            except (FedkinError, KeyError, TypeError, ValueError):
                pass  # damaged or half-written: it is made again
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
