"""State: what the server side carries from round to round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.clients import Replies
from fedkin.couplings import Coupling
from fedkin.defence import Defence, Noising


@dataclass(frozen=True)
class State:
    """Everything the server side carries from round to round: named arrays and small JSON values.

    Saving, resuming and moving to another engine are therefore the same operation.
    """

    round: int
    arrays: Mapping[str, Tensor]
    values: Mapping[str, Any] = field(default_factory=dict)
    log: Mapping[str, Any] = field(default_factory=dict)
    """What the last round has to say about itself (goes into the history)."""
    in_place: bool = False
    """Whether a round may write over these rows: a run has no use for the state before the round (`Algorithm.in_place`)."""
    changed: np.ndarray | None = None
    """The rows that the last round changed; None: any of them."""
    watched: bool = True
    """Whether the round to come is evaluated: what costs much to compute for the log is logged by such rounds only."""

    defence: Defence | Noising | None = None
    """What guards the couplings of the round that is going on, where `robust` asks for it."""

    coupling: Coupling | None = None
    """What coupled the rows of the last round, where the method said so (`follow_influence`)."""

    def guarded(self, coupling: Coupling, trained: Tensor, columns: Tensor | None = None) -> Coupling:
        """The coupling of the trained rows (K, B), in its robust form if the round has a defence."""
        return coupling if self.defence is None else self.defence.around(coupling, trained, self.rows, columns)

    @property
    def rows(self) -> Tensor:
        """Each client's row on the server, (K, B)."""
        return self.arrays["rows"]

    def with_arrays(self, **arrays: Tensor) -> State:
        return replace(self, arrays={**self.arrays, **arrays})

    def with_rows(self, ids: np.ndarray, values: Tensor) -> State:
        """The rows of clients `ids` (ascending) at new values (k, B), all others as they were.

        In place where that is allowed, so that a round of few clients touches few rows.
        """
        if len(ids) == len(self.rows):
            return self.with_arrays(rows=values)
        rows = self.rows if self.in_place else self.rows.clone(memory_format=torch.contiguous_format)
        rows[torch.as_tensor(ids)] = values
        return replace(self.with_arrays(rows=rows), changed=ids)

    def with_account(self, replies: Replies) -> State:
        """With what those who answered have spent of their privacy and what is left to them, where they tell."""
        if "epsilon" not in replies.arrays or "epsilon" not in self.arrays:
            return self
        known = {name: self.arrays[name].clone() for name in ("epsilon", "rounds_left")}
        for name, values in known.items():
            values[torch.as_tensor(replies.ids)] = replies[name]
        return self.with_arrays(**known)

    def with_values(self, **values: Any) -> State:
        return replace(self, values={**self.values, **values})

    def with_log(self, **entries: Any) -> State:
        return replace(self, log={**self.log, **entries})
