"""One self-contained HTML page about one run, or comparing several."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import tomli_w

from fedkin.files import write_atomic
from fedkin.reports.compare import Method, find_alone, group, line
from fedkin.reports.headline import amount, best, collaborations, difference, headline
from fedkin.reports.payload import page_data
from fedkin.result import Result

SCRIPTS = ("core.js", "table.js", "curves.js", "network.js", "heatmap.js", "clients.js", "spectrum.js", "main.js")


def write_report(results: Sequence[Result], path: Path) -> Path:
    """Write the page. Several runs are compared; runs that differ by seed alone are one method, with bands.

    Nothing is fetched from anywhere: style, script and data are inside, and a content security policy allows no other
    script and no request.
    """
    methods = group(results)
    write_atomic(Path(path), render(methods).encode())
    return Path(path)


def render(methods: Sequence[Method]) -> str:
    """The page as text."""
    static = files("fedkin.reports") / "static"
    script = "\n".join((static / name).read_text(encoding="utf-8") for name in SCRIPTS)
    run = methods[0].first
    words = headline(methods)
    return Template((static / "page.html").read_text(encoding="utf-8")).substitute(
        policy=f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'",
        title=escape(words.title),
        style=(static / "page.css").read_text(encoding="utf-8"),
        script=script,
        verdict=words.verdict,
        lead="".join(f"<p>{escape(sentence)}</p>" for sentence in words.sentences),
        context=escape(context(run)),
        tiles=tiles(methods),
        table=table(methods),
        notes=notes(methods),
        configurations="".join(configuration(method) for method in methods),
        versions=versions(run),
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
    parts = [str(data.get("name", "own data")), f"{len(run.names):,} clients"]
    if "partition" in data:
        parts.append(str(data["partition"]))
    parts += [f"{int(np.sum(run.sizes)):,} training samples", f"model {config['model']['name']}"]
    return " · ".join([*parts, f"{run.facts.get('rounds', len(run.history))} rounds"])


def tiles(methods: Sequence[Method]) -> str:
    """Four figures at a glance."""
    task, alone = methods[0].first.task, find_alone(methods)
    winner = best(collaborations(methods) or methods)
    entry = line(winner, alone)
    shown = [(f"mean test {task.metric}", amount(entry["deployed"], task), winner.label)]
    if entry["gain"] is not None:
        shown.append(("gain over training alone", difference(entry["gain"], task), "mean over clients"))
        shown.append(("clients that gain · lose", f"{entry['gained']} · {entry['lost']}", f"{entry['same']} unchanged"))
    shown.append(("worst 5 % of clients", amount(entry["worst5"], task), f"best 5 %: {amount(entry['best5'], task)}"))
    shown.append(("traffic", traffic(entry["bytes"]), f"{entry['seconds']:.1f} s of training"))
    return "".join(
        f'<div class="tile"><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(remark)}</small></dd></div>'
        for name, value, remark in shown[:4]
    )


def traffic(count: float) -> str:
    """Bytes for people."""
    if not np.isfinite(count):
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def table(methods: Sequence[Method]) -> str:
    """The comparison table, readable without script; its heads are buttons that sort."""
    task, alone = methods[0].first.task, find_alone(methods)
    lines = [line(method, alone) for method in methods]
    columns: list[tuple[str, str, str]] = [("label", "Method", "method")]
    columns += [("deployed", "Deployed", f"mean test {task.metric} of the models clients would use")]
    columns += [("pre", "Before", "as received, before local training"), ("post", "After", "after local training")]
    columns += [
        ("worst5", "Worst 5 %", "mean over the worst clients"),
        ("best5", "Best 5 %", "mean over the best clients"),
    ]
    columns += [("std", "Spread", "standard deviation over clients")]
    if alone is not None and len(methods) > 1:
        columns += [("gain", "Gain", "mean gain over training alone"), ("gained", "Gain / lose", "clients that do")]
    columns += [
        ("bytes", "Traffic", "both directions, all rounds"),
        ("seconds", "Time", "training, without evaluation"),
    ]
    if any(len(method.runs) > 1 for method in methods):
        columns.insert(2, ("over_seeds", "± seeds", "standard deviation over seeds"))
    head = "".join(
        f'<th scope="col" data-key="{key}"><button type="button" title="{escape(hint)}">{escape(name)}'
        f'<span class="arrow" aria-hidden="true"></span></button></th>'
        for key, name, hint in columns
    )
    body = "".join(_row(k, entry, [key for key, _, _ in columns], task) for k, entry in enumerate(lines))
    return f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"


def _row(k: int, entry: dict[str, Any], keys: list[str], task: Any) -> str:
    cells = []
    for key in keys:
        value: Any = entry.get(key)
        if key == "label":
            runs = f" <small>{entry['runs']} seeds</small>" if entry["runs"] > 1 else ""
            cells.append(
                f'<th scope="row" data-value="{escape(value)}"><i class="dot" data-method="{k}"></i>{escape(value)}{runs}</th>'
            )
            continue
        known = isinstance(value, int | float) and np.isfinite(value)
        sort = f'data-value="{value!r}"' if known else 'data-value=""'
        cells.append(f'<td {sort} data-key="{key}">{escape(_cell(key, value, entry, task)) if known else "–"}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _cell(key: str, value: float, entry: dict[str, Any], task: Any) -> str:
    if key == "bytes":
        return traffic(value)
    if key == "seconds":
        return f"{value:.3g} s"
    if key == "gained":
        return f"{value} / {entry['lost']}"
    if key == "gain":
        return difference(value, task).removesuffix(" points")
    if key in ("std", "over_seeds"):
        return f"{100 * value:.1f}" if task.metric == "accuracy" else f"{value:.3g}"
    return amount(value, task)


def notes(methods: Sequence[Method]) -> str:
    """What a reader must know: about the data, unfinished runs, clients that failed."""
    found = list(dict.fromkeys(note for method in methods for run in method.runs for note in run.notes))
    for method in methods:
        for run in method.runs:
            if not run.facts.get("finished", True):
                found.append(
                    f"{method.label}, seed {run.config['run']['seed']}: stopped after round {run.facts.get('rounds')}."
                )
        if len(method.same_data) < len(method.runs):
            found.append(
                f"{method.label}: its seeds also split the data differently; client by client, only the "
                f"{len(method.same_data)} on the data of the first are shown."
            )
    return "".join(f"<li>{escape(note)}</li>" for note in found)


def configuration(method: Method) -> str:
    """The settings of a method, as config.toml has them."""
    shown = {section: value for section, value in method.first.config.items() if section != "versions"}
    seeds = ", ".join(map(str, method.seeds))
    text = escape(tomli_w.dumps(dict(shown)))
    return f"<details><summary>{escape(method.label)} <small>seed {seeds}</small></summary><pre>{text}</pre></details>"


def versions(run: Result) -> str:
    found = run.config.get("versions", {})
    return " · ".join(f"{escape(str(name))} {escape(str(number))}" for name, number in found.items())
