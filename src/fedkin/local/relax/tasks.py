"""What FedRelax asks of clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.errors import FedkinError, Forgot
from fedkin.local.relax.learners import LearnerNodes
from fedkin.local.relax.linear import LinearNodes, linear_layer
from fedkin.local.relax.public import own_points
from fedkin.local.relax.settings import Relaxation, effort_of
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, client_task
from fedkin.models.estimators import Estimators
from fedkin.task.curves import ASK_CURVES

CHOOSE, PUBLISH, MEET, ANSWER, HEAR, RELAX, EVALUATE = (
    f"{__name__}:fedrelax_{task}" for task in ("choose", "publish", "meet", "answer", "hear", "relax", "evaluate")
)


@client_task("fedrelax_choose")
def choose_points(shard: Shard, request: Request) -> dict[str, Tensor]:
    """How many public points each client has, and whether they are the same for all. Both (k,)."""
    found = [own_points(shard, int(k), **request.shared["source"]) for k in request.ids]
    return {
        "count": torch.tensor([len(points) for points, _ in found]),
        "common": torch.tensor([common for _, common in found]),
    }


@client_task("fedrelax_publish")
def publish(shard: Shard, request: Request) -> dict[str, Tensor]:
    """The clients' public points, (k, size, *input): given back, or (`keep`) kept as private state, padded with NaN."""
    shared = request.shared
    shape = (len(request.ids), shared["size"], *shard.task.input_shape)
    table = torch.full(shape, torch.nan if shared.get("keep") else 0.0, dtype=shard.spec.dtype)
    for position, k in enumerate(request.ids):
        points = shared["points"] if "points" in shared else own_points(shard, int(k), **shared["source"])[0]
        table[position, : len(points)] = torch.as_tensor(points)
    if not shared.get("keep"):
        return {"points": table}
    shard.private("public", lambda: torch.zeros_like(table[0]))[request.ids] = table
    return {}


@client_task("fedrelax_meet")
def meet(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Get to know the neighbours' public points; make the first model, or after a restart the last one again."""
    assert request.mail is not None
    if "relax" not in shard.objects:
        settings, effort = Relaxation(**request.shared["relax"]), effort_of(request.shared)
        layer = linear_layer(shard, effort)
        if layer is not None:
            shard.objects["relax"] = LinearNodes(shard, layer, request.mail)
        else:
            if settings.update == "exact":
                _refuse_networks(shard)
            shard.objects["relax"] = LearnerNodes(shard, request.mail, settings, effort)
        if "predictions" not in shard.store:
            shard.store["predictions"] = shard.objects["relax"].predict(np.arange(len(shard)))
    return {"memory": torch.full((len(request.ids),), shard.objects["relax"].memory_width())}


def _nodes(shard: Shard) -> Any:
    """The models that `meet` made. After a restart there are none: the host says so, and its clients meet again."""
    if "relax" not in shard.objects:
        raise Forgot
    return shard.objects["relax"]


def _refuse_networks(shard: Shard) -> None:
    """Exact updates: a closed form exists for linear models alone; estimators are fitted anew anyway."""
    for name in shard.names:
        spec = shard.spec
        if not isinstance(spec, Estimators) or not spec.learner(name, shard.task, shard.streams).refits:
            raise FedkinError(
                f"client {name!r}: update='exact' needs an estimator with fit, or one linear regression model for all "
                "clients (model='linear') with squared errors; use update='gradient' with more inner_steps"
            )


@client_task("fedrelax_answer")
def answer(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Predictions on the public points of every neighbour, by name: (k, degree, m, C)."""
    nodes, known, k = _nodes(shard), request.shared["relax"], len(request.ids)
    if known["common"]:
        return {"answers": torch.zeros((k, 0))}
    table = torch.zeros((k, known["degree"], known["points"], shard.task.outputs), dtype=torch.float64)
    for position, client in enumerate(request.ids):
        for slot, name in enumerate(nodes.neighbours[int(client)]):
            table[position, slot] = nodes.answer(int(client), name)
    return {"answers": table.to(shard.spec.dtype)}


@client_task("fedrelax_hear")
def hear(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Keep what neighbours say, on average, about the client's own public points: (k, m, C)."""
    answers = request.per_client["answers"]
    shard.private("answers", lambda: torch.zeros_like(answers[0]))[request.ids] = answers
    return {}


@client_task("fedrelax_relax")
def relax(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Improve the models with the letters received, and write the next letters; loss and variation before that."""
    nodes, mail, ids, shared = _nodes(shard), request.mail, request.ids, request.shared
    assert mail is not None
    answers = shard.store["answers"][ids] if "answers" in shard.store else None
    settings, effort = Relaxation(**shared["relax"]), effort_of(shared)
    loss, variation = nodes.step(ids, mail, answers, settings, shared["round"], effort)
    said: Tensor = nodes.predict(ids)
    good = torch.isfinite(said).flatten(1).all(dim=1)
    shard.store["predictions"][ids[good.numpy()]] = said[good]
    loss[~good] = torch.nan
    return {"loss": loss, "variation": variation}


@client_task("fedrelax_evaluate")
def evaluate_learners(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Metrics of every client's own model; its row where it has one and `disclose` is set."""
    nodes, ids = _nodes(shard), request.ids
    parts = request.shared["parts"]
    reply: dict[str, Tensor] = nodes.evaluate(ids, [part for part in parts if part != ASK_CURVES])
    if ASK_CURVES in parts:
        reply |= nodes.curves(ids)
    if request.shared["disclose"]:
        reply |= nodes.disclose(ids)
    return reply
