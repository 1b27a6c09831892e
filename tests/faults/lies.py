"""Lying sites over real message bytes: every field of every message of one of four sites is changed, one lie per run.

A lie is survived if the run ends well and the honest clients have sound models and metrics.
A lie told before training excludes the site, and the honest have the rows of a run without it, bit by bit.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from torch import Tensor

from fedkin.deployment.server import FederationFile, train_sites
from fedkin.engines.flower.wire import Message
from fedkin.federation import Federation
from fedkin.result import Result
from fedkin.testing import uneven_federation

from ..engines import sites
from .campaign import Outcome

GROUPS = ((0,), (1, 2), (3,), (4, 5))
LIAR = 1
LYING = ("site-b", "site-c")
HONEST = ("site-a", "site-d", "site-e", "site-f")
OWNERS = {str(s): [f"site-{'abcdef'[k]}" for k in group] for s, group in enumerate(GROUPS)}
HUGE, MINUS = 10**25, -1
DEEP = "[" * 100_000


# --- lies: what is said instead ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lie:
    """Instead of the honest answer to messages of this kind ("answer train", say), something else."""

    kind: str
    title: str
    change: Callable[[Message], tuple[Any, Any]]

    def __str__(self) -> str:
        return f"{self.kind}: {self.title}"


VALUES: dict[str, Any] = {
    "none": None, "text": "x", "empty": "", "list": [], "nested": [["x"]], "dict": {"a": 1}, "true": True, "minus": MINUS,
    "huge": HUGE, "float": 0.5, "escape": "\x1b[2J\n", "long": "y" * 100_000, "lone surrogate": "\ud800",
    "another's name": "site-a", "an import": "os:abort", "a digit import": "antigravity:1", "a path": "../../etc/passwd",
}  # fmt: skip


def fields(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value, lists by their first entry."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, entry in inner:
        yield from fields(entry, (*path, key))


def put(head: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of the head with another value at a place; left out if it is `...`."""
    head = json.loads(json.dumps(head))
    place = head
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return head


def raw(message: Message, head: Any) -> tuple[str, bytes]:
    return json.dumps(head), message.encode()[1]


def head_lies(kind: str, head: Any) -> Iterator[Lie]:
    """Every field of a head becomes every strange value, or is left out; and a field that nobody knows is added."""
    for path in fields(head):
        name = ".".join(map(str, path))
        for title, value in [*VALUES.items(), ("left out", ...)]:
            yield Lie(kind, f"{name} {title}", lambda m, p=path, v=value: raw(m, _try(m, p, v)))
    yield Lie(kind, "only ready", lambda m: ('{"ready": 1}', m.encode()[1]))
    yield Lie(kind, "an unknown field", lambda m: raw(m, {**m.head, "more": 1}))
    yield Lie(kind, "an empty head", lambda m: ("{}", m.encode()[1]))
    yield Lie(kind, "a list as head", lambda m: ("[]", m.encode()[1]))
    yield Lie(kind, "a deep head", lambda m: (DEEP, m.encode()[1]))
    yield Lie(kind, "NaN in the head", lambda m: ('{"answered": NaN}', m.encode()[1]))
    yield Lie(kind, "no JSON", lambda m: ("{", b""))
    yield Lie(kind, "nothing", lambda m: (None, None))
    yield Lie(kind, "bytes that are no tensors", lambda m: (m.encode()[0], b"\x80\x04pickle"))
    yield Lie(kind, "a refusal with control characters", lambda m: ('{"refused": "no\\u001b[2J\\nway"}', b""))
    yield Lie(kind, "a refusal that is a list", lambda m: raw(Message(), {"refused": [[1]]}))
    yield Lie(kind, "a tensor nobody asked for", lambda m: Message(m.head, {**m.tensors, "x": torch.ones(1)}).encode())


def _try(message: Message, path: tuple[Any, ...], value: Any) -> Any:
    try:
        return put(message.head, path, value)
    except (KeyError, IndexError, TypeError):  # this answer has no such field
        return {**message.head, str(path[0]): None if value is ... else value}


TENSORS: dict[str, Callable[[Tensor], Tensor]] = {
    "NaN": lambda v: torch.full_like(v, torch.nan) if v.is_floating_point() else v.long() - 2**40,
    "infinite": lambda v: torch.full_like(v, torch.inf) if v.is_floating_point() else v.long() + 2**62,
    "1e38": lambda v: torch.full_like(v, 1e38) if v.is_floating_point() else v.long() + 2**50,
    "minus 1e38": lambda v: torch.full_like(v, -1e38) if v.is_floating_point() else -v.long() - 1,
    "1e300": lambda v: torch.full_like(v.double(), 1e300),
    "float16": lambda v: v.half(),
    "another float": lambda v: v.float() if v.dtype == torch.float64 else v.double(),
    "int64": lambda v: v.long() if v.is_floating_point() else v.double(),
    "bool": lambda v: v.bool(),
    "too few rows": lambda v: v[:1].clone(),
    "too many rows": lambda v: torch.cat([v, v]),
    "no rows": lambda v: v[:0].clone(),
    "one axis more": lambda v: v[..., None].clone(),
    "a scalar": lambda v: torch.zeros((), dtype=v.dtype),
    "16 MiB": lambda v: torch.zeros((len(v), 2**20), dtype=torch.float64),
}


def tensor_lies(kind: str, names: list[str]) -> Iterator[Lie]:
    """Every tensor of a message becomes another, or is left out."""
    for name in names:
        for title, change in TENSORS.items():

            def changed(m: Message, name: str = name, change: Any = change) -> tuple[Any, Any]:
                if name not in m.tensors:
                    return m.encode()
                return Message(m.head, {**m.tensors, name: change(m.tensors[name])}).encode()

            yield Lie(kind, f"{name} {title}", changed)
        yield Lie(
            kind,
            f"{name} left out",
            lambda m, name=name: Message(m.head, {k: v for k, v in m.tensors.items() if k != name}).encode(),
        )


# --- a run with one lie -----------------------------------------------------------------------------------------------


def kind_of(message: Message) -> str:
    head = message.head
    task = str(head.get("task") or head.get("letter") or "").rpartition(":")[2]
    return f"{head['kind']} {task}".strip()


class Lying(sites.LoopLine):
    """The liar says the same lie every time it is asked."""

    def __init__(self, paths: Any, lie: Lie | None) -> None:
        super().__init__(paths)
        self.lie, self.told = lie, 0
        self.heard: dict[str, Message] = {}

    def tamper(self, node: int, message: Message, answer: Message) -> tuple[Any, Any]:
        if node == LIAR:
            known = self.heard.get(kind_of(message))
            if known is None or len(answer.tensors) > len(known.tensors):
                self.heard[kind_of(message)] = answer
            if self.lie is not None and self.lie.kind == kind_of(message):
                self.told += 1
                return self.lie.change(answer)
        return answer.encode()


@dataclass
class Campaign:
    """One method on four sites, honest once; then lie after lie."""

    folder: Path
    federation: Federation
    method: str
    graph: str | None = None
    model: str = "mlr"

    def plan(self) -> FederationFile:
        sections = {
            "federation": {"sites": 3, "wait": 1, "timeout": 5, "classes": [0, 1, 2], "owners": OWNERS},
            "model": {"name": self.model},
            "algorithm": {"name": self.method},
            "run": {"rounds": 2, "seed": 1, "dtype": "float64", "eval_every": 2, "checkpoint_every": 2},
            **({"graph": {"name": self.graph}} if self.graph else {}),
        }
        path = self.folder / "federation.toml"
        path.write_text(tomli_w.dumps(sections))
        return FederationFile.read(path)

    def run(self, lie: Lie | None, number: int, without_liar: bool = False) -> tuple[Lying, Result]:
        if not (self.folder / "site-0").exists():
            models = dict.fromkeys(self.federation.names, "tree:3") if self.model == "sites" else None
            sites.write_sites(self.federation, self.folder, GROUPS, models=models)
        line = Lying([self.folder / f"site-{s}" / "site.toml" for s in range(len(GROUPS))], lie)
        if without_liar:
            line.paths.pop(LIAR)
        return line, train_sites(line, self.plan(), self.folder / f"result-{number}")

    def lies(self, heard: dict[str, Message]) -> list[Lie]:
        found: list[Lie] = []
        for kind, message in heard.items():
            found += head_lies(kind, json.loads(message.encode()[0]))
            found += tensor_lies(kind, list(message.tensors))
        return found

    def survives(self, lie: Lie, number: int, alone: Result) -> str | None:
        """What is wrong after a run with this lie, or None."""
        try:
            line, result = self.run(lie, number)
        except BaseException as problem:
            return f"{lie} ended the run: {type(problem).__name__}: {str(problem)[:200]}"
        if not line.told:
            return f"{lie} was never told"
        place = [k for k, name in enumerate(result.names) if name in HONEST]
        if [result.names[k] for k in place] != [name for name in alone.names if name in HONEST]:
            return f"{lie} left out honest clients: {result.names}"
        failed = {name for record in result.history for name in record["log"].get("failed", {})}
        if failed & set(HONEST):
            return f"{lie} set honest clients aside: {failed}"
        if not np.isfinite(result.rows[place]).all() or np.abs(result.rows[place]).max(initial=0) > 1e3:
            return f"{lie} spoilt the rows of honest clients"
        for when, table in result.metrics.items():
            known = np.array(table["test_accuracy"], dtype=float)[place]
            due = np.array(alone.metrics[when]["test_accuracy"], dtype=float)
            due = due[[k for k, name in enumerate(alone.names) if name in HONEST]]
            if not np.array_equal(np.isnan(known), np.isnan(due)):
                return f"{lie} took {when} accuracies of honest clients"
        if set(result.names) <= set(HONEST) and self.model != "sites" and not np.array_equal(result.rows, alone.rows):
            return f"{lie} changed rows of honest clients though its site is excluded"
        return None


def lies(
    folder: Path, method: str, every: int = 1, first: int = 0, graph: str | None = None, model: str = "mlr"
) -> Outcome:
    """Tell each `every`-th lie from the `first` on, one per run."""
    runs = Campaign(folder, uneven_federation(), method, graph, model)
    line, _ = runs.run(None, 0)
    _, alone = runs.run(None, 1, without_liar=True)
    chosen = list(itertools.islice(runs.lies(line.heard), first, None, every))
    faults = (runs.survives(lie, number, alone) for number, lie in enumerate(chosen, start=2))
    return len(chosen), [f"{method} ({model}), {fault}" for fault in faults if fault]
