"""Defaults: what every method starts from, chosen on folds inside training. Test samples are never seen.

    python benchmarks/defaults.py                  tries what is missing in defaults.json, and writes docs/defaults.md
    python benchmarks/defaults.py --page-only      writes the page again from the JSON
    python benchmarks/defaults.py --only local fedu     tries some methods only
    python benchmarks/defaults.py --first 2        tries the former and the present default only
    python benchmarks/defaults.py --quick --json FILE --page FILE     a trial of one federation and two rounds

A third of every client's training samples is held out (`fedkin.federation.folds.folded`, first fold of three; its test parts
are empty); a setting is judged by the loss of the deployed models there. Settings are compared by the
geometric mean of losses over the federations.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedkin import algorithms, data, train
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.federation.folds import folded
from fedkin.files import versions, write_json

HERE = Path(__file__).resolve().parent
ROUNDS, MODEL, FOLDS = 20, "feature-mlp:32", 3
DIVERGED = 1000.0

FEDERATIONS: dict[str, dict[str, Any]] = {
    "digits, Dir(0.1)": {"name": "digits", "clients": 15, "partition": "dirichlet:0.1"},
    "digits, Dir(1)": {"name": "digits", "clients": 15, "partition": "dirichlet:1.0"},
    "HAR, people": {"name": "har", "samples": 1500},
    "school": {"name": "school", "clients": 40},
    "heart": {"name": "heart"},
    "WISDM": {"name": "wisdm", "clients": 18},
    "Vehicle": {"name": "vehicle"},
    "made clusters": {"name": "clusters", "clients": 30, "samples": 20},
}

ONCE = {"lr": 0.05, "epochs": 1}
"""How all methods trained before, one pass over the data a round."""
PLAIN = (
    *("fedprox", "scaffold", "perfedavg", "ditto", "apfl", "fedper", "fedamp"),
    *("ifca", "fedsem", "sfl", "fedcedar", "kin"),
)
# Per method: the settings tried, the former default first. {} is what fedkin has now.
CANDIDATES: dict[str, tuple[dict[str, Any], ...]] = {
    "local": (
        ONCE,
        {},
        {"epochs": 10},
        {"lr": 0.1, "clip": 1.0},
        {"lr": 0.3, "epochs": 1},
        {"lr": 0.1},
        {"optimiser": "adam", "lr": 0.003, "epochs": 1},
        {"optimiser": "adam", "lr": 0.003},
        {"optimiser": "adam", "lr": 0.01, "epochs": 1},
    ),
    **{name: (ONCE, {}) for name in PLAIN},
    "fedrep": (ONCE, {}, {"epochs": 5}),
    "afl": ({**ONCE, "average": True}, {}, {"average": True}, {"gamma_lambda": 0.01}),
    "fedu": ({**ONCE, "eta": 0.01}, {}, {"eta": 0.01}, {"eta": 0.3}, {"eta": 1.0}),
    "fedpnp": (
        {**ONCE, "eta": 0.1, "graph": "statistics:published"},
        {},
        {"eta": 0.1},
        {"graph": "statistics:published"},
        {"graph": "statistics:moments=mean+variance"},
        {"beta": 0.005},
        {"beta": 0.05},
    ),
    "fedska": (
        {**ONCE, "granularity": "client", "server_optimiser": "sgd", "k": "K"},
        {},
        {"granularity": "client"},
    ),
    "pfedme": (
        {"lr": 0.005, "lam": 15.0, "personal_lr": 0.1, "epochs": 1},
        {},
        {"lam": 0.5},
        {"personal_lr": 0.03},
        {"personal_lr": 0.1, "epochs": 1},
        {"lam": 5.0},
    ),
    "pfedbayes": ({"lr": 0.001, "zeta": 10.0}, {}, {"zeta": 1.0}, {"lr": 0.003}),
    "fedrelax": ({"inner_steps": 1}, {}, {"lr": 0.003}),
}
NEED_CLASSES = ("sfl",)
"""Their default graph joins clients with common labels: on regression there is no default to judge."""
CANDIDATES["fedavg"] = CANDIDATES["local"]
CANDIDATES["fedavgft"] = (ONCE, {}, {"epochs": 10})
for common in ("local", "fedavg", "fedavgft", "fedu", "fedcedar"):
    CANDIDATES[common] = (*CANDIDATES[common], {"range_test": True})


@cache
def federation(title: str) -> Federation:
    """The training samples of a federation, a third of them held out."""
    return folded(data.load(**{"seed": 0, **FEDERATIONS[title]}), FOLDS, used=1)


def named(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items()) or "defaults"


def tried(method: str, settings: Mapping[str, Any], title: str, rounds: int) -> dict[str, Any]:
    """One run on the folds: the loss held out (a mean over clients), and the accuracy or squared error there."""
    started, own = time.perf_counter(), dict(settings)
    graph, ranging = own.pop("graph", None), own.pop("range_test", False)
    if own.get("k") == "K":  # FedSKA's former default, all others up to 30
        own["k"] = min(30, len(federation(title)) - 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = algorithms.make(method, own)
            how: dict[str, Any] = {"eval_every": rounds, "influence": False, "workers": 1, "range_test": ranging}
            result = train(federation(title), MODEL, made, graph, rounds, **how)
    except FedkinError as problem:
        return {"failed": str(problem)}
    found = result.metrics["deployed"]
    metric = result.metric.removeprefix("test_")
    held = np.array(found["validation_loss"], dtype=float)
    return {
        "loss": float(np.nanmean(held)),
        metric: float(np.nanmean(np.array(found[f"validation_{metric}"], dtype=float))),
        "seconds": round(time.perf_counter() - started, 2),
    }


def sweep(
    path: Path, only: list[str] | None, titles: list[str], rounds: int, first: int | None = None
) -> dict[str, Any]:
    """Every setting (or the `first` so many) of every method on every federation; what the file has is not tried again."""
    facts = json.loads(path.read_text()) if path.exists() else {"records": []}
    records = facts["records"]
    done = {(r["method"], json.dumps(r["settings"]), r["federation"], r["rounds"]) for r in records}
    for title in titles:
        for method, candidates in CANDIDATES.items():
            for settings in candidates[:first] if only is None or method in only else ():
                if (method, json.dumps(settings), title, rounds) in done:
                    continue
                if method in NEED_CLASSES and not federation(title).task.classes:
                    continue
                found = tried(method, settings, title, rounds)
                records.append({"method": method, "settings": settings, "federation": title, "rounds": rounds, **found})
                write_json(path, {"model": MODEL, "versions": versions(), "records": records})
                print(method, named(settings), title, found, flush=True)
    return {**facts, "records": records}


# --- the page ---------------------------------------------------------------------------------------------------------


def page(facts: Mapping[str, Any]) -> str:
    """The Markdown page of a sweep."""
    records = facts["records"]
    titles = [title for title in FEDERATIONS if any(r["federation"] == title for r in records)]
    methods = list(dict.fromkeys(r["method"] for r in records))
    rounds = "/".join(str(n) for n in sorted({r["rounds"] for r in records}))
    return (
        "\n\n".join(
            [
                "# Defaults",
                "Written by `python benchmarks/defaults.py` from [defaults.json](../benchmarks/defaults.json); do not edit. What the "
                "parameters mean: [methods](methods.md) and their pages.",
                f"Every setting was trained for {rounds} rounds (model `{facts['model']}`, seed 0, one run each) on two thirds of every "
                "client's *training* samples and judged on the other third; test samples were not there "
                "(`fedkin.federation.folds.folded`). A number is the loss held out of the models that clients deploy, a mean over "
                "clients; *all* is the geometric mean over federations, *accuracy* the mean over those with classes. The first line "
                "of a table is the former default, **now** the present one. One run each: differences of a few per cent mean "
                "nothing, and a value of the paper's was kept where nothing else was better by more. Ten epochs a round would be better "
                "than five after so few rounds, at twice the work; a run's result says when its training loss was still falling. How near the defaults are to tuned training, "
                "network by network: [networks at their defaults](networks.md).",
                "Diverged means a loss above 1000 or a run that broke off. A dash was not tried (SFL's default graph needs classes): *now against before* counts only "
                "federations on which both were, and the last column says how many these are.",
                "## Now against before",
                verdicts(records, titles, methods),
                "## What was tried",
                *[table(method, records, titles) for method in methods],
            ]
        )
        + "\n"
    )


def lines(method: str, records: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Setting → federation → record, of one method, in the order of CANDIDATES."""
    wanted = [json.dumps(settings) for settings in CANDIDATES[method]]
    found: dict[str, dict[str, dict[str, Any]]] = {text: {} for text in wanted}
    for record in records:
        text = json.dumps(record["settings"])
        if record["method"] == method and text in found:
            found[text][record["federation"]] = record
    return {text: by for text, by in found.items() if by}


def loss(record: Mapping[str, Any] | None) -> float:
    found = float("nan") if record is None else record.get("loss", float("inf"))
    return float("inf") if found > DIVERGED else found


def together(by: Mapping[str, Mapping[str, Any]], titles: list[str]) -> float:
    """The geometric mean of the losses over federations."""
    losses = [loss(by.get(title)) for title in titles]
    return float(np.exp(np.mean(np.log(losses)))) if losses and np.isfinite(losses).all() else float("inf")


def accuracy(by: Mapping[str, Mapping[str, Any]]) -> float:
    return float(np.mean([r["accuracy"] for r in by.values() if "accuracy" in r] or [np.nan]))


def shown(value: float) -> str:
    return "diverged" if np.isinf(value) else "–" if np.isnan(value) else f"{value:.3f}"


def verdicts(records: list[dict[str, Any]], titles: list[str], methods: list[str]) -> str:
    rows, better = [], 0
    for method in methods:
        found = list(lines(method, records).values())
        if len(found) < 2:
            continue
        before, now = found[:2]
        both = [title for title in titles if title in before and title in now]
        places = sum(loss(now[title]) <= loss(before[title]) for title in both)
        losses = [together(by, both) for by in (before, now)]
        hits = [accuracy({title: by[title] for title in both}) for by in (before, now)]
        better += losses[1] <= losses[0] and hits[1] >= hits[0]
        rows.append(
            [
                algorithms.get(method).title,
                *(shown(value) for value in losses),
                *(f"{value:.1%}" for value in hits),
                f"{places} of {len(both)}",
            ]
        )
    head = ["method", "loss before", "now", "accuracy before", "now", "federations where now is no worse"]
    text = f"Over all federations {better} of {len(rows)} methods have no larger loss and no lower accuracy than before; on single ones some do."
    return f"{text}\n\n{markdown(head, rows)}"


def table(method: str, records: list[dict[str, Any]], titles: list[str]) -> str:
    """All settings of a method; *all* and *accuracy* over the federations on which every setting was tried."""
    rows, found = [], lines(method, records)
    common = [title for title in titles if all(title in by for by in found.values())]
    for text, by in found.items():
        settings, everywhere = json.loads(text), {title: by[title] for title in common}
        cells = [shown(loss(by.get(title))) for title in titles]
        name = f"`{named(settings)}`" if settings else "**now**"
        rows.append([name, *cells, shown(together(by, common)), f"{accuracy(everywhere):.1%}"])
    return f"### {algorithms.get(method).title}\n\n" + markdown(["setting", *titles, "all", "accuracy"], rows)


def markdown(head: list[str], rows: list[list[str]]) -> str:
    every = [head, ["---"] + ["--:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in every)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=HERE / "defaults.json")
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs" / "defaults.md")
    parser.add_argument("--only", nargs="*", help="these methods alone")
    parser.add_argument("--first", type=int, help="of every method so many settings only")
    parser.add_argument("--page-only", action="store_true", help="write the page from the JSON, try nothing")
    parser.add_argument("--quick", action="store_true", help="two rounds on one federation")
    options = parser.parse_args()
    titles = list(FEDERATIONS)[: 1 if options.quick else None]
    if options.page_only:
        facts = json.loads(options.json.read_text())
    else:
        facts = sweep(options.json, options.only, titles, 2 if options.quick else ROUNDS, options.first)
    options.page.write_text(page(facts))
    print(f"wrote {options.page}")


if __name__ == "__main__":
    main()
