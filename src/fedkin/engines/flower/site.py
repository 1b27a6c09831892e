"""A site: one or more clients with their data, in a folder of their own. Everything private stays on its disk.

A message starts a new process, so private state is read from disk before a task and written after it. The server says
which state is to be kept under a mark, and when to go back to it: the state itself never travels. Whatever the server
asks, an array leaves only if the site's policy lets it, and it is written down.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from pydantic import ValidationError
from torch import Tensor

from fedkin.engines.flower.condition import Condition, condition_at
from fedkin.engines.flower.policy import write_down
from fedkin.engines.flower.raw_table import told_of_table
from fedkin.engines.flower.setup import SITES, Setup, is_built_in
from fedkin.engines.flower.site_file import SiteFile, load_arrays, told_of
from fedkin.engines.flower.site_state import FrozenParts, SiteState
from fedkin.engines.flower.wire import Message, under
from fedkin.engines.host import Host
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.federation.folds import folded, whole_training
from fedkin.files import clean_up, owner_only, write_atomic, write_json
from fedkin.local.mail import Mail
from fedkin.local.tasks import Request
from fedkin.models import ModelSpec
from fedkin.models.frozen import with_frozen
from fedkin.privacy.ledger import LEDGER, Ledger
from fedkin.result.combined import one_module
from fedkin.result.export import file_stems
from fedkin.streams import Streams
from fedkin.task.curves import no_curves
from fedkin.task.losses import LOSSES, names_an_import
from fedkin.task.metrics import METRICS


@dataclass(frozen=True)
class Site:
    """A site's settings and the folder they were read from."""

    folder: Path
    settings: SiteFile

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
        return cls(path.absolute().parent, settings)

    # --- answering ----------------------------------------------------------------------------------------------------

    def handle(self, message: Message) -> Message:
        """Answer one message of the server; what cannot be done is refused in one line."""
        kinds = {
            "hello": self._hello, "join": self._join, "answer": self._answer, "post": self._post,
            "deploy": self._deploy, "frozen": self._frozen,
        }  # fmt: skip
        kind = message.head.get("kind")
        try:
            if not isinstance(kind, str) or kind not in kinds:
                raise FedkinError(f"the server asks for {kind!r}, which this version of fedkin does not know")
            with owner_only():
                answer = kinds[kind](message)
                write_down(self.folder / self.settings.audit, message, answer)
            return answer
        except Exception as problem:
            return Message({"refused": " ".join(str(problem).split()) or type(problem).__name__})

    def _hello(self, message: Message) -> Message:
        """Who is here: names, number of samples, shapes and labels; of raw tables that are to be prepared, their columns.

        Every server begins with this question.
        """
        for place in {self.folder, self.folder / self.settings.state}:
            clean_up(place, owned=False)
        told = []
        for client in self.settings.clients:
            if message.head.get("prepare"):
                state = self.folder / self.settings.state
                told.append(told_of_table(client, self.folder, self.settings.policy, state))
                continue
            data = load_arrays(client, self.folder)
            told.append(told_of(client, self.folder, data["train"] if isinstance(data, dict) else data))
        return Message({"clients": told})

    def _join(self, message: Message) -> Message:
        """Sizes of the splits, and a hash of the data; samples per class if they are asked for and may leave."""
        federation = self._federation(Setup.read(message.head["setup"]))
        counted = bool(message.head.get("class_counts"))
        if counted:
            self.settings.policy.check_question({"task": "label_counts"}, self.folder)
        told = []
        for k, name in enumerate(federation.names):
            sizes = {part: int(getattr(federation, part).sizes[k]) for part in ("train", "validation", "test")}
            own = federation.take([k])
            told.append({"name": name, **sizes, "fingerprint": own.fingerprint()})
            counts = own.class_counts() if counted else None
            if counts is not None:
                told[-1]["class_counts"] = counts.astype(int).tolist()
        return Message({"clients": told})

    def _federation(self, setup: Setup) -> Federation:
        """This site's clients, split; the task is the one that all sites agreed on."""
        own, scale = self.settings.clients, setup.task.scale
        federation = Federation.from_arrays(
            {client.name: load_arrays(client, self.folder, setup.inputs, scale) for client in own},
            task=setup.task.kind,
            classes=list(setup.task.classes) or None,
            test_fraction=setup.test_fraction,
            validation_fraction=setup.validation_fraction,
            seed=setup.split_seed,
            tokens=setup.task.tokens,
        )
        federation = replace(federation, task=setup.task, inputs=tuple(setup.inputs))
        if setup.folds is None:
            return federation
        count, used, seed = (int(number) for number in setup.folds)
        return folded(whole_training(federation), count, used, seed, whole=True)

    def _check_trust(self, name: str, packages: list[str]) -> None:
        """The server says what to import by name; only what this site trusts is."""
        module = name.partition(":")[0]
        if module.partition(".")[0] not in packages:
            raise FedkinError(f"this site does not trust {name!r}; its site.toml may list {module!r} under trust")

    def _host(self, setup: Setup) -> Host:
        if setup.model != SITES and not is_built_in(setup.model):
            self._check_trust(setup.model, self.settings.trust)
        strange = [
            n for n in (str(setup.task.loss), *setup.task.metrics) if n.partition(":")[0] not in (*LOSSES, *METRICS)
        ]
        for name in (*strange, *filter(names_an_import, [str(setup.task.augment)])):
            self._check_trust(name, self.settings.trust)
        federation = self._federation(setup)
        host = Host(federation, self._spec(setup, federation.names), Streams(setup.seed))
        host.shard.ledger = Ledger(self.folder / LEDGER)
        return host

    def _spec(self, setup: Setup, names: Sequence[str]) -> ModelSpec:
        """The model, with the frozen part that the server sent before."""
        own = {client.name: client.model for client in self.settings.clients}
        spec = setup.spec(names, own)
        if not setup.frozen_sha256:
            return spec
        tensors = FrozenParts(self.folder / self.settings.state).read(setup.frozen_sha256)
        return with_frozen(spec, tensors, "what the server sent as frozen")

    def _frozen(self, message: Message) -> Message:
        """Keep the frozen part of the model, if it came along; say whether it is here."""
        told, parts = Setup.read(message.head["setup"]).frozen_sha256, FrozenParts(self.folder / self.settings.state)
        if message.tensors:
            parts.keep(told, message.part("frozen"))
        return Message({"kept": told if parts.has(told) else ""})

    def _answer(self, message: Message) -> Message:
        """Do a task, from the private state on disk and back to it."""
        head, setup, state = message.head, Setup.read(message.head["setup"]), self._state(message)
        if ":" in head["task"]:
            self._check_trust(head["task"], ["fedkin", *self.settings.trust])
        for name in filter(names_an_import, _texts(head.get("shared", {}))):
            self._check_trust(name, self.settings.trust)
        self.settings.policy.check_question(head, self.folder)
        host = self._host(setup)
        state.recall(host)
        recipe = state.recipe()
        if recipe is not None and recipe.head["task"] != head["task"]:
            host.answer(recipe.head["task"], self._request(host, recipe)[0])
        fresh = not _made(host)
        request, letter_bytes = self._request(host, message)
        answer = host.answer(head["task"], request)
        state.keep(host)
        if fresh and _made(host):
            state.keep_recipe(message)
        arrays = dict(answer.arrays)
        if "model" in arrays:
            arrays["model"] = self._own_models(host, state, head, answer.ids, arrays)
        if "roc" in arrays and not self.settings.policy.curves:
            arrays |= no_curves(len(answer.ids))
        self.settings.policy.check_arrays(arrays, head, host.shard.spec.layout)
        told = {
            "answered": [host.names[k] for k in answer.ids],
            "failed": answer.failed,
            "forgot": answer.forgot,
            "letter_bytes": letter_bytes,
        }
        return Message(told, under("array", arrays))

    def _state(self, message: Message) -> SiteState:
        return SiteState.of(self.folder / self.settings.state, message.head)

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
        weights.check_format(full_check=True)  # before compiled code goes by the server's numbers
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
        self.settings.policy.check_letter(message.head["letter"])
        host = self._host(Setup.read(message.head["setup"]))
        self._state(message).recall(host)
        letter, ids = message.head["letter"], self._positions(host, message.head["clients"])
        if letter not in host.shard.store:
            return Message({"missing": sorted(host.shard.store)})  # names, no values
        return Message({}, {"letters": host.outbox(letter, ids)})

    # --- models -------------------------------------------------------------------------------------------------------

    def _own_models(
        self, host: Host, state: SiteState, head: Mapping[str, Any], ids: np.ndarray, arrays: Mapping[str, Tensor]
    ) -> Tensor:
        """Keep the clients' whole models here. The server gets them if it may; else the shared rows it has anyway.

        Private tensors, and models that are nobody's shared row (a personal one), then have their initial values.
        """
        when = "received" if head["task"] == "evaluate" else "trained"
        models = arrays["model"]
        kept = {"model": models, "counters": arrays["counters"]}
        state.keep_models(when, kept, [host.names[k] for k in ids])
        if self.settings.policy.disclose:
            return models
        layout, told = host.shard.spec.layout, head.get("shared", {})
        shared = ~layout.mask((*told.get("private", ()), *told.get("home", ())))
        shown = host.shard.spec.initial_row(host.shard.streams).expand_as(models).clone()
        if head["task"] == "evaluate":
            shown[:, shared] = models[:, shared]  # as they were received
        elif "rows" in arrays:
            shown[:, shared] = arrays["rows"]
        return shown

    def _deploy(self, message: Message) -> Message:
        """Write each client's own model and its card to models/."""
        setup, state, out = Setup.read(message.head["setup"]), self._state(message), self.folder / "models"
        spec, written = self._spec(setup, [client.name for client in self.settings.clients]), []
        if not spec.layout.width:
            return Message({"deployed": []})
        for client, stem in zip(self.settings.clients, file_stems([c.name for c in self.settings.clients])):
            card = message.head["cards"].get(client.name)
            if card is None:
                continue
            combined = message.part(f"combined/{client.name}")
            if combined:
                parts = combined["rows"], spec.initial_counters(), combined["weights"], combined["temperatures"]
                module = one_module(spec, *parts, setup.task.mixes_chances)
            else:
                tensors, names = state.models(card["deploys"])
                k = names.index(client.name)
                module = spec.module(tensors["model"][k], tensors["counters"][k])
            from safetensors.torch import save

            own = {name: value.detach().clone().contiguous() for name, value in module.state_dict().items()}
            write_atomic(out / f"{stem}.safetensors", save(own))
            write_json(out / f"{stem}.json", {**card, "client": client.name, "files": [f"{stem}.safetensors"]})
            written.append(client.name)
        return Message({"deployed": written})


def _texts(told: Any) -> Iterator[str]:
    """Every text in what a question says."""
    if isinstance(told, str):
        yield told
    elif isinstance(told, Mapping | list):
        for each in told.values() if isinstance(told, Mapping) else told:
            yield from _texts(each)


def _made(host: Host) -> bool:
    """Whether a task has made something that is no tensor, to be made again for every message. (A dict only remembers.)"""
    return any(not isinstance(held, dict) for held in host.shard.objects.values())


def answer_at(path: Path, message: Message) -> Message:
    """The answer of the site described in a file, to one message."""
    try:
        if message.head.get("kind") == Condition.kind:  # also of a site whose data cannot be read
            return Message(condition_at(path, bool(message.head.get("prepare"))))
        return Site.read(path).handle(message)
    except FedkinError as problem:
        return Message({"refused": str(problem)})
