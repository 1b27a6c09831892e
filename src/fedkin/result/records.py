"""Results as plain values, for `--json` and other programs."""

from __future__ import annotations

from typing import Any

from fedkin.result import Result
from fedkin.result.summary import gains


def summaries(result: Result) -> dict[str, Any]:
    """The summaries over clients: of the deployed models (under the metric's name), *pre* and *post*."""
    facts = result.facts
    return {
        "algorithm": result.algorithm,
        "title": result.title,
        "seed": result.config["run"]["seed"],
        "rounds": facts["rounds"],
        "finished": facts["finished"],
        "metric": result.task.metric,
        "larger_is_better": result.task.larger_is_better,
        "unit": result.task.unit,
        "valued": result.valued,
        result.task.metric: result.summary("deployed"),
        "pre": result.summary("pre"),
        "post": result.summary("post"),
        "bytes": facts["bytes"],
        "messages": facts["messages"],
        "seconds": facts["seconds"],
        "evaluation_seconds": facts["evaluation_seconds"],
    }


def per_client(result: Result, alone: Result | None = None) -> dict[str, dict[str, Any]]:
    """Every client's final numbers by name; with `alone`, also its gain against training alone (positive is better)."""
    values = {when: result.metrics[when][result.metric] for when in ("pre", "post", "deployed")}
    sign = 1 if result.task.larger_is_better else -1
    table: dict[str, dict[str, Any]] = {}
    for k, name in enumerate(result.names):
        table[name] = {"samples": int(result.sizes[k]), "deploys": result.choice[k]}
        table[name] |= {when: values[when][k] for when in values}
        if alone is not None:
            before, now = alone.metrics["deployed"][alone.metric][k], values["deployed"][k]
            table[name]["gain"] = None if before is None or now is None else sign * (now - before)
    return table


def failures(result: Result) -> list[dict[str, Any]]:
    """Clients that failed, timed out or sent NaN: round, client, reason."""
    return [
        {"round": record["round"], "client": client, "reason": reason}
        for record in result.history
        for client, reason in record["log"].get("failed", {}).items()
    ]


def run_record(result: Result) -> dict[str, Any]:
    """Everything a program needs to know about one run.

    `history` holds a record per round; the lists in its `pre` and `post`, as those in `metrics`, are in the order of
    `names`. NaN (a client without test samples) becomes null.
    """
    config = {key: value for key, value in result.config.items() if key != "versions"}
    return {
        **summaries(result),
        "names": result.names,
        "clients": per_client(result),
        "metrics": result.metrics,
        "history": result.history.records,
        "failures": failures(result),
        "notes": result.notes,
        "config": config,
        "versions": result.config["versions"],
    }


def against_alone(result: Result, alone: Result) -> dict[str, int]:
    """How many clients gained, lost or stayed the same against training alone."""
    ours, theirs = (r.metrics["deployed"][r.metric] for r in (result, alone))
    return gains(ours, theirs, result.task.larger_is_better)
