"""FedRelax: any model on any client; neighbours agree on predictions, not on weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator

from fedkin.algorithm import Algorithm, Deploys, Setting, State
from fedkin.clients import Clients, Replies
from fedkin.compute.steps import Optimiser
from fedkin.errors import EveryoneFailed, FedkinError
from fedkin.local.relax.public import parse_source
from fedkin.local.relax.tasks import ANSWER, CHOOSE, EVALUATE, HEAR, MEET, PUBLISH, RELAX
from fedkin.models import ModelLike, ModelSpec, estimators
from fedkin.task import Task
from fedkin.task.discrepancy import discrepancy_of


class FedRelax(Algorithm):
    """Message passing of predictions over a graph: one federation may mix trees, linear models and networks.

        min Σ_i [ L_i(h_i) + α Σ_j A_ij δ_ij ],   δ_ij = (1/m_j) Σ_{x∈P_j} ℓ(h_i(x), h_j(x))

    Every round each client j sends its predictions on its public points P_j to its neighbours (the points themselves
    once); then, all at the same time, each client i improves its model on its own samples and the received ones,

        h_i ← (approx.) argmin_h L_i(h) + α Σ_j A_ij (1/m_j) Σ_{x∈P_j} ℓ(h(x), ŷ_j(x)),

    by `inner_steps` steps of the optimiser (networks), in closed form (`update="exact"`, linear least squares) or by a new
    fit (estimators). L_i is the task's loss. ℓ is the `discrepancy`: unless told, the same loss with predictions as
    targets (of classes, the Kullback–Leibler divergence), without class weights and smoothing.
    The log holds the objective and both of its terms, `local_loss` and `variation` (times α), at the exchange, that is
    before the round's update. α = 0: everyone alone. There is no server: models never leave their clients.

    Shapes: a letter is (m, C). Reference: Abdurakhmanova, SarcheshmehPour and Jung, arXiv 2302.04363.
    """

    name: ClassVar[str] = "fedrelax"
    title: ClassVar[str] = "FedRelax"
    couples: ClassVar[bool] = False
    augments: ClassVar[bool] = False
    keeps: ClassVar[tuple[str, ...]] = ("edge_traffic",)
    deploys: ClassVar[Deploys] = "trained"
    graph_spec: ClassVar[str | None] = "statistics"

    own_rate: ClassVar[bool] = True

    lr: float = Field(0.01, gt=0, description="rate γ of the optimiser")
    optimiser: Optimiser = Field("rmsprop", description="step rule of networks: sgd, adam, adamw or rmsprop")
    moments: Literal["reset", "keep"] = Field(
        "keep",
        description="what the optimiser remembers: a network goes on where it was, or starts anew at each exchange",
    )
    discrepancy: str | None = Field(
        None,
        description="how predictions are compared: a loss (mse, mae, huber:δ, cross-entropy, …) or package.module:function "
        "(default: the loss of training where it is least at agreement, else the task's usual one)",
    )
    alpha: float = Field(0.01, ge=0, allow_inf_nan=False, description="strength α of the coupling")
    update: Literal["gradient", "exact"] = Field(
        "gradient", description="steps of the optimiser, or linear models in closed form"
    )
    inner_steps: int | None = Field(None, ge=1, description="steps per exchange (default: steps, else epochs)")
    smoothing: float = Field(0.99, ge=0, lt=1, description="RMSprop's smoothing of squared gradients")
    weight: Literal["scaled", "alpha"] = Field(
        "scaled", description="a received point weighs α·A_ij·m_i/m_pub, or α·A_ij, where a local one weighs 1"
    )
    exact_block: bool = Field(False, description="also count neighbours' predictions on the client's own public points")
    trees: Literal["refit", "leaves"] = Field(
        "refit", description="regression trees: fitted anew at each exchange, or with the splits of the first fit kept"
    )
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
    sleepers: Literal["heard", "silent"] = Field(
        "heard", description="neighbours that sit a round out: heard with their last predictions, or not at all"
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
        found = discrepancy_of(setting.task, self.discrepancy)
        if self.exact_block and not found.of_means:
            raise FedkinError(
                f"fedrelax: exact_block = true hears the mean of what neighbours say, which discrepancy {found.name!r} "
                "cannot use; drop it, or take mse, cross-entropy, bce or poisson"
            )
        setting.needs_graph(self.name)

    def start(self, setting: Setting) -> State:
        return State(
            0, {"edge_traffic": torch.zeros((setting.needs_graph(self.name).adjacency.nnz, 2), dtype=torch.int64)}
        )

    def _met(self, state: State, clients: Clients, setting: Setting) -> State:
        """Let the clients meet before the first round; those whose process is a new one meet again in the same way."""
        if "memory" not in state.values:
            state = self._meet(state, clients, setting)
        clients.remember(lambda: self._meet(state, clients, setting))
        return state

    def _meet(self, state: State, clients: Clients, setting: Setting) -> State:
        """Clients choose their public points, show them to their neighbours, and have their first models.

        Who fails here is absent from then on, with the reason: nobody knows its points.
        """
        absent: dict[str, str] = dict(state.values.get("absent", {}))
        ids, width = _present(setting.everyone, absent, setting), int(np.prod(setting.task.input_shape, dtype=int))
        asked: dict[str, Any] = {
            "source": {"text": self.public, "size": self.public_size, "common": self.common, "clients": len(setting)}
        }
        chosen = clients.ask(CHOOSE, ids, shared=asked, bill=False)
        absent, ids = {**absent, **chosen.failed}, chosen.ids
        size, common = int(chosen["count"].max()), bool(chosen["common"].all())
        if self.common and not common:  # drawn: what everyone contributes becomes the set of all
            given = clients.ask(PUBLISH, ids, shared={**asked, "size": size, "numbers": size * width})
            absent, ids = {**absent, **given.failed}, given.ids
            count = dict(zip(chosen.ids.tolist(), chosen["count"].tolist()))
            by_name = np.argsort(np.array(setting.names)[ids])
            asked["points"] = torch.cat([given["points"][place, : count[int(ids[place])]] for place in by_name])
            size, common = len(asked["points"]), True
        size = state.values.get("points", size)  # at a second meeting: as at the first
        kept = clients.ask(PUBLISH, ids, shared={**asked, "size": size, "keep": True}, bill="points" in asked)
        absent, ids = {**absent, **kept.failed}, kept.ids
        degree = int(np.diff(setting.needs_graph(self.name).adjacency.indptr).max(initial=0))
        state = state.with_values(common=common, points=size, degree=degree)
        replies = clients.exchange("public", MEET, ids, self._message(state), bill=not common, padded=True)
        if not common:
            state = _counted(state, replies, size * width * setting.spec.dtype.itemsize)
        return state.with_values(memory=int(replies["memory"].max()), absent={**absent, **replies.failed})

    def _message(self, state: State) -> dict[str, Any]:
        fields = ("alpha", "update", "exact_block", "weight", "distil", "distil_weight", "distil_from")
        learned = {key: state.values.get(key, 0) for key in ("common", "points", "degree", "memory")}
        effort = {
            "steps": self.inner_steps or self.steps or self.epochs,
            "smoothing": self.smoothing,
            "discrepancy": self.discrepancy,
            "resample": self.unweighted == "resample",
            "leaves": self.trees == "leaves",
        }
        relax = {**{field: getattr(self, field) for field in fields}, **learned}
        return {"relax": relax, "effort": effort, "sgd": self.told(state.round + 1), "round": state.round + 1}

    # --- a round ------------------------------------------------------------------------------------------------------

    def round(self, state: State, clients: Clients, cohort: np.ndarray, setting: Setting) -> State:
        """Neighbours exchange predictions; then everyone in the cohort improves its model at the same time."""
        state = self._met(state, clients, setting)
        absent: dict[str, str] = state.values.get("absent", {})
        missing = {name: absent[name] for name in (setting.names[k] for k in cohort) if name in absent}
        there = _present(cohort, absent, setting)
        if not len(there):
            raise EveryoneFailed("every client of the cohort failed in the first meeting", missing)
        if self.exact_block:
            self._answers(state, clients, there, setting)
        heard = (
            _present(setting.everyone, absent, setting) if self.sleepers == "heard" and not self.exact_block else there
        )
        replies = clients.exchange("predictions", RELAX, there, self._message(state), senders=heard)
        failed = {**missing, **replies.failed}
        state = replace(state, log={"failed": failed} if failed else {})
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

    def _answers(self, state: State, clients: Clients, cohort: np.ndarray, setting: Setting) -> None:
        """For the exact block: every client predicts on its neighbours' public points, and hears the mean on its own.

        (With a common set these are the predictions that are exchanged anyway.)
        """
        known = state.values
        numbers = known["degree"] * known["points"] * setting.task.outputs
        asked = {**self._message(state), "numbers": numbers}
        replies = clients.ask(ANSWER, cohort, shared=asked, bill=not known["common"])
        if known["common"] or not len(replies):
            return
        answers = replies["answers"].double()
        mean = answers.new_zeros((len(setting), *answers.shape[2:]))
        total = answers.new_zeros(len(setting))
        place = np.full(len(setting), -1)
        place[replies.ids] = np.arange(len(replies))
        source, slot, target, weight = _slots(setting)
        there = (place[source] >= 0) & (place[target] >= 0)
        sent = answers[place[source[there]], slot[there]]
        edge = torch.as_tensor(weight[there])
        onto = torch.as_tensor(target[there].astype(np.int64))
        mean.index_add_(0, onto, sent * edge[:, None, None])
        total.index_add_(0, onto, edge)
        mean /= total.clamp(min=1e-300)[:, None, None]
        clients.ask(HEAR, replies.ids, {"answers": mean[replies.ids].to(setting.spec.dtype)})

    def evaluate(
        self, state: State, clients: Clients, setting: Setting, post: bool, parts: list[str], disclose: bool = False
    ) -> Replies:
        """Every client's own model: nothing is received that local training would change, so *pre* and *post* agree."""
        state = self._met(state, clients, setting)
        shared = {**self._message(state), "parts": parts, "disclose": disclose}
        there = _present(setting.everyone, state.values.get("absent", {}), setting)
        return clients.ask(EVALUATE, there, shared=shared, bill=False)

    def finished(self, state: State) -> bool:
        """Whether the last turn of all clients (a round, if all take part) lowered the objective by too little."""
        objectives = state.values.get("objectives", [])
        if self.tolerance is None or len(objectives) < 2:
            return False
        before, after = objectives
        return before - after < self.tolerance * abs(before)


def _present(ids: np.ndarray, absent: Mapping[str, str], setting: Setting) -> np.ndarray:
    """Those of the clients that were at the first meeting."""
    return ids[[setting.names[k] not in absent for k in ids]] if absent else ids


def _slots(setting: Setting) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """All edges as (source, place of the target among the source's neighbours by name, target, weight)."""
    edges = setting.needs_graph(FedRelax.name).adjacency.tocoo()
    rank = np.argsort(np.argsort(np.array(setting.names)))
    order = np.lexsort((rank[edges.col], edges.row))
    source = edges.row[order]
    first = np.searchsorted(source, source, side="left")
    return source, np.arange(len(source)) - first, edges.col[order], edges.data[order]


def _counted(state: State, replies: Replies, size: int) -> State:
    """Add an exchange to the messages and bytes of every edge, and to the log."""
    letters = torch.as_tensor(replies.letters)
    sent = torch.stack([letters, letters * size], dim=1)
    state = state.with_arrays(edge_traffic=state.arrays["edge_traffic"] + sent)
    return state.with_log(letters=int(letters.sum()), letter_bytes=int(letters.sum()) * size)
