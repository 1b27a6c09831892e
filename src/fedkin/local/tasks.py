"""Tasks: what the server side may ask of clients. Each is a named function on a shard.

`@client_task("name")` registers a function (shard, request) → {"key": stacked tensor, one row per asked client}.
`@training_task("name")` does the same for a function that trains whole rows, and takes care of what all of them share:
private columns, private counters, evaluation after training, and leaving no trace when a run only looks ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.errors import unknown
from fedkin.graphs.statistics import moments, noisy_moments
from fedkin.local import ahead
from fedkin.local.curves import curves_to_tell
from fedkin.local.mail import Mail
from fedkin.local.private import Account
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.steady import halved, steadily
from fedkin.local.terms import Pull, Shift, Term
from fedkin.local.training import Chunk, evaluate_rows, train_chunks
from fedkin.privacy.noise import spend
from fedkin.task.curves import ASK_CURVES


@dataclass(frozen=True)
class Request:
    """One question to the clients `ids` of a shard (positions within the shard)."""

    ids: np.ndarray
    per_client: dict[str, Tensor] = field(default_factory=dict)
    """Stacked arrays, one row per asked client."""
    shared: dict[str, Any] = field(default_factory=dict)
    """What every asked client gets alike: numbers, text, tensors."""
    mail: Mail | None = None
    """What the asked clients' neighbours wrote to them, in an exchange."""

    @cached_property
    def sgd(self) -> Sgd:
        """The settings of local training, for tasks that train."""
        return Sgd(**self.shared["sgd"])

    def only(self, position: int) -> Request:
        """The same question to one of the clients alone."""
        mine = {key: value[position : position + 1] for key, value in self.per_client.items()}
        mail = None if self.mail is None else self.mail.to(position)
        return Request(self.ids[position : position + 1], mine, self.shared, mail)

    def some(self, places: np.ndarray) -> Request:
        """The same question to some of the clients, (m,) places among those asked; there must be no mail."""
        return Request(self.ids[places], {key: value[places] for key, value in self.per_client.items()}, self.shared)


Answering = Callable[[Shard, Request], dict[str, Tensor]]
"""What a client task is: a question answered by a shard."""
TASKS: dict[str, Answering] = {}


def client_task(name: str) -> Callable[[Answering], Answering]:
    """Register a task under a name."""

    def register(function: Answering) -> Answering:
        TASKS[name] = function
        return function

    return register


def find_task(name: str) -> Answering:
    """The task with this name; "package.module:task" imports the module first (a user's own method)."""
    module, _, plain = name.rpartition(":")
    if module:
        import_module(module)
    if plain not in TASKS:
        raise unknown("client task", plain, sorted(TASKS))
    return TASKS[plain]


# --- rows: what travels and what stays --------------------------------------------------------------------------------


def private_columns(shard: Shard, request: Request) -> Tensor | None:
    """The columns of the tensors that never leave the client, as a boolean (B,) mask; None if all travel."""
    names = request.shared.get("private")
    return shard.spec.layout.mask(tuple(names)) if names else None


def home_columns(shard: Shard, request: Request) -> Tensor | None:
    """The columns that the run keeps at home whatever the method, less the method's own, as a boolean (B,) mask."""
    names = request.shared.get("home")
    if not names:
        return None
    return shard.spec.layout.mask(tuple(names)) & ~shard.spec.layout.mask(tuple(request.shared.get("private", ())))


def staying(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Private state → its columns, (B,) masks: what the method keeps private, and what the run keeps at home."""
    if not request.shared.get("private") and not request.shared.get("home"):
        return {}
    found = {"private": private_columns(shard, request), "home": home_columns(shard, request)}
    return {name: columns for name, columns in found.items() if columns is not None}


def travelling(shard: Shard, stays: Mapping[str, Tensor]) -> Tensor:
    """The columns that clients and server exchange, as a boolean (B,) mask: those that are not `staying`."""
    travels = torch.ones(shard.spec.layout.width, dtype=torch.bool)
    for columns in stays.values():
        travels &= ~columns
    return travels


def composed(shard: Shard, request: Request, received: Tensor, stays: Mapping[str, Tensor]) -> Tensor:
    """Received columns (k, …) of a request's clients as full rows (k, B), with each client's own columns that are `staying`."""
    received = received.to(shard.spec.dtype)
    if not stays:
        return received
    rows = torch.zeros((len(request.ids), shard.spec.layout.width), dtype=shard.spec.dtype)
    if received.shape[1]:
        rows[:, travelling(shard, stays)] = received
    for name, columns in stays.items():
        initial = partial(_initial, shard, columns)
        rows[:, columns] = shard.private(name, initial)[request.ids]
    return rows


def _initial(shard: Shard, columns: Tensor) -> Tensor:
    return shard.spec.initial_row(shard.streams)[columns]


def widened(shard: Shard, request: Request, received: Tensor, at_home: Tensor) -> Tensor:
    """Columns (…, w) of the server's, which knows nothing of what is at home, as (…, W), with `at_home` (…, W) there."""
    home = home_columns(shard, request)
    if home is None:
        return received
    wide = at_home.expand(*received.shape[:-1], -1).clone()
    wide[..., ~home[: wide.shape[-1]]] = received.to(wide.dtype)
    return wide


def narrowed(shard: Shard, request: Request, values: Tensor) -> Tensor:
    """Columns (…, W) of a client's without those that it keeps at home."""
    home = home_columns(shard, request)
    return values if home is None else values[..., ~home[: values.shape[-1]]]


def _evaluated(shard: Shard, ids: np.ndarray, rows: Tensor, parts: list[str]) -> dict[str, Tensor]:
    curves, look = curves_to_tell(shard.task, len(ids)) if ASK_CURVES in parts else ({}, None)
    found: dict[str, Tensor] = {}
    for part in parts:
        if part != ASK_CURVES:
            told = evaluate_rows(shard, ids, rows, part, look if part == "test" else None)  # type: ignore[arg-type]
            found |= {f"{part}_{name}": values for name, values in told.items()}
    return found | curves


@dataclass(frozen=True)
class Trained:
    """What a training task gives back."""

    rows: Tensor
    """The rows after training, (k, B): what the server sees of their shared columns."""
    loss: Tensor
    """Mean training loss, (k,)."""
    personal: Tensor | None = None
    """The client's own model, (k, B), where it is not the trained row (Ditto, pFedMe)."""
    rebuilt: bool = False
    """Whether that model was put together from the trained row, not trained: then it cannot have gone astray."""
    start: Tensor | None = None
    """Where training began, (k, B), where that is not the received row (IFCA)."""
    keep: dict[str, Tensor] = field(default_factory=dict)
    """Private state to keep: name → (k, …)."""
    extra: dict[str, Tensor] = field(default_factory=dict)
    """More for the server: name → (k, …)."""


TrainingTask = Callable[[Shard, Request, Tensor, Tensor], Trained]


def training_task(name: str) -> Callable[[TrainingTask], TrainingTask]:
    """Register a function (shard, request, rows (k, B), counters (k, C)) → Trained as a task.

    `request.shared` may hold:
      private    names of the tensors that never leave the client by the method;
      home       names of those that never leave it by the run's options;
      commit     False: leave the client's private state as it was (the run looks ahead to evaluate *post*);
      evaluate   parts ("validation", "test") to evaluate the client's model on after training, and "curves";
      disclose   True: give back the client's whole model as "model" (to save it where it was asked for), its "counters", and
                 how often it halved its rate (see `fedkin.local.steady`).
    What the function trains must not depend on the last three (`ahead.ASIDE`).
    The reply holds "rows" (shared columns), "loss", "moved" = ‖Δ parameters‖ and what `evaluate` and `extra` add.
    """

    def register(function: TrainingTask) -> TrainingTask:
        def task(shard: Shard, request: Request) -> dict[str, Tensor]:
            shared, stays = request.shared, staying(shard, request)
            rows = composed(shard, request, request.per_client["rows"], stays)
            counters = shard.private("counters", shard.spec.initial_counters)[request.ids].clone()
            known = ahead.recall(shard, name, request)
            if known is None:
                trained = steadily(function, shard, request, rows, counters)
            else:
                trained, counters = known
            start, n = rows if trained.start is None else trained.start, shard.spec.layout.n_parameters
            reply = {"loss": trained.loss, "moved": distances(shard, trained.rows, start, n), **trained.extra}
            if shared.get("sgd", {}).get("privacy"):
                reply |= _account(shard, request)
            model = trained.rows if trained.personal is None else trained.personal
            if parts := shared.get("evaluate"):
                reply |= _evaluated(shard, request.ids, model, parts)
            if shared.get("disclose"):
                reply |= {"model": model, "counters": counters, **halved(shard, request.ids, trained.keep)}
            if shared.get("commit", True):
                own = dict(trained.keep)
                if counters.shape[1]:
                    own["counters"] = counters
                for which, columns in stays.items():
                    own[which] = trained.rows[:, columns]
                if own:
                    _commit(shard, request.ids, own, sound=_finite(shard, trained.rows, *own.values()))
            else:
                ahead.remember(shard, name, request, trained, counters)
            reply["rows"] = trained.rows[:, travelling(shard, stays)] if stays else trained.rows
            return reply

        TASKS[name] = task
        return function

    return register


def _account(shard: Shard, request: Request) -> dict[str, Tensor]:
    """After private training of samples: what was spent. The mean loss on samples is nobody's business then."""
    privacy = request.sgd.privacy
    if privacy is None or privacy.level != "sample":
        return {}
    loss = torch.zeros(len(request.ids), dtype=shard.spec.dtype)
    return {"loss": loss, **Account(shard, request.ids, request.sgd, privacy).told()}


def distances(shard: Shard, here: Tensor, there: Tensor, n: int) -> Tensor:
    """How far the first n columns of rows (k, B) lie apart, (k,)."""
    return shard.per_row(lambda a, b: (a[:, :n] - b[:, :n]).norm(dim=1).double(), here, there)


def _finite(shard: Shard, *values: Tensor) -> np.ndarray:
    """Which clients have no NaN and no infinity in any of the (k, …) arrays, (k,) bool."""
    sums = [shard.per_row(lambda some: some.reshape(len(some), -1).sum(dim=1).double(), value) for value in values]
    return torch.isfinite(torch.stack(sums)).all(dim=0).cpu().numpy()


def _commit(shard: Shard, ids: np.ndarray, own: dict[str, Tensor], sound: np.ndarray) -> None:
    """Keep private state; a client whose training diverged goes back to what it had, and can take part again."""
    for key, value in own.items():
        shard.private(key, partial(torch.zeros_like, value[0]))[ids[sound]] = value[sound]


# --- the tasks all methods share --------------------------------------------------------------------------------------


@training_task("train")
def train_task(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """Training from the received row, with an optional pull towards an anchor (default: the received row) and a shift."""
    shared, per_client = request.shared, request.per_client
    terms: list[Term] = []
    if shared.get("mu"):
        here = rows[:, : shard.spec.layout.n_parameters]
        anchor = widened(shard, request, per_client["anchor"], here) if "anchor" in per_client else here
        terms.append(Pull(shared["mu"], anchor))
    if "shift" in per_client:
        nothing = rows.new_zeros((1, shard.spec.layout.n_parameters))
        terms.append(Shift(widened(shard, request, per_client["shift"], nothing)))
    work = partial(Chunk.descend, terms=terms)
    return Trained(*train_chunks(shard, request.ids, rows, request.sgd, shared["round"], work, counters))


@client_task("evaluate")
def evaluate_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Evaluate rows as received; shared: parts, private, disclose."""
    rows = composed(shard, request, request.per_client["rows"], staying(shard, request))
    reply = _evaluated(shard, request.ids, rows, request.shared["parts"])
    if request.shared.get("disclose"):
        reply |= {"model": rows, **halved(shard, request.ids)}
        reply["counters"] = shard.private("counters", shard.spec.initial_counters)[request.ids]
    return reply


@client_task("cross_evaluate")
def cross_evaluate_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Every model on this client's test samples; shared: models (M, B).

    Returns "metric" (k, M), the headline metric of each of M models; "metric_count" (k, M), the number of test samples, or 0
    where the metric has no value; "count" (k,), the number of test samples.
    """
    models: Tensor = request.shared["models"].to(shard.spec.dtype)
    table = torch.zeros((len(request.ids), len(models)), dtype=torch.float64)
    counts = torch.zeros(table.shape, dtype=torch.int64)
    for m, model in enumerate(models):
        rows = model.expand(len(request.ids), -1)
        found = evaluate_rows(shard, request.ids, rows, "test")
        table[:, m] = found[shard.task.metric]
        counts[:, m] = found.get(f"{shard.task.metric}_count", found["count"])
    return {"metric": table, "metric_count": counts, "count": torch.as_tensor(shard.test.sizes[request.ids])}


@client_task("statistics")
def statistics_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Mean, variance, skewness and kurtosis of every input feature of the training samples, (k, 4, M).

    shared: nothing, or epsilon, delta, low and high to have them with noise (see `noisy_moments`). The noise is the
    client's own secret, so two runs differ. The same question gets the same answer as before; any other one spends.
    """
    answers: dict[tuple[Any, ...], np.ndarray] = shard.objects.setdefault("noisy statistics", {})

    def told(k: int) -> np.ndarray:
        x = shard.given.of(k)[0].cpu().numpy()
        if not request.shared:
            return moments(x)
        question = shard.names[k], *sorted(request.shared.items())
        if question not in answers:
            spent = shard.private("privacy_spent", lambda: torch.zeros(2, dtype=torch.float64))[k]
            cost = request.shared["epsilon"], request.shared["delta"]
            spend(spent, *cost, shard.privacy_limit, shard.names[k])
            answers[question] = noisy_moments(x, **request.shared)
        return answers[question]

    found = [told(k) for k in request.ids]
    return {"statistics": torch.as_tensor(np.stack(found))}


@client_task("ledger")
def ledger_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """What clients have spent on private training, as ε (k,), and the rounds that are left (k,); shared: sgd."""
    settings = request.sgd
    assert settings.privacy is not None
    return Account(shard, request.ids, settings, settings.privacy).told()


@client_task("label_counts")
def label_counts_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Training samples per class, (k, C)."""
    return {"label_counts": torch.as_tensor(shard.federation.label_counts("train")[request.ids])}


@client_task("sizes")
def sizes_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Number of training samples, (k,)."""
    return {"sizes": torch.as_tensor(shard.train.sizes[request.ids])}
