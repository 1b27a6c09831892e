"""FedSKA: the server learns the client graph from the clients' features, and its features guide their training."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedkin.algorithm import Deploys, LocalWork, Setting, State, mix
from fedkin.algorithms.fedavg import FedAvg
from fedkin.clients import Clients, Replies
from fedkin.couplings import Identity
from fedkin.errors import FedkinError
from fedkin.graphs.learned import (
    GraphEncoder,
    Similarity,
    StructureLearner,
    keep_snapshot,
    masks,
    normalise,
)
from fedkin.graphs.parameters import GraphOptimiser, Parameters
from fedkin.local.features import Granularity, part_features, split_gradient, taps, train_guided
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, client_task, training_task
from fedkin.local.training import train_rows
from fedkin.models.cut import cut
from fedkin.privacy.settings import Level


class FedSKA(FedAvg):
    """FedAvg, a client graph S learned by self-supervision, and structure-based features h^g that guide local training.

        client k:  w ← w − γ ∇[ℓ(f(x_b), y_b) + c·mean_b(1 − cos(h_i, h_k^g))];   tell w and its mean feature h_k^c
        server:    w ← Σ (n_k/Σn) w_k
                   E_S steps:  S from H^c (see `StructureLearner`);  minimise the error of GNN_D at noised entries
                   E_g steps:  H^g = S (H^c W + b);  client k gets h_k^g and tells ∂l_k/∂h_k^g, l_k the loss of its
                               classifier on h_k^g with its own labels;  the server moves W and b down Σ_k ∂l_k

    This is split learning: the server sees features and gradients with respect to them instead of samples. From these it
    can solve for a client's label shares, or with aligned features for single labels (docs/privacy.md). It keeps the last features of clients that sit out a round; the graph joins those that have sent some. In round 1 there
    is no h^g yet and training is plain. c = 0 is FedAvg whose clients deploy the model after local training (FedAvgFT),
    beside which the graph is learned all the same. `result.learned_graph()` is the graph.

    A model is cut at the layer `features` (our networks name it so); its flattened output is the feature, of length d.

    Shapes: H^c and H^g are (K, m, d), with m = 1, the number of classes, or of samples (see `granularity`); S is (K, K)
    with self-loops. Reference: the FedSKA paper, ECAI 2023. Its released code does something else; see docs/fedska.md.
    """

    name: ClassVar[str] = "fedska"
    title: ClassVar[str] = "FedSKA"
    protects: ClassVar[tuple[Level, ...]] = ()
    deploys: ClassVar[Deploys] = "trained"
    keeps: ClassVar[tuple[str, ...]] = ("learned_graphs", "learned_rounds")

    k: int | None = Field(
        None,
        ge=1,
        description="neighbours each client keeps, less than the clients (default: √K, rounded up)",
    )
    features: str = Field("features", description="the layer whose output is the feature, by its name in the model")
    cosine: float = Field(1.0, ge=0, description="weight c of the cosine term; the released code has 0.01 to 1")
    granularity: Granularity | None = Field(
        None,
        description="one feature per client, per class of a client, or per sample (aligned: same indices match); "
        "default: class where there are classes, else client",
    )
    similarity: Similarity = Field("inner", description="inner product (the paper) or cosine (its code)")
    structure_steps: int = Field(10, ge=0, description="steps E_S of structure learning per round")
    encoder_steps: int = Field(10, ge=0, description="steps E_g of split learning per round")
    noise: Literal["zero", "gaussian"] = Field(
        "zero", description="disturbed entries are set to 0, or get N(0, 1) added"
    )
    mask: float = Field(0.01, gt=0, le=1, description="share r of entries that are disturbed")
    hidden: int = Field(64, ge=1, description="width of the denoiser's layers")
    server_optimiser: GraphOptimiser = Field(
        "adam", description="of the server's parts: sgd (the paper) or adam (its code)"
    )
    server_lr: float = Field(0.01, gt=0, description="learning rate of the server's parts")
    server_momentum: float = Field(0.0, ge=0, le=0, description="must be 0: the server's parts have none")
    prior: float = Field(
        0.0, ge=0, le=1, description="share of the given graph in S (default graph: shared labels); the code has 0.9"
    )
    every: int = Field(
        1, ge=1, description="rounds between two exchanges of features; in between clients keep their guides"
    )
    classifier: Literal["trained", "received"] = Field(
        "trained",
        description="whose classifier judges the guides: each client's own, or that of the averaged model (Algorithm 1: w_k ← w_t first)",
    )
    average: bool = Field(True, description="average the clients' weights; otherwise each goes on from its own")

    @model_validator(mode="before")
    @classmethod
    def _of_this_version(cls, given: Any) -> Any:
        """A run directory holds every parameter; one without server_optimiser has the server's under optimiser."""
        recorded = {"structure_steps", "encoder_steps", "similarity", "noise", "mask", "hidden", "prior", "optimiser"}
        if isinstance(given, dict) and recorded <= given.keys() and "server_optimiser" not in given:
            raise ValueError(
                "an older version wrote the server's rule as optimiser; it is server_optimiser now: give both"
            )
        return given

    @property
    def averages_plainly(self) -> bool:
        """The server's optimiser is that of its own parts; weights are averaged as they are."""
        return True

    # --- before the first round -----------------------------------------------------------------------------------

    def grain(self, setting: Setting) -> Granularity:
        """What has a feature: the classes of a client where there are any, unless told."""
        return self.granularity or ("class" if setting.task.classes else "client")

    def default_graph(self) -> str | None:
        return "shared-labels" if self.prior else None

    def check(self, setting: Setting) -> None:
        clients = len(setting)
        if self.k is not None and self.k >= clients:
            raise FedkinError(
                f"fedska: k = {self.k} is not allowed: a client has at most {clients - 1} neighbours here"
            )
        cut(setting.model, setting.task, self.features)
        if self.classifier == "received" and setting.home:
            raise FedkinError("fedska: classifier = 'received' needs whole models; tensors that stay at home hide some")
        grain = self.grain(setting)
        if grain == "class" and not setting.task.classes:
            raise FedkinError("fedska: granularity = 'class' needs a classification task; use 'client' or 'aligned'")
        if grain == "aligned" and len(set(setting.sizes.tolist())) > 1:
            few, many = int(np.argmin(setting.sizes)), int(np.argmax(setting.sizes))
            raise FedkinError(
                f"fedska: granularity = 'aligned' needs equal sample counts, but client {setting.names[few]!r} has "
                f"{setting.sizes[few]} training samples and {setting.names[many]!r} has {setting.sizes[many]}; use 'client'"
            )

    def learner(self, size: int, setting: Setting) -> StructureLearner:
        """The structure learner for features of this size."""
        return StructureLearner(size, self.k or default_neighbours(len(setting)), self.hidden, self.similarity)

    def start(self, setting: Setting) -> State:
        clients = len(setting)
        learner = self.learner(cut(setting.model, setting.task, self.features).size, setting)
        several = {"client": 1, "class": setting.task.outputs, "aligned": int(setting.sizes[0])}
        parts = torch.zeros((clients, several[self.grain(setting)], learner.size), dtype=torch.float64)
        return (
            super()
            .start(setting)
            .with_arrays(
                features=parts[:, 0].clone(),
                parts=parts,
                held=torch.zeros(parts.shape[:2], dtype=torch.bool),
                guides=torch.zeros_like(parts),
                learned_graphs=torch.zeros((0, clients, clients), dtype=torch.float32),
                learned_rounds=torch.zeros(0, dtype=torch.int64),
                **Parameters.at(learner.initial(setting.streams.generator("structure"))).arrays("structure"),
                **Parameters.at(GraphEncoder(learner.size).initial()).arrays("encoder"),
            )
        )

    # --- one round --------------------------------------------------------------------------------------------------

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        task, shared = f"{__name__}:fedska", self._how_features(setting)
        if not self.cosine or state.round < self.every:  # nothing to be guided by
            return LocalWork(task, shared=shared)
        guides = state.arrays["guides"][torch.as_tensor(ids)].to(setting.spec.dtype)
        return LocalWork(task, {"guides": guides}, shared)

    def _how_features(self, setting: Setting) -> dict[str, Any]:
        return {"layer": self.features, "cosine": self.cosine, "granularity": self.grain(setting)}

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        return super().couple(state, replies, setting) if self.average else mix(state, replies, Identity(len(setting)))

    def follow_up(self, state: State, replies: Replies, clients: Clients, setting: Setting) -> State:
        state = gathered(state, replies)
        return state if (state.round + 1) % self.every else self._learn(state, clients, replies.ids, setting)

    def _learn(self, state: State, clients: Clients, ids: np.ndarray, setting: Setting) -> State:
        """Structure learning, split learning with the clients `ids`, and the features for the next round."""
        held = state.arrays["held"]
        known = held.any(dim=1).nonzero().ravel()
        given = None
        if self.prior and setting.graph is not None:
            whole = torch.as_tensor(setting.graph.adjacency.toarray()) + torch.eye(len(setting), dtype=torch.float64)
            given = normalise(whole)[known][:, known]
        state, graph = self._learn_structure(state, known, given, setting)
        state, guides = self._learn_encoder(state, known, graph, clients, ids, setting)
        whole = torch.zeros((len(setting), len(setting)), dtype=torch.float64)
        whole[known[:, None], known[None, :]] = graph
        kept = keep_snapshot(
            state.arrays["learned_graphs"], state.arrays["learned_rounds"], whole.fill_diagonal_(0), state.round + 1
        )
        state = state.with_arrays(guides=guides, learned_graphs=kept[0], learned_rounds=kept[1])
        return state.with_log(edges=int((whole > 0).sum()) // 2)

    def _learn_structure(
        self, state: State, known: Tensor, given: Tensor | None, setting: Setting
    ) -> tuple[State, Tensor]:
        """E_S steps on (G, GNN_D); returns S among the known clients."""
        features, parameters = state.arrays["features"][known], Parameters.read(state.arrays, "structure")
        learner = self.learner(features.shape[1], setting)
        names = [setting.names[int(j)] for j in known]
        drawn, noise = masks(setting.streams, state.round + 1, names, self.structure_steps, learner.size, self.mask)
        losses = []

        def graph(theta: Tensor) -> Tensor:
            learned = learner.graph(theta, features)
            return learned if given is None else (1 - self.prior) * learned + self.prior * given

        for where, shock in zip(drawn, noise):
            if not bool(where.any()):
                continue
            noisy = torch.where(where, features + shock if self.noise == "gaussian" else 0.0, features)
            theta = parameters.theta.detach().requires_grad_()
            error = (features - learner.denoise(theta, noisy, graph(theta))).square()[where].mean()
            parameters = parameters.moved(torch.autograd.grad(error, theta)[0], self.server_lr, self.server_optimiser)
            losses.append(float(error.detach()))
        state = state.with_arrays(**parameters.arrays("structure"))
        return state.with_log(structure_loss=losses[-1] if losses else None), graph(parameters.theta)

    def _learn_encoder(
        self, state: State, known: Tensor, graph: Tensor, clients: Clients, ids: np.ndarray, setting: Setting
    ) -> tuple[State, Tensor]:
        """E_g steps on GNN_E with the gradients that clients `ids` tell; returns H^g of everyone, (K, m, d)."""
        parts, held = state.arrays["parts"][known], state.arrays["held"][known]
        parameters, encoder = Parameters.read(state.arrays, "encoder"), GraphEncoder(parts.shape[2])
        place = {int(j): position for position, j in enumerate(known)}
        dtype, loss = state.rows.dtype, None
        asked: dict[str, Tensor] = {}
        if self.classifier == "received":
            columns = cut(setting.model, setting.task, self.features).columns
            asked["classifier"] = self.received(state, setting)[torch.as_tensor(ids)][:, columns]
        for _ in range(self.encoder_steps):
            theta = parameters.theta.detach().requires_grad_()
            guides = encoder.encode(theta, graph, parts, held)
            mine = guides[[place[int(j)] for j in ids]]
            question = {"guides": mine.detach().to(dtype), **asked}
            told = clients.ask(f"{__name__}:fedska gradient", ids, question, self._how_features(setting))
            answered = torch.as_tensor(np.flatnonzero(np.isin(ids, told.ids)))
            slope = torch.autograd.grad(mine[answered], theta, told["gradient"].double())[0]
            parameters = parameters.moved(slope, self.server_lr, self.server_optimiser)
            loss = float(told["loss"].double().mean())
        whole = torch.zeros_like(state.arrays["guides"])
        whole[known] = encoder.encode(parameters.theta, graph, parts, held)
        return state.with_arrays(**parameters.arrays("encoder")).with_log(encoder_loss=loss), whole


def default_neighbours(clients: int) -> int:
    """k = ⌈√K⌉, at most all others: grows with the clients and leaves the graph a choice.

    >>> [default_neighbours(clients) for clients in (1, 2, 10, 100)]
    [0, 1, 4, 10]
    """
    return min(int(np.ceil(np.sqrt(clients))), clients - 1)


def gathered(state: State, replies: Replies) -> State:
    """The features of all clients, with what those who answered have just told."""
    features, parts, held = (state.arrays[name].clone() for name in ("features", "parts", "held"))
    features[replies.ids] = replies["features"].double()
    parts[replies.ids] = replies.arrays.get("parts", replies["features"][:, None]).double()
    held[replies.ids] = replies.arrays.get("held", torch.ones((), dtype=torch.bool))
    return state.with_arrays(features=features, parts=parts, held=held)


# --- the clients' side ------------------------------------------------------------------------------------------------


@training_task("fedska")
def guided_training(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """SGD, guided where there are guides; then tell the features, and keep the classifier for split learning."""
    shared, ids = request.shared, request.ids
    settings, t = Sgd(**shared["sgd"]), shared["round"]
    tap = taps(shard, shared["layer"], shared["cosine"])
    granularity: Granularity = shared["granularity"]
    if "guides" in request.per_client:
        guides = request.per_client["guides"]
        trained, loss = train_guided(shard, ids, rows, settings, t, tap, guides, granularity, counters)
    else:
        trained, loss = train_rows(shard, ids, rows, settings, t, counters=counters)
    told: dict[str, Any] = part_features(shard, ids, trained, tap, granularity)
    return Trained(trained, loss, keep={"classifier": trained[:, tap.cut.columns]}, extra=told)


@client_task("fedska gradient")
def gradient_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """The loss l_k of each client's classifier on the guides it got, (k, m, d), and the gradient ∂l_k/∂guides."""
    ids, shared = request.ids, request.shared
    tap = taps(shard, shared["layer"], shared["cosine"])
    guides = request.per_client["guides"].to(shard.spec.dtype)
    head = request.per_client["classifier"] if "classifier" in request.per_client else shard.store["classifier"][ids]
    gradient, loss = split_gradient(shard, ids, tap, head.to(shard.spec.dtype), guides, shared["granularity"])
    return {"gradient": gradient, "loss": loss}
