"""Algorithm: what every method is, in three moves — local training, coupling, distribution.

A method is a frozen set of hyper-parameters with two functions, `start` and `round`, on an explicit `State`. Most methods
only say how rows are coupled (`couple`) and, if need be, what local training adds to the loss (`local`). One file per
method lives in `fedkin/algorithms/`, named as on the command line; no other file needs editing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import ConfigDict, Field, ValidationError, field_validator
from torch import Tensor

from fedkin.clients import Clients, Replies
from fedkin.couplings import Coupling
from fedkin.couplings.reach import passed_on
from fedkin.defence import Defence, Noising, parsed
from fedkin.errors import FedkinError, first_fault, refuse_truth_values, unknown
from fedkin.local.sgd import Sgd, by_field
from fedkin.models import ModelLike, ModelSpec
from fedkin.privacy.settings import Level, Privacy
from fedkin.setting import Setting as Setting
from fedkin.state import State as State
from fedkin.task import Task

Deploys = Literal["received", "trained", "validated"]
"""What a client would put to use: the model it received, the model after local training, or whichever has the smaller
loss on validation samples, its own and, with the weight of ten, those of all clients (after local training where there are
none; `validation="fold"` holds some out of a further run). Never chosen on test samples."""


@dataclass(frozen=True)
class LocalWork:
    """One question of local training: the task, and what it takes besides rows and the settings of `Sgd`.

    `per_client` may replace the "rows", where training does not start from what `received` says.
    """

    task: str = "train"
    per_client: Mapping[str, Tensor] = field(default_factory=dict)
    shared: Mapping[str, Any] = field(default_factory=dict)


class Algorithm(Sgd):
    """A method: validated hyper-parameters (those of local SGD and its own), and what a round does.

    Subclasses set `name` and define `couple`; the rest has defaults that fit methods which exchange rows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)

    name: ClassVar[str] = ""
    """As on the command line; also the name of the file."""
    title: ClassVar[str] = ""
    deploys: ClassVar[Deploys] = "received"
    graph_spec: ClassVar[str | None] = None
    """The graph built when the user gives none (see fedkin.graphs.build); None: the method uses no graph."""

    in_place: ClassVar[bool] = False
    """Whether a round writes over the server's rows where it may (`State.with_rows`), instead of making new ones."""

    keeps: ClassVar[tuple[str, ...]] = ()
    """Arrays of the state that belong in the result, where they exist (see `Result.extras`)."""

    defence: ClassVar[str] = "clip"
    """The value of `robust` that is recommended for the method (docs/robustness.md)."""

    couples: ClassVar[bool] = True
    """Whether rows of several clients are coupled on the server or along edges, where `robust` can guard them."""

    augments: ClassVar[bool] = True
    """Whether clients train by batches, which `augment` can change."""

    protects: ClassVar[tuple[Level, ...]] = ()
    """The levels of privacy under which all that it tells of a client's samples is counted (docs/private-training.md)."""

    along_edges: ClassVar[bool] = False
    """Whether a client receives nothing of rows that the coupling gives no weight for it, neither through a choice of clusters
    or neighbours that all rows decide, nor through a common model."""

    registry: ClassVar[dict[str, type[Algorithm]]] = {}

    robust: str | None = Field(
        None,
        description="guard the coupling against hostile clients: clip, trimmed, median, norm, winsor, evidence, "
        "direction, krum, bulyan, geometric-median; NAME:NUMBER sets its strength",
    )

    @field_validator("robust")
    @classmethod
    def _known_defence(cls, robust: str | None) -> str | None:
        if robust is None:
            return None
        parsed(robust)
        if not cls.couples:
            raise ValueError(f"{cls.name} has no coupling of rows to guard; leave robust out")
        return robust

    @field_validator("privacy")
    @classmethod
    def _covered(cls, privacy: Privacy | None) -> Privacy | None:
        if privacy is not None and privacy.level not in cls.protects:
            raise ValueError(
                f"{cls.name} is not among the methods whose clients privacy of level {privacy.level!r} covers "
                "(docs/private-training.md)"
            )
        return privacy

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        if cls.__dict__.get("name"):  # a subclass without a name of its own does not take its parent's place
            Algorithm.registry[cls.name] = cls

    def __init__(self, *unnamed: Any, **parameters: Any) -> None:
        name, fields = self.name or type(self).__name__, type(self).model_fields
        if unnamed:
            raise FedkinError(f"{name} takes its parameters by name, such as {type(self).__name__}(lr=0.1)")
        if "schedule" not in fields:
            parameters = by_field(parameters)
        for key in parameters:
            if key not in fields:
                raise unknown(f"parameter of {name}", key, list(fields))
        refuse_truth_values(name, type(self), parameters)
        try:
            super().__init__(**parameters)
        except ValidationError as problem:
            raise FedkinError(first_fault(name, problem)) from problem

    # --- the three moves --------------------------------------------------------------------------------------------

    def model_spec(self, model: ModelLike, names: tuple[str, ...], task: Task, dtype: torch.dtype) -> ModelSpec:
        """What the user gave as a model, for all clients: here one architecture, because rows are exchanged."""
        return ModelSpec.of(model, task, dtype)

    @property
    def remembers(self) -> tuple[str, int, int, float] | None:
        """The memory that the method adds to the network, as `models.memory.with_memory` takes it; None: none."""
        return None

    def default_graph(self) -> str | None:
        """The graph built when neither the user nor the data has one, under these parameters; None: none is needed."""
        return self.graph_spec

    def check(self, setting: Setting) -> None:
        """Refuse a setting the method cannot work in, before any training."""

    def start(self, setting: Setting) -> State:
        """The state before the first round: every client has the common initial weights."""
        row = setting.spec.initial_row(setting.streams)
        return State(0, {"rows": row.expand(len(setting), -1)})

    def cohort(self, round: int, size: int, setting: Setting) -> np.ndarray:
        """Who takes part in round t = 1, 2, …: `size` clients, uniformly (each client draws a number, the lowest go)."""
        if size >= len(setting):
            return setting.everyone
        draws = setting.streams.words("cohort", round, setting.keys)
        return np.sort(np.argsort(draws, kind="stable")[:size])

    def private(self, setting: Setting) -> tuple[str, ...]:
        """The names of the model's tensors that never leave a client; they live with it, not on the server."""
        return ()

    def received(self, state: State, setting: Setting) -> Tensor:
        """Distribution: the row each client starts the next round from, (K, B)."""
        return state.rows

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        """Local training: the task and what it adds to plain SGD."""
        return LocalWork()

    def for_post(self, state: State) -> Mapping[str, Any]:
        """What local training is told besides when it is for *post* alone, as a client would do it before using the model."""
        return {}

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        """Coupling: the new state from the trained rows of those who answered (`replies.ids`)."""
        raise NotImplementedError(f"{type(self).__name__} must define couple()")

    def follow_up(self, state: State, replies: Replies, clients: Clients, setting: Setting) -> State:
        """What is left to do with the clients once their rows are coupled: split learning, letters to neighbours."""
        return state

    def round(self, state: State, clients: Clients, cohort: np.ndarray, setting: Setting) -> State:
        """One round: the cohort trains (`local`), the server couples (`couple`), and what follows (`follow_up`)."""
        replies = self.train(state, clients, cohort, setting)
        state = self.logged(state, replies)
        if len(replies):
            if self.robust is not None or setting.privacy is not None:
                state = self.defended(state, clients, setting, replies.ids)
            state = self.couple(state, replies, setting)
            state = self.follow_up(state, replies, clients, setting)
            if "heard" in state.arrays:
                state = self.exposed(state, replies.ids)
        return replace(state, round=state.round + 1, defence=None, coupling=None)

    def exposed(self, state: State, ids: np.ndarray) -> State:
        """Follow, in private runs, how many trainings of client j can have reached client i: "heard" (K, K)."""
        heard = state.arrays["heard"].clone()
        heard[ids, ids] += 1
        return state.with_arrays(heard=passed_on(heard, state.coupling if self.along_edges else None))

    def defended(self, state: State, clients: Clients, setting: Setting, ids: np.ndarray | None = None) -> State:
        """The state of a round whose couplings are guarded as `robust` says, or hide clients `ids` as `privacy` does."""
        if setting.privacy is not None and setting.privacy.level == "client" and ids is not None:
            return replace(state, defence=Noising(setting.privacy, ids, state.round + 1))
        if self.robust is None:
            return state
        kept = self.private(setting), setting.spec.layout, setting.at_home
        return replace(state, defence=Defence(self.robust, clients, *kept))

    def logged(self, state: State, replies: Replies) -> State:
        """The state with a new log of the round: the mean training loss, and who failed."""
        private = "epsilon" in replies.arrays  # then the loss is not told
        loss = float(replies["loss"].double().mean()) if len(replies) and not private else None
        state = replace(state, log={"train_loss": loss}, changed=None)
        state = state.with_account(replies) if private else state
        return state.with_log(failed=dict(replies.failed)) if replies.failed else state

    def finished(self, state: State) -> bool:
        """Whether the method has reached its end before the last round (by a criterion of its own)."""
        return False

    # --- shared by all methods that exchange rows ---------------------------------------------------------------------

    def train(
        self,
        state: State,
        clients: Clients,
        ids: np.ndarray,
        setting: Setting,
        bill: bool = True,
        **options: Any,
    ) -> Replies:
        """Have clients train from the rows they receive. `options`: commit, evaluate, disclose (see local/tasks.py)."""
        work = self.local(state, ids, setting)
        private = self.private(setting)
        rows = self.received(state, setting)
        rows = rows if np.array_equal(ids, setting.everyone) else rows[torch.as_tensor(ids)]
        per_client = {"rows": rows[:, setting.shared_columns(private)] if private else rows, **work.per_client}
        shared = {
            "sgd": self.told(state.round + 1),
            "round": state.round + 1,
            "private": private,
            **setting.at_home,
            **work.shared,
            **options,
        }
        if setting.privacy is not None:
            shared["sgd"] = {**shared["sgd"], "privacy": setting.privacy.model_dump()}
        return clients.ask(work.task, ids, per_client, shared, bill=bill)

    def evaluate(
        self, state: State, clients: Clients, setting: Setting, post: bool, parts: list[str], disclose: bool = False
    ) -> Replies:
        """Evaluate every client: *pre*, the model just received, or *post*, after local training from it."""
        return self.evaluate_some(setting.everyone, state, clients, setting, post, parts, disclose)

    def evaluate_some(
        self,
        ids: np.ndarray,
        state: State,
        clients: Clients,
        setting: Setting,
        post: bool,
        parts: list[str],
        disclose: bool = False,
    ) -> Replies:
        """Evaluate the clients `ids` alone."""
        if post:
            options = {**self.for_post(state), "commit": False, "evaluate": parts, "disclose": disclose}
            return self.train(state, clients, ids, setting, bill=False, **options)
        private = self.private(setting)
        rows = self.received(state, setting)
        rows = rows if len(ids) == len(rows) else rows[torch.as_tensor(ids)]
        per_client = {"rows": rows[:, setting.shared_columns(private)] if private else rows}
        shared = {"parts": parts, "private": private, "disclose": disclose, **setting.at_home}
        return clients.ask("evaluate", ids, per_client, shared, bill=False)


def mix(
    state: State, replies: Replies, coupling: Coupling, columns: Tensor | None = None, trained: Tensor | None = None
) -> State:
    """Put the trained rows in place, couple them, and let the influence matrix follow.

    `columns`, a boolean (B,) mask, says which columns are coupled (default: all); the others keep their trained values.
    `trained` (K, B) replaces the placed rows where a method prepares them itself.
    The influence matrix obeys I ← M (I + diag(‖Δ_j‖)): what clients did this round joins what came before, and both are
    mixed by the coupling, so that entry (i, j) sums how far client j's updates moved client i's row.
    """
    trained = place(state.rows, replies, columns) if trained is None else trained
    coupling = state.guarded(coupling, trained, columns)
    if columns is None:
        rows = coupling.apply(trained)
    else:
        rows = trained.clone()
        rows[:, columns] = coupling.apply(trained[:, columns].contiguous())
    return follow_influence(state.with_arrays(rows=rows), replies, coupling)


def stretched(state: State, replies: Replies, factor: float, setting: Setting) -> Tensor:
    """The trained rows (K, B) with parameters moved `factor` times as far: w + factor·(w_k − w); buffers as trained.

    Averaged, this is w ← (1 − β) w + β·mean(w_k) with β the factor (a server's own step size).
    """
    trained, n = place(state.rows, replies), setting.spec.layout.n_parameters
    if factor == 1:
        return trained
    return torch.cat([torch.lerp(state.rows[:, :n], trained[:, :n], factor), trained[:, n:]], dim=1)


def follow_influence(state: State, replies: Replies, coupling: Coupling) -> State:
    """I ← M (I + diag(‖Δ_j‖)), where influence is tracked; a coupling without a matrix M ends the tracking."""
    state = replace(state, coupling=coupling)
    if "influence" not in state.arrays:
        return state
    if not coupling.linear and coupling.shares is None:
        return replace(state, arrays={name: a for name, a in state.arrays.items() if name != "influence"})
    influence = state.arrays["influence"].clone()
    influence[replies.ids, replies.ids] += replies["moved"].to(influence.dtype)
    mixed = (
        coupling.apply(influence)
        if coupling.shares is None
        else torch.as_tensor(coupling.shares @ influence.cpu().numpy())
    )
    return state.with_arrays(influence=mixed)


def place(rows: Tensor, replies: Replies, columns: Tensor | None = None) -> Tensor:
    """The rows of all clients, (K, B), with those who answered at their trained values.

    `columns` (B,) are the columns that travelled, where some are private.
    """
    answer = replies["rows"].to(rows.dtype)
    if answer.shape == rows.shape:
        return answer
    placed = rows.clone()
    ids = torch.as_tensor(replies.ids)
    if answer.shape[1] == rows.shape[1]:
        placed[ids] = answer
    elif columns is not None and answer.shape[1]:
        placed[ids[:, None], columns.nonzero().T] = answer
    return placed
