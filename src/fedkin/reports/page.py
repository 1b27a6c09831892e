"""One self-contained HTML page about one run, or comparing several."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import tomli_w

from fedkin.files import write_atomic
from fedkin.reports.headline import best, collaborations, level_with, verdict_on
from fedkin.reports.payload import page_data
from fedkin.reports.spending import privacy_section
from fedkin.reports.together import section, with_alone
from fedkin.reports.wording import human_bytes
from fedkin.result import Result
from fedkin.result.contenders import Contender, Standing, find_alone, group, line
from fedkin.result.summary import coverage
from fedkin.task.metrics import Metric

SCRIPTS = (
    "core.js",
    "table.js",
    "curves.js",
    "network.js",
    "heatmap.js",
    "clients.js",
    "judged.js",
    "spectrum.js",
    "main.js",
)


def write_report(results: Sequence[Result], path: Path) -> Path:
    """Write the page. Several runs are compared; runs that differ by seed alone are one method, with bands.

    Nothing is fetched from anywhere: style, script and data are inside, and a content security policy allows no other
    script and no request.
    """
    methods = group(with_alone(results))
    write_atomic(Path(path), render(methods).encode())
    return Path(path)


def render(methods: Sequence[Contender]) -> str:
    """The page as text."""
    static = files("fedkin.reports") / "static"
    script = "\n".join((static / name).read_text(encoding="utf-8") for name in SCRIPTS)
    run = methods[0].first
    words = verdict_on(methods)
    return Template((static / "page.html").read_text(encoding="utf-8")).substitute(
        policy=f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'",
        title=escape(words.title),
        style=(static / "page.css").read_text(encoding="utf-8"),
        script=script,
        verdict=words.verdict,
        lead="".join(f"<p>{escape(sentence)}</p>" for sentence in words.sentences),
        context=escape(context(run)),
        tiles=tiles(methods),
        table=contenders_table(methods),
        together=section(methods),
        privacy=privacy_section(methods),
        notes=notes(methods),
        configurations="".join(configuration(method) for method in methods),
        versions=version_line(run),
        data=embedded(page_data(methods)),
    )


def embedded(value: Any) -> str:
    """JSON that cannot end the element it stands in, whatever names it holds."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def context(run: Result) -> str:
    """What was trained on what, in one line."""
    config = run.config
    data = config["data"]
    parts = [Path(data["path"]).name if "path" in data else str(data.get("name", "own data"))]
    parts += [f"target {data['target']}"] if "target" in data else []
    parts += [f"{len(run.names):,} clients"]
    if "partition" in data:
        parts.append(str(data["partition"]))
    parts += [f"{int(np.sum(run.sizes)):,} training samples", f"model {config['model']['name']}"]
    return " · ".join([*parts, f"{run.facts.get('rounds', len(run.history))} rounds"])


def tiles(methods: Sequence[Contender]) -> str:
    """Four figures at a glance."""
    metric, alone = methods[0].first.task.headline_metric, find_alone(methods)
    winner = best(collaborations(methods) or methods)
    entry = line(winner, alone)
    shown = [(f"mean test {metric.label}", metric.amount(entry.deployed["mean"]), winner.label)]
    if entry.gain is not None and not winner.is_alone:
        shown.append(("gain over training alone", metric.difference(entry.gain), "mean over clients"))
        counts = f"{entry.gained} · {entry.lost}", f"{entry.same} unchanged, {entry.counted} in all"
        shown.append(("clients that gain · lose", *counts))
    best5 = f"best 5 %: {metric.amount(entry.deployed['best5'])}"
    shown.append(("worst 5 % of clients", metric.amount(entry.deployed["worst5"]), best5))
    shown.append(("traffic", human_bytes(entry.bytes), f"{entry.seconds:.1f} s of training"))
    return "".join(
        f'<div class="tile"><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(remark)}</small></dd></div>'
        for name, value, remark in shown[:4]
    )


def contenders_table(methods: Sequence[Contender]) -> str:
    """The comparison table, readable without script; its heads are buttons that sort."""
    metric, alone = methods[0].first.task.headline_metric, find_alone(methods)
    lines = [line(method, alone) for method in methods]
    columns: list[tuple[str, str, str]] = [("label", "Contender", "method")]
    columns += [("deployed", "Deployed", f"mean test {metric.label} of the models clients would use; {metric.better}")]
    columns += [("pre", "Before", "as received, before local training"), ("post", "After", "after local training")]
    columns += [
        ("worst5", "Worst 5 %", "mean over the worst clients"),
        ("best5", "Best 5 %", "mean over the best clients"),
    ]
    columns += [("std", "Spread", "standard deviation over clients")]
    if alone is not None and len(methods) > 1:
        columns += [("gain", "Gain", "mean gain over training alone"), ("gained", "Gain / lose", _counting(lines))]
    columns += [
        ("bytes", "Traffic", "both directions, all rounds"),
        ("seconds", "Time", "training, without evaluation"),
    ]
    if any(len(method.runs) > 1 for method in methods):
        columns.insert(2, ("over_seeds", "± seeds", "standard deviation of the mean over seeds"))
    head = "".join(
        f'<th scope="col" data-key="{key}"><button type="button" title="{escape(hint)}">{escape(name)}'
        f'<span class="arrow" aria-hidden="true"></span></button></th>'
        for key, name, hint in columns
    )
    together = collaborations(methods)
    winner = best(together or methods)
    level = {method.label for method in level_with(winner, together)} if len(together) > 1 else set()
    keys = [key for key, _, _ in columns]
    body = "".join(_row(k, entry, keys, metric, entry.label in level) for k, entry in enumerate(lines))
    return f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"


def _counting(lines: Sequence[Standing]) -> str:
    return f"clients whose gain over training alone, averaged over seeds, is above / below zero, of {max(entry.counted for entry in lines)}"


def _values(entry: Standing) -> dict[str, Any]:
    """A line by the columns of the table; Local is not held against itself."""
    values = {**asdict(entry), **entry.deployed, "over_seeds": entry.seed_std}
    values |= {when: getattr(entry, when)["mean"] for when in ("deployed", "pre", "post")}
    return values | ({"gain": None, "gained": None} if entry.is_alone else {})


def _row(k: int, entry: Standing, keys: list[str], metric: Metric, ties: bool) -> str:
    cells, values = [], _values(entry)
    for key in keys:
        value: Any = values[key]
        if key == "label":
            runs = f" <small>{len(entry.seeds)} seeds</small>" if len(entry.seeds) > 1 else ""
            runs += (
                ' <small class="tie" title="cannot be told from the best on these clients">ties</small>' if ties else ""
            )
            cells.append(
                f'<th scope="row" data-value="{escape(value)}"><i class="dot" data-method="{k}"></i>{escape(value)}{runs}</th>'
            )
            continue
        known = isinstance(value, int | float) and np.isfinite(value)
        sort = f'data-value="{value!r}"' if known else 'data-value=""'
        cells.append(f'<td {sort} data-key="{key}">{escape(_cell(key, value, entry, metric)) if known else "–"}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _cell(key: str, value: float, entry: Standing, metric: Metric) -> str:
    if key == "bytes":
        return human_bytes(value)
    if key == "seconds":
        return f"{value:.3g} s"
    if key == "gained":
        return f"{value} / {entry.lost}"
    if key == "gain":
        return metric.difference(value).removesuffix(" points")
    if key in ("std", "over_seeds"):
        return metric.number(value)
    return metric.amount(value)


def notes(methods: Sequence[Contender]) -> str:
    """What a reader must know: about the data, unfinished runs, clients that failed."""
    found = list(dict.fromkeys(note for method in methods for run in method.runs for note in run.notes))
    for method in methods:
        for run in method.runs:
            if not run.facts.get("finished", True):
                found.append(
                    f"{method.label}, seed {run.config['run']['seed']}: stopped after round {run.facts.get('rounds')}."
                )
        entry = line(method, None)
        if missing := coverage(method.first.task.headline_metric.label, entry.valued, entry.clients):
            found.append(f"{method.label}: {missing}.")
    if drawn := [method for method in methods if len(method.same_data) < len(method.runs)]:
        found.append(
            f"{', '.join(method.label for method in drawn)}: the seeds also split the data differently; client by client, "
            "only what is on the data of the first is shown."
        )
    return "".join(f"<li>{escape(note)}</li>" for note in found)


def configuration(method: Contender) -> str:
    """The settings of a method, as config.toml has them."""
    shown = {section: value for section, value in method.first.config.items() if section != "versions"}
    seeds = ", ".join(map(str, method.seeds))
    text = escape(tomli_w.dumps(dict(shown)))
    return f"<details><summary>{escape(method.label)} <small>seed {seeds}</small></summary><pre>{text}</pre></details>"


def version_line(run: Result) -> str:
    found = run.config.get("versions", {})
    return " · ".join(f"{escape(str(name))} {escape(str(number))}" for name, number in found.items())
