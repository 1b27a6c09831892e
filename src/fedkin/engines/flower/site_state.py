"""What a site keeps between messages: one folder per run on its own disk. The state itself never travels.

current.safetensors         private state of the clients (control variates, norm layers, personal models, …)
mark-000000003.safetensors  the same as it was at a checkpoint of the server's
recipe.safetensors          the message from which estimators were made, to make them again
trained, received           whole models at the last evaluation, which `deploy` writes out
session                     the newest server that was heard, and the number of its last message

Beside these folders: frozen-HASH.safetensors, the frozen part of a model, which servers send once.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedkin.engines.flower.wire import Message
from fedkin.engines.host import Host
from fedkin.errors import FedkinError
from fedkin.files import read_tensors, write_atomic, write_tensors
from fedkin.models.frozen import frozen_hash

LACKS_FROZEN = "this site lacks the frozen part of the model"
"""How a refusal begins after which the server sends it again."""
KEPT_MARKS = 3
KEPT_RUNS, KEPT_DAYS = 3, 7
"""Runs that were not heard of for so many days are forgotten, except the newest few."""


@dataclass(frozen=True)
class SiteState:
    """The folder of one run."""

    folder: Path

    @classmethod
    def of(cls, base: Path, head: Mapping[str, Any]) -> SiteState:
        """The run that a message is about, at the mark the server has in mind."""
        token = str(head["run"])
        if not token.isalnum():
            raise FedkinError(f"the server's name for the run, {token!r}, is not plain letters and digits")
        state = cls(base / token)
        if not state.folder.exists():
            _forget(base)
            state.folder.mkdir(parents=True, exist_ok=True)
            state._adopt(base, head.get("adopt"))
        if base.stat().st_mode & 0o077:
            base.chmod(0o700)  # made by hand, or before fedkin took care of it
        state._turn(head)
        return state

    def _adopt(self, base: Path, earlier: Any) -> None:
        """Begin from the private state of an earlier run, where this site still has it; a copy, so that both can go on."""
        if not isinstance(earlier, Mapping) or not str(earlier.get("run")).isalnum():
            return
        kept = base / str(earlier["run"]) / f"mark-{int(earlier.get('mark', 0)):09d}.safetensors"
        last = kept if kept.exists() else kept.with_name("current.safetensors")
        if last.exists():
            write_tensors(self._file("current"), *read_tensors(last))

    def _turn(self, head: Mapping[str, Any]) -> None:
        """Keep the present state under a mark, or go back to one, before anything else is done.

        The server names the newest mark in every message, so a checkpoint costs no message of its own: as long as no
        message has come since, the present state is that of the mark.
        """
        seen = self.folder / "session"
        known = [int(part) for part in seen.read_text().split()] if seen.exists() else [-1]
        session, number = int(head.get("session", 0)), int(head.get("number", 0))
        if session < known[0]:
            raise FedkinError("this message is of a server that was started again since; it is too late")
        if [session, number] <= known and number:
            raise FedkinError("this message was heard before, or comes after a later one; it is too late")
        if [session, number] > known:
            write_atomic(seen, f"{session} {number}".encode())
        current, mark = self._file("current"), int(head.get("mark", 0))
        marks = {int(path.stem.partition("-")[2]): path for path in self.folder.glob("mark-*.safetensors")}
        if "restore" in head:
            for number, path in marks.items():
                if number > mark:
                    _remove(path)
            if mark in marks:
                write_tensors(current, *read_tensors(marks[mark]))
        elif mark > max(marks, default=0) and current.exists():
            write_tensors(self._file(f"mark-{mark:09d}"), *read_tensors(current))
            for number in sorted(marks)[: -(KEPT_MARKS - 1)]:
                _remove(marks[number])

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def recall(self, host: Host) -> None:
        """Give the clients of a new process their private state."""
        if self._file("current").exists():
            host.restore(read_tensors(self._file("current"))[0])

    def keep(self, host: Host) -> None:
        if host.shard.store:
            write_tensors(self._file("current"), host.snapshot(), {})

    def recipe(self) -> Message | None:
        """The message from which estimators were made, if there was one."""
        if not self._file("recipe").exists():
            return None
        tensors, facts = read_tensors(self._file("recipe"))
        return Message(facts["head"], tensors)

    def keep_recipe(self, message: Message) -> None:
        """Estimators are no tensors: what made them is kept, and done again."""
        write_tensors(self._file("recipe"), message.tensors, {"head": dict(message.head)})

    def models(self, when: str) -> tuple[dict[str, Tensor], list[str]]:
        """Whole models as they were received or after training: arrays "model" and "counters", and whose they are."""
        tensors, facts = read_tensors(self._file(when))
        return tensors, facts["clients"]

    def keep_models(self, when: str, models: Mapping[str, Tensor], names: list[str]) -> None:
        write_tensors(self._file(when), models, {"clients": names})


@dataclass(frozen=True)
class FrozenParts:
    """The frozen parts of models that servers sent, each once, by hash; beside the folders of the runs."""

    base: Path

    def _file(self, told: str) -> Path:
        if not told.isalnum():
            raise FedkinError(f"the server's hash of the frozen part, {told!r}, is none")
        return self.base / f"frozen-{told}.safetensors"

    def has(self, told: str) -> bool:
        return self._file(told).exists()

    def keep(self, told: str, tensors: Mapping[str, Tensor]) -> None:
        """Keep what came, if it has the hash it should have; the oldest of more than a few go."""
        if frozen_hash(tensors) != told:
            raise FedkinError("the frozen part of the model came damaged: its hash differs")
        self.base.mkdir(parents=True, exist_ok=True)
        others = sorted(self.base.glob("frozen-*.safetensors"), key=lambda path: path.stat().st_mtime)
        for path in others[: 1 - KEPT_RUNS]:
            _remove(path)
        write_tensors(self._file(told), tensors, {})

    def read(self, told: str) -> dict[str, Tensor]:
        if not self.has(told):
            raise FedkinError(f"{LACKS_FROZEN}; it is sent again with the next question")
        return read_tensors(self._file(told))[0]


def _forget(base: Path) -> None:
    """Make room for a new run. Others may go on at the same time: what was heard of lately stays."""
    heard = sorted((seen.parent.stat().st_mtime, seen.parent) for seen in base.glob("*/session"))
    for when, folder in heard[: -(KEPT_RUNS - 1)]:
        if when < time.time() - KEPT_DAYS * 86400:
            shutil.rmtree(folder, ignore_errors=True)


def _remove(path: Path) -> None:
    path.unlink()
    path.with_suffix(".json").unlink(missing_ok=True)
