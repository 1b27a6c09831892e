"""A site: one or more clients with their data, in a folder of their own. Everything private stays on its disk.

`site.toml`:

    state = "state"                 # where private state and models go (default: state, beside this file)
    disclose = false                # whether the server may have tensors that a method keeps private, to save them
    trust = ["myapp"]               # packages whose models ("myapp.nets:small") and tasks the server may name

    [[clients]]
    name = "north"
    data = "north.csv"              # CSV with a header, or NPZ with x and y (optionally x_test and y_test)
    target = "outcome"              # the column to predict (CSV)
    drop = ["id"]                   # columns to leave out (CSV)
    model = "tree:5"                # this client's own model, for methods that exchange predictions (FedRelax)

A message starts a new process, so private state is read from disk before a task and written after it. The server says
which state is to be kept under a mark, and when to go back to it: the state itself never travels.
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from fedkin.engines.flower.setup import Setup, is_built_in
from fedkin.engines.flower.wire import Message, under
from fedkin.engines.host import Host
from fedkin.errors import FedkinError
from fedkin.export import file_stems
from fedkin.federation import Federation
from fedkin.files import read_tensors, write_atomic, write_json, write_tensors
from fedkin.local.mail import Mail
from fedkin.local.tasks import Request
from fedkin.streams import Streams

KEPT_MARKS, KEPT_RUNS = 3, 3


class ClientFile(BaseModel):
    """One client of a site, as site.toml has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    data: str
    target: str = "y"
    drop: list[str] = []
    model: str | None = None


class SiteFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    clients: list[ClientFile]
    state: str = "state"
    disclose: bool = False
    trust: list[str] = []


@dataclass(frozen=True)
class Site:
    """A site's settings and the folder they were read from."""

    folder: Path
    settings: SiteFile
    arrays: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Site:
        try:
            settings = SiteFile(**tomllib.loads(path.read_text()))
        except OSError as problem:
            raise FedkinError(f"{path} cannot be read: {problem.strerror}") from problem
        except (tomllib.TOMLDecodeError, ValidationError) as problem:
            line = " ".join(str(problem).split())
            raise FedkinError(f"{path} is not a site.toml: {line}") from problem
        if not settings.clients:
            raise FedkinError(f"{path} names no client; add a [[clients]] section")
        folder = path.absolute().parent
        return cls(folder, settings, {client.name: load(client, folder) for client in settings.clients})

    # --- answering ----------------------------------------------------------------------------------------------------

    def handle(self, message: Message) -> Message:
        """Answer one message of the server; what cannot be done is refused in one line."""
        kinds = {
            "hello": self._hello, "join": self._join, "answer": self._answer, "post": self._post,
            "deploy": self._deploy,
        }  # fmt: skip
        kind = message.head.get("kind")
        try:
            if kind not in kinds:
                raise FedkinError(f"the server asks for {kind!r}, which this version of fedkin does not know")
            return kinds[kind](message)
        except Exception as problem:
            return Message({"refused": " ".join(str(problem).split()) or type(problem).__name__})

    def _hello(self, message: Message) -> Message:
        """Who is here: names, number of samples, shapes and labels."""
        told = []
        for client in self.settings.clients:
            data = self.arrays[client.name]
            x, y = data["train"] if isinstance(data, dict) else data
            described = {
                "name": client.name,
                "input_shape": list(x.shape[1:]) or [1],
                "output_shape": list(y.shape[1:]),
                "columns": self._columns(client),
                "model": client.model,
            }
            if y.dtype.kind in "biuUSO":
                described["labels"] = np.unique(y).tolist()
            told.append(described)
        return Message({"clients": told})

    def _columns(self, client: ClientFile) -> list[str] | None:
        return _inputs(client, self.folder)[1] if client.data.endswith(".csv") else None

    def _join(self, message: Message) -> Message:
        """Sizes of the splits, and a hash of the data."""
        federation = self._federation(Setup.read(message.head["setup"]))
        told = []
        for k, name in enumerate(federation.names):
            sizes = {part: int(getattr(federation, part).sizes[k]) for part in ("train", "validation", "test")}
            told.append({"name": name, **sizes, "fingerprint": federation.take([k]).fingerprint()})
        return Message({"clients": told})

    def _federation(self, setup: Setup) -> Federation:
        return Federation.from_arrays(
            self.arrays,
            task=setup.task.kind,
            classes=list(setup.task.classes) or None,
            test_fraction=setup.test_fraction,
            validation_fraction=setup.validation_fraction,
            seed=setup.split_seed,
            tokens=setup.task.tokens,
        )

    def _check_trust(self, name: str, packages: list[str]) -> None:
        """The server says what to import by name; only what this site trusts is."""
        module, _, function = name.rpartition(":")
        if module and not function.isdigit() and module.partition(".")[0] not in packages:
            raise FedkinError(f"this site does not trust {name!r}; its site.toml may list {module!r} under trust")

    def _host(self, setup: Setup) -> Host:
        if not is_built_in(setup.model):
            self._check_trust(setup.model, self.settings.trust)
        federation = self._federation(setup)
        own = {client.name: client.model for client in self.settings.clients}
        return Host(federation, setup.spec(federation.names, own), Streams(setup.seed))

    def _answer(self, message: Message) -> Message:
        """Do a task, from the private state on disk and back to it."""
        head, setup, run = message.head, Setup.read(message.head["setup"]), self._run(message)
        self._check_trust(head["task"], ["fedkin", *self.settings.trust])
        host = self._host(setup)
        self._recall(host, run, head["task"])
        fresh = not host.shard.objects
        request, letter_bytes = self._request(host, message)
        answer = host.answer(head["task"], request)
        if host.shard.store:
            write_tensors(run / "current.safetensors", host.snapshot(), {})
        if fresh and host.shard.objects:  # estimators are no tensors: what made them is kept, and done again
            write_tensors(run / "recipe.safetensors", message.tensors, {"head": dict(message.head)})
        arrays = dict(answer.arrays)
        if request.shared.get("disclose") and "model" in arrays:
            arrays["model"] = self._own_models(host, run, head, answer.ids, arrays)
        told = {"answered": [host.names[k] for k in answer.ids], "failed": answer.failed, "letter_bytes": letter_bytes}
        return Message(told, under("array", arrays))

    def _request(self, host: Host, message: Message) -> tuple[Request, int]:
        ids = self._positions(host, message.head["clients"])
        shared = {**message.head.get("shared", {}), **message.part("shared")}
        mail, size = self._mail(host, message) if "mail" in message.head else (None, 0)
        return Request(ids, message.part("per_client"), shared, mail), size

    def _positions(self, host: Host, names: list[str]) -> np.ndarray:
        for name in names:
            if name not in host.names:
                raise FedkinError(f"client {name!r} is not at this site, which has {', '.join(host.names)}")
        return np.array([host.names.index(name) for name in names], dtype=np.int64)

    def _mail(self, host: Host, message: Message) -> tuple[Mail, int]:
        """Letters that came through the server, and those between clients of this site, which never leave it."""
        told, links = message.head["mail"], message.part("links")
        shape = (len(told["receivers"]), len(told["senders"]))
        weights = sp.csr_array((links["data"].numpy(), links["indices"].numpy(), links["indptr"].numpy()), shape=shape)
        foreign, store = message.tensors.get("letters"), host.shard.store.get(told["letter"])
        letters, keep, next_foreign = [], [], 0
        for column, name in enumerate(told["senders"]):
            if name not in host.names:
                assert foreign is not None
                letters.append(foreign[next_foreign])
                next_foreign += 1
            elif store is not None:
                letters.append(store[host.names.index(name)].clone())
            else:  # a restarted site has no letters of its own yet
                continue
            keep.append(column)
        senders = tuple(told["senders"][column] for column in keep)
        stacked = torch.stack(letters) if letters else torch.zeros(0)
        size = letters[0].numel() * letters[0].element_size() if letters else 0
        return Mail(tuple(told["receivers"]), senders, sp.csr_array(weights[:, keep]), stacked), size

    def _post(self, message: Message) -> Message:
        """Private state that clients of this site send to neighbours elsewhere."""
        host = self._host(Setup.read(message.head["setup"]))
        self._recall(host, self._run(message), task=None)
        letter, ids = message.head["letter"], self._positions(host, message.head["clients"])
        if letter not in host.shard.store:
            return Message({"missing": sorted(host.shard.store)})
        return Message({}, {"letters": host.outbox(letter, ids)})

    # --- private state ------------------------------------------------------------------------------------------------

    def _run(self, message: Message) -> Path:
        """The folder of a run's private state, at the mark the server has in mind."""
        token = str(message.head["run"])
        if not token.isalnum():
            raise FedkinError(f"the server's name for the run, {token!r}, is not plain letters and digits")
        base = self.folder / self.settings.state
        if not (base / token).exists():
            earlier = sorted((d for d in base.glob("*") if d.is_dir() and d.name != "models"), key=_age)
            for folder in earlier[: -(KEPT_RUNS - 1)]:
                shutil.rmtree(folder, ignore_errors=True)
            (base / token).mkdir(parents=True, exist_ok=True)
        self._turn(base / token, message.head)
        return base / token

    def _recall(self, host: Host, run: Path, task: str | None) -> None:
        """Private state from disk; then whatever made estimators is done again."""
        if (run / "current.safetensors").exists():
            host.restore(read_tensors(run / "current.safetensors")[0])
        if task is not None and (run / "recipe.safetensors").exists():
            tensors, facts = read_tensors(run / "recipe.safetensors")
            recipe = Message(facts["head"], tensors)
            if recipe.head["task"] != task:
                host.answer(recipe.head["task"], self._request(host, recipe)[0])

    def _turn(self, run: Path, head: Mapping[str, Any]) -> None:
        """Keep the present state under a mark, or go back to one, before anything else is done.

        The server names the newest mark in every message, so a checkpoint costs no message of its own: as long as no
        message has come since, the present state is that of the mark.
        """
        seen = run / "session"
        session, known = int(head.get("session", 0)), int(seen.read_text()) if seen.exists() else 0
        if session < known:
            raise FedkinError("this message is of a server that was started again since; it is too late")
        if session > known:
            write_atomic(seen, str(session).encode())
        current, mark = run / "current.safetensors", int(head.get("mark", 0))
        marks = {int(path.stem.partition("-")[2]): path for path in run.glob("mark-*.safetensors")}
        if "restore" in head:
            for number, path in marks.items():
                if number > mark:
                    _remove(path)
            if mark in marks:
                write_tensors(current, *read_tensors(marks[mark]))
        elif mark > max(marks, default=0) and current.exists():
            write_tensors(run / f"mark-{mark:09d}.safetensors", *read_tensors(current))
            for number in sorted(marks)[: -(KEPT_MARKS - 1)]:
                _remove(marks[number])

    # --- models -------------------------------------------------------------------------------------------------------

    def _own_models(
        self, host: Host, run: Path, head: Mapping[str, Any], ids: np.ndarray, arrays: Mapping[str, Tensor]
    ) -> Tensor:
        """Keep the clients' whole models here; what the server gets of them leaves out what is private."""
        when = "received" if head["task"] == "evaluate" else "trained"
        models = arrays["model"]
        facts = {"clients": [host.names[k] for k in ids]}
        write_tensors(run / f"{when}.safetensors", {"model": models, "counters": arrays["counters"]}, facts)
        private = tuple(head.get("shared", {}).get("private", ()))
        if self.settings.disclose or not private:
            return models
        hidden = host.shard.spec.layout.mask(private)
        return torch.where(hidden, host.shard.spec.initial_row(host.shard.streams), models)

    def _deploy(self, message: Message) -> Message:
        """Write each client's own model and its card to models/."""
        setup, run, out = Setup.read(message.head["setup"]), self._run(message), self.folder / "models"
        spec, written = self._host(setup).shard.spec, []
        if not spec.layout.width:
            return Message({"deployed": []})
        for client, stem in zip(self.settings.clients, file_stems([c.name for c in self.settings.clients])):
            card = message.head["cards"].get(client.name)
            if card is None:
                continue
            tensors, facts = read_tensors(run / f"{card['deploys']}.safetensors")
            k = facts["clients"].index(client.name)
            module = spec.module(tensors["model"][k], tensors["counters"][k])
            from safetensors.torch import save

            state = {name: value.detach().clone().contiguous() for name, value in module.state_dict().items()}
            write_atomic(out / f"{stem}.safetensors", save(state))
            write_json(out / f"{stem}.json", {**card, "client": client.name, "files": [f"{stem}.safetensors"]})
            written.append(client.name)
        return Message({"deployed": written})


def answer_at(path: Path, message: Message) -> Message:
    """The answer of the site described in a file, to one message."""
    try:
        return Site.read(path).handle(message)
    except FedkinError as problem:
        return Message({"refused": str(problem)})


def _age(folder: Path) -> float:
    return folder.stat().st_mtime


def _remove(path: Path) -> None:
    path.unlink()
    path.with_suffix(".json").unlink(missing_ok=True)


def load(client: ClientFile, folder: Path) -> Any:
    """The samples of a client as `Federation.from_arrays` takes them."""
    path = folder / client.data
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                found = {key: file[key] for key in file.files}
            if "x" not in found or "y" not in found:
                raise FedkinError(f"client {client.name!r}: {path} has no arrays x and y")
            pair = (found["x"], found["y"])
            return {"train": pair, "test": (found["x_test"], found["y_test"])} if "x_test" in found else pair
        if path.suffix == ".csv":
            x, _, y = _inputs(client, folder)
            return x, y
    except (OSError, ValueError) as problem:
        if isinstance(problem, FedkinError):
            raise
        raise FedkinError(f"client {client.name!r}: {path} cannot be read: {problem}") from problem
    raise FedkinError(f"client {client.name!r}: {path} must end in .csv or .npz")


def _inputs(client: ClientFile, folder: Path) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Inputs (n, M), their columns, and targets (n,) of a table."""
    import pandas as pd

    frame = pd.read_csv(folder / client.data)
    for column in (client.target, *client.drop):
        if column not in frame.columns:
            raise FedkinError(f"client {client.name!r}: {client.data} has no column {column!r}")
    inputs = frame.drop(columns=[client.target, *client.drop])
    for column in inputs.columns:
        if inputs[column].dtype.kind not in "biuf":
            raise FedkinError(f"client {client.name!r}: column {column!r} is not numeric; encode it or put it in drop")
    return inputs.to_numpy(dtype=np.float32), [str(c) for c in inputs.columns], frame[client.target].to_numpy()
