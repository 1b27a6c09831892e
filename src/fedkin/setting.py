"""Setting: what the server side knows of a run, and which tensors of the model it never sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from fedkin.errors import FedkinError
from fedkin.graphs import ClientGraph
from fedkin.models import ModelSpec
from fedkin.models.frozen import matching
from fedkin.privacy.settings import Privacy
from fedkin.streams import Streams, client_keys
from fedkin.task import Task


@dataclass(frozen=True)
class Setting:
    """What the server side knows of a run: never data."""

    names: tuple[str, ...]
    sizes: np.ndarray
    """Training samples per client, (K,)."""
    task: Task
    spec: ModelSpec
    streams: Streams
    graph: ClientGraph | None = None
    truth: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What the maker of the data knows of its clients (`Federation.truth`): for oracles alone."""
    rounds: int = 0
    """How many rounds the run has, for methods that do something at a share of them."""
    privacy: Privacy | None = None
    """The privacy that is asked for, with what the budget must last for and the place of the ledger."""
    whole: ModelSpec | None = None
    """The model with all its tensors, where `spec` lacks those that the run keeps at home."""
    home: tuple[str, ...] = ()
    """The tensors that never leave a client, whatever the method (`private` of the run): rows here are without them."""

    def keeping(self, private: Sequence[str]) -> Setting:
        """The same, but tensors named by the patterns `private` stay at home, whatever the method."""
        if not private:
            return self
        home = matching(private, [slot.name for slot in self.spec.layout.slots], "private")
        if len(home) == len(self.spec.layout.slots):
            raise FedkinError("private: every tensor of the model would stay at home; use the method local for that")
        return replace(self, spec=replace(self.spec, layout=self.spec.layout.without(home)), whole=self.spec, home=home)

    @property
    def model(self) -> ModelSpec:
        """The model as clients have it, private tensors included."""
        return self.whole or self.spec

    @property
    def at_home(self) -> dict[str, Any]:
        """What a question to clients says of tensors that stay with them whatever the method: `home`, where there are any."""
        return {"home": self.home} if self.home else {}

    def completed(self, rows: Tensor) -> Tensor:
        """Rows of the server, (k, B) without what is at home, as rows of whole models, with initial values there."""
        if not self.home:
            return rows
        full = self.model.initial_row(self.streams).expand(len(rows), -1).clone()
        full[:, ~self.model.layout.mask(self.home)] = rows
        return full

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def everyone(self) -> np.ndarray:
        """The positions of all clients, 0…K−1."""
        return np.arange(len(self.names))

    @cached_property
    def keys(self) -> np.ndarray:
        """One 64-bit word per client, a hash of its name, (K,): what its random streams are drawn from."""
        return client_keys(self.names)

    def needs_graph(self, name: str) -> ClientGraph:
        """The run's graph, which the method `name` cannot do without."""
        if self.graph is None:
            raise FedkinError(f"{name} needs a client graph; give graph='statistics', 'equal', … or one of your own")
        return self.graph

    def shared_columns(self, private: tuple[str, ...]) -> Tensor:
        """The columns that travel when the tensors `private` stay with the client, as a boolean (B,) mask."""
        return ~self.spec.layout.mask(private)
