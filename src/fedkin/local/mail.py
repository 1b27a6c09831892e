"""Mail: what clients received from their neighbours, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedkin.couplings.sparse import ClientMatrix
from fedkin.errors import FedkinError
from fedkin.graphs import ClientGraph


@dataclass(frozen=True)
class Mail:
    """The letters of one exchange: receiver i may read those of its neighbours, one by one or as weighted sums.

    A mail only ever holds letters that some receiver in it may read: that of a single client (`to`) holds the letters
    of its neighbours alone. Letters are copies, made when they were posted, so everyone reads what was sent before
    anyone acted on it.
    """

    receivers: tuple[str, ...]
    senders: tuple[str, ...]
    links: sp.csr_array
    """Weights a_kl of the edges, (receivers, senders)."""
    letters: Tensor
    """One letter per sender, (senders, …)."""

    @classmethod
    def along(cls, graph: ClientGraph, receivers: np.ndarray, senders: np.ndarray, letters: Tensor) -> Mail:
        """Letters from `senders` to `receivers` (positions in the graph), carried along edges only."""
        links = graph.adjacency[receivers][:, senders]
        names = tuple(graph.names[k] for k in receivers), tuple(graph.names[k] for k in senders)
        return cls(*names, links, letters)._needed()

    def _needed(self) -> Mail:
        """Leave out letters that no receiver may read."""
        read = np.unique(self.links.indices)
        if len(read) == len(self.senders):
            return self
        senders = tuple(self.senders[j] for j in read)
        return Mail(self.receivers, senders, self.links[:, read], self.letters[torch.as_tensor(read.astype(np.int64))])

    def __len__(self) -> int:
        return len(self.receivers)

    def to(self, receiver: int) -> Mail:
        """The mail of one receiver alone (a position among `receivers`)."""
        return Mail(
            self.receivers[receiver : receiver + 1], self.senders, self.links[receiver : receiver + 1], self.letters
        )._needed()

    def letter(self, receiver: int, sender: str) -> Tensor:
        """What `sender` wrote to a receiver; refused where the two are not neighbours."""
        own = self.to(receiver)
        if sender not in own.senders:
            raise FedkinError(f"client {self.receivers[receiver]!r} has no letter from {sender!r}: no edge joins them")
        return own.letters[own.senders.index(sender)]

    @cached_property
    def weight(self) -> Tensor:
        """Σ_l a_kl over the letters of each receiver, (receivers,), float64."""
        return torch.as_tensor(np.asarray(self.links.sum(axis=1), dtype=np.float64).ravel())

    def weighted_sum(self) -> Tensor:
        """Σ_l a_kl m_l over the letters of each receiver, (receivers, B): one sparse product for all of them."""
        if not self.senders:
            return self.letters.new_zeros((len(self), *self.letters.shape[1:]))
        return ClientMatrix(self.links).times(self.letters)
