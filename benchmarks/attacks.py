"""Under attack: every attack on digits and HAR, 1 and 4 of 20 attackers, with and without the recommended defence.

    python benchmarks/attacks.py choose      tries defences on another partition and prints the honest clients' loss on a fold
    python benchmarks/attacks.py             measures on other partitions, writes attacks.json here and the table of
                                             docs/robustness.md

HAR is taken from $FEDKIN_DATA, the cache or upstream (see docs/data.md). The committed numbers are of `--cases digits --rounds 30`
and `--cases har --rounds 40`, seed 0; docs/robustness.md says which rows are of an older recommendation (`Algorithm.defence`).
`choose` compares defences on seed 100, by the honest clients' loss on a third of their training samples that is held out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedkin import algorithms, data
from fedkin.attacks import ATTACKS, study
from fedkin.federation.folds import folded
from fedkin.files import versions, write_json
from fedkin.run import make_options

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "robustness.md"
BEGIN, END = "<!-- table: python benchmarks/attacks.py -->", "<!-- end of table -->"
METHODS = ("fedu", "fedpnp", "fedcedar", "fedavg", "dfedu")
TRAINING = {"lr": 0.1, "steps": 10, "batch_size": 32}
CASES: dict[str, dict[str, Any]] = {
    "digits": {"clients": 20, "partition": "dirichlet:1.0"},
    "har": {"clients": 20, "partition": "dirichlet:1.0", "samples": 2000},
}
MODEL, ROUNDS, COUNTS, SEED, CHOICE = "mlp:32", 40, (1, 4), 0, 100
DEFENCES = ("clip", "evidence", "evidence:0.3", "direction", "direction:0.5", "norm", "trimmed", "geometric-median")
WITHIN, BELOW_ALONE = 0.02, 0.01


def cells(
    case: str, method: str, robust: str | None, counts: tuple[int, ...], seed: int, rounds: int, fold: bool = False
) -> list[dict[str, Any]]:
    """One method under all attacks on one data set; with `fold`, a third of the training samples is validation."""
    federation = data.load(case, seed=seed, **CASES[case])
    if fold:
        federation = folded(federation, 3, used=1)
    made = [algorithms.make(method, TRAINING)]
    options = make_options(rounds=rounds, seed=seed, eval_every=rounds)
    found = study(federation, MODEL, made, tuple(ATTACKS), counts, options, robust=robust, tell=lambda _: None)
    return found.to_dict()["cells"]


def choose(cases: list[str], rounds: int, methods: Sequence[str], defences: Sequence[str]) -> None:
    """The honest clients' loss on the fold, by case, method and defence: clean, and as a mean over attacks, 4 attackers."""
    for case, method, robust in itertools.product(cases, methods, defences):
        found = cells(case, method, robust, COUNTS[-1:], CHOICE, rounds, fold=True)
        losses = [6.0 if cell["losses"].get("guarded") is None else cell["losses"]["guarded"] for cell in found]
        each = " ".join(f"{cell['attack']} {loss:.3f}" for cell, loss in zip(found, losses))
        taken = next((cell["backdoor"].get("guarded") for cell in found if cell["backdoor"]), None)
        plain = found[0]["losses"]["clean"]
        print(
            f"{case} {method} {robust}: {sum(losses) / len(losses):.4f} (no defence, no attack {plain:.4f}) {each}, "
            f"marked {_percent(taken)} %",
            flush=True,
        )


def kept(cell: dict[str, Any]) -> bool:
    """Whether the goal is reached: within two points of the clean run, and not a point below training alone."""
    if cell["guarded"] is None:
        return False
    return cell["guarded"] >= cell["clean"] - WITHIN and cell["guarded"] >= cell["alone"] - BELOW_ALONE


def table(facts: dict[str, Any]) -> str:
    """The table of the page: attacked → guarded for every attack."""
    parts = []
    for case, told in facts["cases"].items():
        lines = told["cells"]
        head = ["method", "attackers", "alone", "clean", *ATTACKS]
        rows = [head, ["---"] + ["--:"] * (len(head) - 1)]
        for method in METHODS:
            for count in facts["counts"]:
                own: list[dict[str, Any]] = [c for c in lines if c["algorithm"] == method and c["attackers"] == count]
                if not own:
                    continue
                name = f"{own[0]['title']}, `{own[0]['robust']}`"
                shown = [f"{_percent(c['attacked'])} → {_percent(c['guarded'])}{'' if kept(c) else ' ✗'}" for c in own]
                rows.append([name, str(count), _percent(own[0]["alone"]), _percent(own[0]["clean"]), *shown])
        reached = sum(map(kept, lines))
        parts += [
            f"**{case}** ({', '.join(f'{k} {v}' for k, v in CASES[case].items())}, {told['rounds']} rounds): {reached} of {len(lines)} cells reach the goal.",
            lined(rows),
            "Marked samples of honest clients that are taken for the attackers' class, in per cent:",
            lined(marked(lines)),
        ]
    return "\n\n".join(parts)


def marked(lines: list[dict[str, Any]]) -> list[list[str]]:
    """The rows of the table of backdoors."""
    rows = [["method", "attackers", "clean", "attacked", "guarded"], ["---", "--:", "--:", "--:", "--:"]]
    found = {(cell["algorithm"], cell["attackers"]): cell for cell in lines if cell["backdoor"]}
    for key in sorted(found, key=lambda key: (METHODS.index(key[0]), key[1])):
        shares = [_percent(found[key]["backdoor"].get(kind)) for kind in ("clean", "attacked", "guarded")]
        rows.append([f"{found[key]['title']}, `{found[key]['robust']}`", str(key[1]), *shares])
    return rows


def lined(rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _percent(value: float | None) -> str:
    return "broke off" if value is None else f"{100 * value:.1f}"


def measure(cases: list[str], rounds: int, methods: Sequence[str], path: Path) -> None:
    """Measure some methods on some data sets; others that the file holds stay in it, if they had as many rounds."""
    facts = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    facts |= {"seed": SEED, "counts": COUNTS, "training": TRAINING, "versions": versions()}
    for case in cases:
        told = facts["cases"].get(case, {})
        if told.get("rounds") != rounds:
            told = facts["cases"][case] = {"rounds": rounds, "cells": []}
        for method, count in itertools.product(methods, COUNTS):
            others = [c for c in told["cells"] if (c["algorithm"], c["attackers"]) != (method, count)]
            told["cells"] = others + cells(case, method, None, (count,), SEED, rounds)
            write_json(path, facts)
            print(case, method, count, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["measure", "choose", "page"], default="measure")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--cases", default=",".join(CASES), help="data sets, separated by commas")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--defences", nargs="*", default=DEFENCES, help="of choose")
    parser.add_argument("--json", type=Path, default=HERE / "attacks.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.what == "choose":
        return choose(options.cases.split(","), options.rounds, options.methods, options.defences)
    if options.what == "measure":
        measure(options.cases.split(","), options.rounds, options.methods, options.json)
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(json.loads(options.json.read_text()))}\n\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
