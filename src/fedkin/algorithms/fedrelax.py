"""FedRelax: any model on any client; neighbours agree on predictions, not on weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator

from fedkin.algorithm import Algorithm, Setting, State
from fedkin.clients import Clients, Replies
from fedkin.errors import FedkinError
from fedkin.graphs import ClientGraph
from fedkin.local.relax.public import parse_source
from fedkin.local.relax.tasks import ANSWER, CHOOSE, EVALUATE, HEAR, MEET, PUBLISH, RELAX
from fedkin.models import ModelLike, ModelSpec, estimators
from fedkin.task import Task


class FedRelax(Algorithm):
    """Message passing of predictions over a graph: one federation may mix trees, linear models and networks.

        min Σ_i [ L_i(h_i) + α Σ_j A_ij δ_ij ],   δ_ij = (1/m_j) Σ_{x∈P_j} ℓ(h_i(x), h_j(x))

    Every round each client j sends its predictions on its public points P_j to its neighbours (the points themselves
    once); then, all at the same time, each client i improves its model on its own samples and the received ones,

        h_i ← (approx.) argmin_h L_i(h) + α Σ_j A_ij (1/m_j) Σ_{x∈P_j} ℓ(h(x), ŷ_j(x)),

    by `inner_steps` RMSprop steps (networks), in closed form (`update="exact"`, linear models) or by a new fit
    (estimators). ℓ is the squared error, or for classes the Kullback–Leibler divergence of predicted probabilities.
    The log holds the objective and both of its terms, `local_loss` and `variation` (times α), at the exchange, that is
    before the round's update. α = 0: everyone alone. There is no server: models never leave their clients.

    Shapes: a letter is (m, C). Reference: Abdurakhmanova, SarcheshmehPour and Jung, arXiv 2302.04363.
    """

    name: ClassVar[str] = "fedrelax"
    title: ClassVar[str] = "FedRelax"
    keeps: ClassVar[tuple[str, ...]] = ("edge_traffic",)
    deploys: ClassVar[Literal["received", "trained", "validated"]] = "trained"
    graph_spec: ClassVar[str | None] = "statistics"

    lr: float = Field(0.01, gt=0, description="rate γ of RMSprop")
    alpha: float = Field(0.01, ge=0, allow_inf_nan=False, description="strength α of the coupling")
    update: Literal["gradient", "exact"] = Field(
        "gradient", description="RMSprop steps, or linear models in closed form"
    )
    inner_steps: int | None = Field(
        None, ge=1, description="RMSprop steps per exchange (default: steps, else epochs: 1)"
    )
    smoothing: float = Field(0.99, ge=0, lt=1, description="RMSprop's smoothing of squared gradients")
    weight: Literal["scaled", "alpha"] = Field(
        "scaled", description="a received point weighs α·A_ij·m_i/m_pub, or α·A_ij, where a local one weighs 1"
    )
    exact_block: bool = Field(False, description="also count neighbours' predictions on the client's own public points")
    distil: int | None = Field(None, ge=0, description="self-distillation points per refit (default: 100 for trees)")
    distil_weight: float = Field(1.0, gt=0, description="weight of a self-distillation point (a local one: 1)")
    distil_from: Literal["normal", "data"] = Field(
        "normal", description="self-distillation points from N(0, I), or with the mean and spread of a client's inputs"
    )
    public: str = Field(
        "auto",
        description="public points: given, normal[:mean,std], uniform[:low,high], drawn (real inputs: neighbours see them)",
    )
    public_size: int = Field(100, ge=1, description="public points per client, where they are drawn or sampled")
    common: bool = Field(False, description="one set of public points for all clients")
    unweighted: Literal["error", "resample"] = Field(
        "error", description="estimators without sample_weight: refuse, or repeat samples in proportion to their weight"
    )
    tolerance: float | None = Field(
        None,
        ge=0,
        description="stop when a turn of all clients lowers the objective by less than this share (default: never)",
    )

    @field_validator("public")
    @classmethod
    def _known_source(cls, text: str) -> str:
        parse_source(text)
        return text

    # --- before the first round ---------------------------------------------------------------------------------------

    def model_spec(self, model: ModelLike, names: tuple[str, ...], task: Task, dtype: torch.dtype) -> ModelSpec:
        return estimators.of(model, names, task, dtype)

    def check(self, setting: Setting) -> None:
        _graph(setting)

    def start(self, setting: Setting) -> State:
        return State(0, {"edge_traffic": torch.zeros((_graph(setting).adjacency.nnz, 2), dtype=torch.int64)})

    def _meet(self, state: State, clients: Clients, setting: Setting) -> State:
        """Clients choose their public points, show them to their neighbours, and have their first models.

        After a restart this is repeated, with the same outcome and without being billed again.
        """
        ids, first = setting.everyone, "memory" not in state.values
        asked: dict[str, Any] = {
            "source": {"text": self.public, "size": self.public_size, "common": self.common, "clients": len(setting)}
        }
        chosen = clients.ask(CHOOSE, ids, shared=asked, bill=False)
        size, common = int(chosen["count"].max()), bool(chosen["common"].all())
        if self.common and not common:  # drawn: what everyone contributes becomes the set of all
            given = clients.ask(PUBLISH, ids, shared={**asked, "size": size}, bill=first)["points"]
            by_name = np.argsort(np.array(setting.names))
            asked["points"] = torch.cat([given[k, : int(chosen["count"][k])] for k in by_name])
            size, common = len(asked["points"]), True
        clients.ask(PUBLISH, ids, shared={**asked, "size": size, "keep": True}, bill=first and "points" in asked)
        degree = int(np.diff(_graph(setting).adjacency.indptr).max(initial=0))
        state = state.with_values(common=common, points=size, degree=degree)
        replies = clients.exchange("public", MEET, ids, self._message(state), bill=first and not common)
        if replies.failed:
            name, reason = next(iter(replies.failed.items()))
            raise FedkinError(f"client {name!r} could not make its first model: {reason}")
        if first and not common:
            width = int(np.prod(setting.task.input_shape, dtype=int))
            state = _counted(state, replies, size * width * setting.spec.dtype.itemsize)
        return state.with_values(memory=int(replies["memory"].max()))

    def _message(self, state: State) -> dict[str, Any]:
        fields = ("alpha", "update", "exact_block", "weight", "distil", "distil_weight", "distil_from")
        learned = {key: state.values.get(key, 0) for key in ("common", "points", "degree", "memory")}
        effort = {
            "steps": self.inner_steps or self.steps or self.epochs,
            "rate": self.rate(state.round + 1),
            "smoothing": self.smoothing,
            "momentum": self.momentum,
            "weight_decay": self.weight_decay,
            "resample": self.unweighted == "resample",
        }
        relax = {**{field: getattr(self, field) for field in fields}, **learned}
        return {"relax": relax, "effort": effort, "round": state.round + 1}

    def _met(
        self, question: Callable[[State], Replies], state: State, clients: Clients, setting: Setting
    ) -> tuple[State, Replies]:
        """Ask; where clients do not know their neighbours (the start, or a restart), let them meet and ask again."""
        if "memory" not in state.values:
            state = self._meet(state, clients, setting)
        billed = dict(vars(clients.traffic))
        replies = question(state)
        if len(replies) and not bool(replies["ready"].all()):
            vars(clients.traffic).update(billed)  # asked in vain
            state = self._meet(state, clients, setting)
            replies = question(state)
            forgetful = [setting.names[k] for k in replies.ids[~replies["ready"].numpy()]] if len(replies) else []
            if forgetful:
                raise FedkinError(
                    f"client {forgetful[0]!r} does not know its neighbours right after it met them; its host loses what "
                    "it is told: let it run the same fedkin as the others and keep its state folder between messages"
                )
        return state, replies

    # --- a round ------------------------------------------------------------------------------------------------------

    def round(self, state: State, clients: Clients, cohort: np.ndarray, setting: Setting) -> State:
        """Neighbours exchange predictions; then everyone in the cohort improves its model at the same time."""
        if self.exact_block:
            state = self._answers(state, clients, cohort, setting)

        def exchange(now: State) -> Replies:
            return clients.exchange("predictions", RELAX, cohort, self._message(now))

        state, replies = self._met(exchange, state, clients, setting)
        state = replace(state, log={"failed": dict(replies.failed)} if replies.failed else {})
        state = _counted(state, replies, state.values["points"] * setting.task.outputs * setting.spec.dtype.itemsize)
        loss, variation = (float(replies[key].sum()) if len(replies) else 0.0 for key in ("loss", "variation"))
        objective = loss + self.alpha * variation
        state = state.with_log(
            train_loss=loss / max(len(replies), 1), objective=objective, local_loss=loss, variation=variation
        )
        if self.tolerance is not None:
            state = self._watched(state, replies, cohort, setting)
        return replace(state, round=state.round + 1)

    def _watched(self, state: State, replies: Replies, cohort: np.ndarray, setting: Setting) -> State:
        """Note the objective whenever everyone has had a turn: sums over different cohorts do not compare."""
        nothing = torch.zeros(len(setting), dtype=torch.float64)
        terms = state.arrays.get("terms", nothing).clone()
        heard = state.arrays.get("heard", nothing.bool()).clone()
        if len(replies):
            terms[replies.ids] = replies["loss"].double() + self.alpha * replies["variation"].double()
        heard[cohort] = True
        if heard.all():
            before = state.values.get("objectives", [])[-1:]
            state, heard = state.with_values(objectives=[*before, float(terms.sum())]), torch.zeros_like(heard)
            return state.with_arrays(terms=terms, heard=heard)
        return state.with_arrays(terms=terms, heard=heard).with_values(
            objectives=state.values.get("objectives", [])[-1:]
        )

    def _answers(self, state: State, clients: Clients, cohort: np.ndarray, setting: Setting) -> State:
        """For the exact block: every client predicts on its neighbours' public points, and hears the mean on its own.

        (With a common set these are the predictions that are exchanged anyway.)
        """

        def ask(now: State) -> Replies:
            return clients.ask(ANSWER, cohort, shared=self._message(now), bill=not now.values["common"])

        state, replies = self._met(ask, state, clients, setting)
        if state.values["common"] or not len(replies):
            return state
        answers = replies["answers"].double()
        mean = answers.new_zeros((len(setting), *answers.shape[2:]))
        total = answers.new_zeros(len(setting))
        place = np.full(len(setting), -1)
        place[replies.ids] = np.arange(len(replies))
        source, slot, target, weight = _slots(setting)
        there = (place[source] >= 0) & (place[target] >= 0)
        sent = answers[place[source[there]], slot[there]]
        edge = torch.from_numpy(weight[there])
        onto = torch.from_numpy(target[there].astype(np.int64))
        mean.index_add_(0, onto, sent * edge[:, None, None])
        total.index_add_(0, onto, edge)
        mean /= total.clamp(min=1e-300)[:, None, None]
        clients.ask(HEAR, replies.ids, {"answers": mean[replies.ids].to(setting.spec.dtype)})
        return state

    def evaluate(
        self, state: State, clients: Clients, setting: Setting, post: bool, parts: list[str], disclose: bool = False
    ) -> Replies:
        """Every client's own model: nothing is received that local training would change, so *pre* and *post* agree."""

        def ask(now: State) -> Replies:
            shared = {**self._message(now), "parts": parts, "disclose": disclose}
            return clients.ask(EVALUATE, setting.everyone, shared=shared, bill=False)

        return self._met(ask, state, clients, setting)[1]

    def finished(self, state: State) -> bool:
        """Whether the last turn of all clients (a round, if all take part) lowered the objective by too little."""
        objectives = state.values.get("objectives", [])
        if self.tolerance is None or len(objectives) < 2:
            return False
        before, after = objectives
        return before - after < self.tolerance * abs(before)


def _graph(setting: Setting) -> ClientGraph:
    if setting.graph is None:
        raise FedkinError('fedrelax needs a graph: pass graph=ClientGraph(…) or a builder such as "statistics"')
    return setting.graph


def _slots(setting: Setting) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """All edges as (source, place of the target among the source's neighbours by name, target, weight)."""
    edges = _graph(setting).adjacency.tocoo()
    rank = np.argsort(np.argsort(np.array(setting.names)))
    order = np.lexsort((rank[edges.col], edges.row))
    source = edges.row[order]
    first = np.searchsorted(source, source, side="left")
    return source, np.arange(len(source)) - first, edges.col[order], edges.data[order]


def _counted(state: State, replies: Replies, size: int) -> State:
    """Add an exchange to the messages and bytes of every edge, and to the log."""
    letters = torch.from_numpy(replies.letters)
    sent = torch.stack([letters, letters * size], dim=1)
    state = state.with_arrays(edge_traffic=state.arrays["edge_traffic"] + sent)
    return state.with_log(letters=int(letters.sum()), letter_bytes=int(letters.sum()) * size)
