"""What every site must know alike: the task, the model, the seeds. It is part of each message, so a site keeps nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch

from fedkin.errors import FedkinError
from fedkin.models import ModelLike, ModelSpec, estimators
from fedkin.models.estimators import ESTIMATORS, Estimators
from fedkin.models.frozen import carrying, freeze
from fedkin.models.memory import with_memory
from fedkin.models.networks import NETWORKS
from fedkin.task import Task

SITES = "sites"
"""The model's name when every client brings its own (site.toml)."""


@dataclass(frozen=True)
class Setup:
    """The task and the settings of a run, as sites need them."""

    task: Task
    model: str
    dtype: str
    seed: int
    test_fraction: float = 0.25
    validation_fraction: float = 0.0
    split_seed: int = 0
    memory: Sequence[Any] | None = None
    """What the method adds to the network, see `Algorithm.remembers`."""
    frozen: Sequence[str] = ()
    """Patterns of tensors that nobody trains."""
    frozen_sha256: str = ""
    """The hash of the frozen part, which every site gets once; "": there is none, or rows carry it."""
    caches: bool = False
    """Whether a site may keep what frozen first layers make of its samples."""
    folds: Sequence[int] | None = None
    """(count, used, seed): every client stands for its folds, without test samples (`fedkin.federation.folds`)."""

    inputs: Sequence[Mapping[str, Any]] = ()
    """How sites make inputs of their raw tables (`scheme.py`); (): their files hold inputs."""

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Setup:
        return cls(**{**told, "task": Task.read(told["task"])})

    def told(self) -> dict[str, Any]:
        """As JSON can hold it."""
        told = {**vars(self), "task": self.task.told()}
        seldom = ("memory", "folds", "frozen", "frozen_sha256", "caches", "inputs")
        return {key: value for key, value in told.items() if value or key not in seldom}

    def spec(self, names: Sequence[str], own: Mapping[str, str | None]) -> ModelSpec:
        """The model of these clients, its frozen part without values; with the name "sites", each client's own."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        if self.model == SITES:
            return Estimators.each(models_of(own), list(names), self.task, dtype, SITES)
        model = resolve(self.model)
        spec = estimators.of(model, names, self.task, dtype)
        spec = spec if self.memory is None else with_memory(spec, self.task, *self.memory)
        spec = replace(freeze(spec, self.frozen), caches=self.caches)
        return spec if self.frozen_sha256 or not spec.layout.frozen else carrying(spec)


MOST_OPTIONS, LARGEST_OPTION = 4, 4096
"""Options of a model that a site names: how many, and how large. A network of four layers of 4096 takes 200 MB."""


def allowed_model(name: str, allowed: Sequence[str]) -> str | None:
    """Why a client may not bring the model `name`, or None. Nothing is imported or made to find out.

    `allowed` is the operator's list: "tree" allows any depth within bounds, "tree:5" that one; empty, all of fedkin's own.
    Whatever else a site names is only text.

    >>> allowed_model("tree:5", ["tree", "ridge"]), allowed_model("os:abort", [])
    (None, "model 'os:abort' is none of fedkin's, and not among allowed in [model] of federation.toml")
    """
    first, _, option = name.partition(":")
    if name in allowed:
        return None
    if first not in NETWORKS and first not in ESTIMATORS:
        return f"model {name[:100]!r} is none of fedkin's, and not among allowed in [model] of federation.toml"
    if allowed and first not in allowed:
        return f"model {name[:100]!r} is not among allowed in [model] of federation.toml: {', '.join(allowed)}"
    numbers = option.split(",") if option else []
    sound = all(n.isascii() and n.isdigit() and len(n) < 10 and 1 <= int(n) <= LARGEST_OPTION for n in numbers)
    if len(numbers) > MOST_OPTIONS or not sound:
        return f"model {name[:100]!r}: a site may give {MOST_OPTIONS} options of at most {LARGEST_OPTION}"
    return None


def models_of(own: Mapping[str, str | None]) -> dict[str, Any]:
    """Client → its own model, from the names in site.toml. (On the server, names that `allowed_model` let pass.)"""
    for name, model in own.items():
        if model is None:
            raise FedkinError(f"client {name!r} names no model in its site.toml; add for example model = 'tree:5'")
    return {name: resolve(str(model)) for name, model in own.items()}


def is_built_in(name: str) -> bool:
    """Whether a name stands for a model of fedkin, rather than something to import.

    >>> is_built_in("mlp:100"), is_built_in("some_module:1")
    (True, False)
    """
    first = name.partition(":")[0]
    return first in NETWORKS or first in ESTIMATORS


def resolve(name: str) -> ModelLike:
    """A built-in or a plug-in's by name, or "package.module:function" imported from the app.

    The name is the operator's or the site's own; what came over the network passed `allowed_model` or a site's trust.
    """
    first, _, function = name.partition(":")
    if is_built_in(name) or not function:
        return name
    try:
        found = getattr(import_module(first), function)
    except (ImportError, AttributeError, ValueError) as problem:
        raise FedkinError(f"model {name!r} cannot be imported: {problem}") from problem
    if not callable(found):
        raise FedkinError(f"model {name!r} is a {type(found).__name__}, not a function that returns a model")
    return found
