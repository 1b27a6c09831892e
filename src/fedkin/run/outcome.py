"""What a run leaves behind: the result, gathered once its last round and evaluation are over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedkin.clients import Replies
from fedkin.models import rows_of
from fedkin.result import Models, Result
from fedkin.run.deployed import choose_trained, on_global_test, picked, whole_models
from fedkin.run.falling import still_falling
from fedkin.run.judging import judged
from fedkin.run.notices import at_lower_rates, notices, single_class
from fedkin.run.private import SHOWN
from fedkin.task.curves import no_curves

if TYPE_CHECKING:
    from fedkin.run.loop import Run


def outcome_of(run: Run) -> Result:
    """The result of a run that has ended: models, metrics, history and what is worth knowing."""
    spec = run.setting.model
    found = {when: whole_models(replies, run.state, run.setting) for when, replies in run.final.items()}
    metrics = dict(run.told)
    facts = _facts(run)
    if run.options.global_test:
        facts["global"] = {when: on_global_test(run.clients, rows) for when, (rows, _) in found.items()}
    judge, judged_by = run, metrics
    if run.judging is not None and run.finished:
        judge = judged(run)
        judged_by = judge.told
        facts |= {"finished": judge.finished, "judging_seconds": judge.seconds + judge.evaluation_seconds}
        run.finished = judge.finished
    trained = choose_trained(run.algorithm.deploys, judged_by, judge.roster.validation)
    metrics["deployed"] = {
        key: [after if t else before for t, after, before in zip(trained, metrics["post"][key], metrics["pre"][key])]
        for key in metrics["pre"]
    }
    received, _ = found["pre"]
    models: Mapping[str, Any] = Models(run.setting.names, *picked(trained, found["post"], found["pre"]), spec)
    if not spec.layout.width:
        models = run.clients.estimators()
    facts |= {"single_class": single_class(run.roster, run.final, trained)}
    result = Result(
        names=run.setting.names,
        task=run.setting.task,
        sizes=run.setting.sizes,
        server_rows=received if spec.layout.width else rows_of(models, received),
        models=models,
        choice=tuple("trained" if t else "received" for t in trained),
        metrics=metrics,
        history=run.history,
        config=run.config(),
        graph=run.setting.graph,
        raw_influence=run.state.arrays.get("influence"),
        extras=_deployed_curves(run.final, trained)
        | {name: run.state.arrays[name] for name in _kept_arrays(run) if name in run.state.arrays},
        label_counts=run.roster.label_counts,
        notes=(
            *run.roster.notes,
            *run.begun,
            *run.notes,
            *notices(run.roster, run.history, run.callbacks, facts["single_class"]),
            *at_lower_rates(run.final, run.setting.names),
            *still_falling(run.history),
        ),
        facts=facts,
    )
    if result.graph is None and result.learned_rounds:
        return replace(result, graph=result.learned_graph())
    return result


def curves_of(replies: Replies, clients: int, prefix: str = "") -> dict[str, Tensor]:
    """The arrays "roc" and "calibration" of all clients, (K, …), under a prefix; empty where they were not asked."""
    if not no_curves(0).keys() <= replies.arrays.keys():
        return {}
    known = no_curves(clients)
    for name, told in known.items():
        told[torch.from_numpy(replies.ids)] = replies[name].double()
    return {f"{prefix}{name}": told for name, told in known.items()}


def _deployed_curves(final: Mapping[str, Replies], trained: np.ndarray) -> dict[str, Tensor]:
    """Those of the models that clients deploy."""
    before, after = (curves_of(final[when], len(trained)) for when in ("pre", "post"))
    if not (before and after):  # one of the two is deployed by nobody, and was not asked
        return before or after
    later = torch.from_numpy(trained)
    return {name: torch.where(later.view(-1, *[1] * (v.ndim - 1)), after[name], v) for name, v in before.items()}


def _kept_arrays(run: Run) -> tuple[str, ...]:
    return run.algorithm.keeps if run.allowance is None else (*run.algorithm.keeps, *SHOWN)


def _facts(run: Run) -> dict[str, Any]:
    memory = {} if run.algorithm.remembers is None else {"memory": list(run.algorithm.remembers)}
    return memory | {
        **({} if run.allowance is None else {"privacy": run.allowance.told()}),
        "algorithm": run.algorithm.name,
        "title": run.algorithm.title,
        "rounds": run.state.round,
        "finished": run.finished,
        "seconds": run.seconds,
        "evaluation_seconds": run.evaluation_seconds,
        "bytes": run.clients.traffic.total(),
        "messages": run.clients.traffic.messages,
        "test_sizes": run.roster.test,
        "truth": {k: v for k, v in run.roster.truth.items() if len(v) == len(run.roster) and v.ndim == 1},
        "inputs": run.roster.inputs,
    }
