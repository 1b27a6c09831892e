"""The contract between the server side and the clients, whatever engine runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedkin.errors import EveryoneFailed, FedkinError
from fedkin.graphs import ClientGraph

if TYPE_CHECKING:
    from fedkin.local.tasks import Request


Stacked = Mapping[str, Tensor] | None
"""What every asked client gets for itself: arrays by name, a row per client."""
Alike = Mapping[str, Any] | None
"""What all asked clients get alike, by name."""

UNSET = "?"
"""In a snapshot, "x?" says which clients have no value of "x" yet."""


@dataclass(frozen=True)
class Replies:
    """The answers to one question, stacked; only those who answered well are in them."""

    ids: np.ndarray
    """Positions of the clients that answered, in the order they were asked."""
    arrays: Mapping[str, Tensor]
    failed: Mapping[str, str] = field(default_factory=dict)
    """Client name → why it was set aside (failed, timed out, sent NaN, …)."""
    letters: np.ndarray | None = None
    """After an exchange: how many letters each edge carried, in the order of the adjacency's entries (k ← l)."""

    def __getitem__(self, name: str) -> Tensor:
        return self.arrays[name]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass
class Traffic:
    """Bytes from the server, to the server and between clients; messages of all kinds. Evaluation is not billed."""

    down: int = 0
    up: int = 0
    peers: int = 0
    messages: int = 0

    def total(self) -> int:
        return self.down + self.up + self.peers

    def add(self, request: Request, answered: np.ndarray, arrays: Mapping[str, Tensor]) -> None:
        """A question and its answers: what all clients get alike is sent to each of them."""
        self.asked(
            len(answered), n_bytes(request.per_client) + n_bytes(request.shared) * len(answered), n_bytes(arrays)
        )

    def asked(self, clients: int, down: int, up: int) -> None:
        """A question to so many clients and their answers, in bytes of all of them together."""
        self.down += down
        self.up += up
        self.messages += 2 * clients

    def add_letters(self, letters: np.ndarray, size: int) -> None:
        """An exchange: letters per entry of the adjacency, and the bytes of one."""
        self.peers += int(letters.sum()) * size
        self.messages += int(letters.sum())


class Clients(Protocol):
    """All clients of a federation, as the server side sees them: names and sizes, never data."""

    names: tuple[str, ...]
    sizes: np.ndarray
    traffic: Traffic

    def ask(
        self, task: str, ids: np.ndarray, per_client: Stacked = None, shared: Alike = None, bill: bool = True
    ) -> Replies:
        """Have clients `ids` do a task; row i of every `per_client` array goes to client ids[i]."""

    def link(self, graph: ClientGraph) -> None:
        """Tell the clients, once, who their neighbours are: `exchange` carries letters along these edges alone."""

    def exchange(
        self,
        letter: str,
        task: str,
        ids: np.ndarray,
        shared: Alike = None,
        bill: bool = True,
        padded: bool = False,
        senders: np.ndarray | None = None,
    ) -> Replies:
        """Neighbour to neighbour, past the server: clients `ids` send their private state `letter` to those of their
        neighbours that are in `ids` too, then each does the task with the letters it got (`request.mail`).

        `padded`: NaN in a letter stands for no value. Otherwise a letter must be finite.
        `senders`: whose letters are carried instead (default: `ids`); who is not asked is heard with what it last had to say.
        """

    def remember(self, recipe: Callable[[], Any]) -> None:
        """How clients come by what they hold besides private state (estimators, say), in questions of the method's.

        A host whose process is a new one answers that it forgot (a task raises `errors.Forgot`). The recipe is then
        replayed, without a bill, and the question put again.
        """

    def snapshot(self) -> dict[str, Tensor]:
        """All client-side private state, name → (K, …), for the checkpoint."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `snapshot` gave."""

    def estimators(self) -> dict[str, Any]:
        """The clients' fitted estimators by name, where this process holds them; empty where it does not."""

    def close(self) -> None:
        """Let go of workers and connections."""


def joined(parts: Sequence[Replies]) -> Replies:
    """Answers of several groups of clients to the same question, one after the other."""
    arrays = {name: torch.cat([part[name] for part in parts]) for name in parts[0].arrays}
    failed = {name: reason for part in parts for name, reason in part.failed.items()}
    return Replies(np.concatenate([part.ids for part in parts]), arrays, failed)


NOT_FINITE = "sent NaN or infinity"
"""How the reason begins for a client whose answer was not finite."""


def n_bytes(values: Mapping[str, Any] | None) -> int:
    """Bytes of the tensors among `values`."""
    total = 0
    for value in (values or {}).values():
        total += value.nbytes if isinstance(value, torch.Tensor) else 0
    return total


def carried(graph: ClientGraph, receivers: np.ndarray, senders: np.ndarray) -> np.ndarray:
    """Letters per entry of the adjacency when all `senders` write to all `receivers`: 1 between two of them, else 0."""
    reads, writes = np.zeros(len(graph), dtype=bool), np.zeros(len(graph), dtype=bool)
    reads[receivers], writes[senders] = True, True
    receiver = np.repeat(reads, np.diff(graph.adjacency.indptr))
    return (receiver & writes[graph.adjacency.indices]).astype(np.int64)


def check_rows(task: str, request: Request) -> None:
    """Every array must have one row per asked client."""
    for key, value in request.per_client.items():
        if len(value) != len(request.ids):
            raise FedkinError(f"task {task!r}: {key!r} has {len(value)} rows for {len(request.ids)} clients")


def needs_graph(task: str, graph: ClientGraph | None) -> ClientGraph:
    if graph is None:
        raise FedkinError(f"task {task!r} needs neighbours, but the clients have no graph; give one")
    return graph


def everyone_failed(task: str, failed: Mapping[str, str]) -> EveryoneFailed:
    """If a task fails on every client, the fault is not theirs."""
    name, reason = next(iter(failed.items()))
    reason = reason.removeprefix(f"task {task!r} failed: ")
    return EveryoneFailed(f"task {task!r} failed on every client, first on {name!r}: {reason}", failed)


def set_aside(
    names: Sequence[str], ids: np.ndarray, arrays: Mapping[str, Tensor], failed: Mapping[str, str]
) -> Replies:
    """Keep the clients whose answers are finite; the others join the failed, with the reason."""
    reasons = dict(failed)
    good = np.ones(len(ids), dtype=bool)
    for key, value in arrays.items():
        if value.is_floating_point() and value.numel() and not bool(torch.isfinite(value.sum())):
            finite = torch.isfinite(value.reshape(len(ids), -1)).all(dim=1).cpu().numpy()
            for position in np.flatnonzero(~finite & good):
                reasons[names[ids[position]]] = f"{NOT_FINITE} in {key!r}; its training diverged"
            good &= finite
    replies = Replies(ids, dict(arrays), reasons)
    return replies if good.all() else only(replies, good)


def only(replies: Replies, kept: np.ndarray) -> Replies:
    """The replies of some of those who answered: `kept` (k,) bool."""
    keep = torch.as_tensor(np.flatnonzero(kept))
    return replace(replies, ids=replies.ids[kept], arrays={k: v[keep] for k, v in replies.arrays.items()})
