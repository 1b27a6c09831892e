"""Under attack: every attack on digits and HAR, 1 and 4 of 20 attackers, with and without the recommended defence.

    python benchmarks/attacks.py choose      tries defences on a fold inside training
    python benchmarks/attacks.py             measures what is recommended on test samples
    python benchmarks/attacks.py page        writes the tables of docs/robustness.md

Numbers go to attacks.json here; what is there already, of the same settings, is not computed again. HAR is taken from
$FEDKIN_DATA, the cache or upstream (see docs/data.md).

What `choose` looks at are the honest clients' losses on a third of their training samples that is held out; which clients
attack, first models and batches are of seed 100 there, of seed 0 where defences are judged. What is recommended
(`Algorithm.defence`) is `chosen` from these losses. HAR tries, in fewer rounds, the two defences that do best on digits.
How clients train on HAR was chosen there, too, by their losses without attack (docs/robustness.md).
"""

from __future__ import annotations

import argparse
import itertools
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedkin import algorithms, data
from fedkin.attacks import ATTACKS, attackers, study
from fedkin.attacks.study import Bench
from fedkin.federation.folds import folded
from fedkin.files import versions, write_json
from fedkin.run import make_options

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "robustness.md"
METHODS = ("fedu", "fedpnp", "fedcedar", "fedavg", "dfedu")


@dataclass(frozen=True)
class Case:
    """A data set, how clients train on it, and for how many rounds where defences are judged and where they are chosen."""

    name: str
    data: dict[str, Any]
    training: dict[str, Any]
    rounds: int
    tried: int

    @property
    def settings(self) -> dict[str, Any]:
        return {"data": self.data, "training": self.training, "rounds": self.rounds, "tried": self.tried}


CASES = {
    case.name: case
    for case in (
        Case(
            "digits",
            {"clients": 20, "partition": "dirichlet:1.0"},
            {"lr": 0.1, "steps": 10, "batch_size": 32},
            rounds=40,
            tried=40,
        ),
        Case(
            "har",
            {"clients": 20},
            {"optimiser": "adam", "lr": 0.001, "steps": 10, "batch_size": 32},
            rounds=100,
            tried=30,
        ),
    )
}
MODEL, COUNTS, SEED, CHOICE = "mlp:32", (1, 4), 0, 100
DEFENCES = ("norm", "clip", "trimmed", "geometric-median", "winsor", "direction", "evidence")
"""What `choose` compares, the cheapest first: `evidence` alone sends clients each other's models to try."""
NONE, CLEAN, FIRST = "none", "no attack", 2
NEAR = 1.02
"""So near to the best a cheaper defence is as good."""
BROKEN = 6.0
"""The loss that counts for a run that broke off."""
WITHIN, BELOW_ALONE = 0.02, 0.01


def cells(case: Case, method: str, count: int) -> list[dict[str, Any]]:
    """One method under all attacks of so many attackers."""
    federation = data.load(case.name, seed=SEED, **case.data)
    options = make_options(rounds=case.rounds, seed=SEED, eval_every=case.rounds)
    made = [algorithms.make(method, case.training)]
    return study(federation, MODEL, made, tuple(ATTACKS), (count,), options).to_dict()["cells"]


def measure(
    facts: dict[str, Any], cases: Sequence[str], methods: Sequence[str], counts: Sequence[int], path: Path
) -> None:
    """Fill in what `facts` lack, a method and a number of attackers at a time."""
    for case, count, method in itertools.product((CASES[name] for name in cases), counts, methods):
        told = _of(facts, "cases", case, cells=[])
        if _cells(told, method, count):
            continue
        told["cells"] += cells(case, method, count)
        write_json(path, facts)
        print(case.name, method, count, flush=True)


def choose(facts: dict[str, Any], cases: Sequence[str], methods: Sequence[str], path: Path) -> None:
    """Fill in the honest clients' losses on the fold: case → method → defence → attack, 4 attackers."""
    for case, method in itertools.product((CASES[name] for name in cases), methods):
        losses = _of(facts, "choice", case, losses={})["losses"].setdefault(method, {})
        cut = folded(data.load(case.name, seed=SEED, **case.data), 3, used=1)
        options = make_options(rounds=case.tried, seed=CHOICE, eval_every=case.tried, validation="given")
        # What is held out decides, so that no method may look at it: it is no validation part to clients.
        bench = Bench(replace(cut, validation=cut.test, test=cut.validation), MODEL, options, None)
        judge = Bench(cut, MODEL, options, None)
        who = attackers(cut.names, COUNTS[-1], CHOICE)
        honest = np.setdiff1d(np.arange(len(cut)), who)
        for robust in (NONE, *_candidates(facts, case, method)):
            if robust in losses:
                continue
            made = algorithms.make(method, case.training | {"robust": None if robust == NONE else robust})
            found = {CLEAN: judge.loss(bench.run(made), honest)}
            for how in () if robust == NONE and case is not _first() else ATTACKS.values():
                result = bench.tried(made, how, who)
                found[how.name] = None if isinstance(result, str) else judge.loss(result, honest)
            losses[robust] = found
            write_json(path, facts)
            print(case.name, method, robust, f"{excess(losses, robust):.4f}", flush=True)


def _first() -> Case:
    return next(iter(CASES.values()))


def _candidates(facts: dict[str, Any], case: Case, method: str) -> Sequence[str]:
    """Of the first case all defences, of the others those that did best there."""
    if case is _first():
        return DEFENCES
    losses = facts["choice"][_first().name]["losses"][method]
    return sorted(DEFENCES, key=lambda robust: excess(losses, robust))[:FIRST]


def excess(losses: dict[str, dict[str, float | None]], robust: str) -> float:
    """How many times as large losses are as without attack and defence: the geometric mean over no attack and all attacks."""
    clean = losses[NONE][CLEAN] or BROKEN
    return float(np.exp(np.mean([np.log((loss or BROKEN) / clean) for loss in losses[robust].values()])))


def chosen(facts: dict[str, Any], method: str) -> str:
    """The defence whose losses are smallest, as a geometric mean over the data sets; a cheaper one within 2 % of it."""
    tried = [told["losses"][method] for told in facts["choice"].values() if method in told["losses"]]
    common = [robust for robust in DEFENCES if all(robust in losses for losses in tried)]
    means = {robust: float(np.exp(np.mean([np.log(excess(one, robust)) for one in tried]))) for robust in common}
    return next(robust for robust in DEFENCES if robust in means and means[robust] <= NEAR * min(means.values()))


def _of(facts: dict[str, Any], what: str, case: Case, **empty: Any) -> dict[str, Any]:
    """What is known of a case, begun anew where it was of other settings."""
    told = facts.setdefault(what, {}).get(case.name, {})
    if told.get("settings") != json.loads(json.dumps(case.settings)):
        told = facts[what][case.name] = {"settings": case.settings, **empty}
    return told


def _cells(told: dict[str, Any], method: str, count: int) -> list[dict[str, Any]]:
    return [cell for cell in told["cells"] if (cell["algorithm"], cell["attackers"]) == (method, count)]


def kept(cell: dict[str, Any]) -> bool:
    """Whether the goal is reached: within two points of the clean run, and not a point below training alone."""
    if cell["guarded"] is None:
        return False
    return cell["guarded"] >= cell["clean"] - WITHIN and cell["guarded"] >= cell["alone"] - BELOW_ALONE


def table(facts: dict[str, Any]) -> str:
    """The table of the page: attacked → guarded for every attack."""
    parts = []
    for name, told in facts["cases"].items():
        case, lines = CASES[name], told["cells"]
        head = ["method", "attackers", "alone", "clean", "guarded", *ATTACKS]
        rows = [head, ["---"] + ["--:"] * (len(head) - 1)]
        for method, count in itertools.product(METHODS, COUNTS):
            own = _cells(told, method, count)
            if not own:
                continue
            title = f"{own[0]['title']}, `{own[0]['robust']}`"
            plain = [_percent(own[0][kind]) for kind in ("alone", "clean", "guarded_clean")]
            shown = [f"{_percent(c['attacked'])} → {_percent(c['guarded'])}{missed(c)}" for c in own]
            rows.append([title, str(count), *plain, *shown])
        how = ", ".join(f"{k} {v}" for k, v in {**case.data, **case.training}.items())
        parts += [
            f"**{name}** ({how}, {case.rounds} rounds): {_reached(lines)}",
            lined(rows),
            "Marked samples of honest clients that are taken for the attackers' class, in per cent:",
            lined(marked(lines)),
        ]
    return "\n\n".join(parts)


def choices(facts: dict[str, Any]) -> str:
    """The table of the page: what the folds say of every defence."""
    rows = [["", NONE, *DEFENCES, "chosen"], ["---"] + ["--:"] * (len(DEFENCES) + 1) + ["---"]]
    for name, method in itertools.product(facts["choice"], METHODS):
        losses = facts["choice"][name]["losses"].get(method, {})
        if losses:
            shown = [f"{excess(losses, robust):.2f}" if robust in losses else "" for robust in (NONE, *DEFENCES)]
            shown[0] = shown[0] if len(losses[NONE]) > 1 else ""
            rows.append([f"{name}, {algorithms.make(method).title}", *shown, f"`{chosen(facts, method)}`"])
    return lined(rows)


def missed(cell: dict[str, Any]) -> str:
    """What of the goal a cell misses: ✗ it is behind the clean run, ▽ behind training alone."""
    behind, below = cell["guarded"] is None or cell["guarded"] < cell["clean"] - WITHIN, under(cell, "guarded")
    return (" ✗" if behind else "") + (" ▽" if below else "")


def under(cell: dict[str, Any], kind: str) -> bool:
    """Whether honest clients had done better by more than a point had they trained alone."""
    return cell[kind] is None or cell[kind] < cell["alone"] - BELOW_ALONE


def _reached(lines: list[dict[str, Any]]) -> str:
    """How many cells reach the goal, its halves, and how many could not: their clean run is behind training alone."""
    near, far = sum("✗" not in missed(c) for c in lines), sum(under(c, "clean") for c in lines)
    return (
        f"{sum(map(kept, lines))} of {len(lines)} cells reach the goal, {near} are within 2 points of the clean run; in {far} the "
        "clean run itself is more than a point below training alone."
    )


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["measure", "choose", "page"], default="measure")
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--attackers", nargs="*", type=int, default=COUNTS, help="of the measurement")
    parser.add_argument("--json", type=Path, default=HERE / "attacks.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    facts: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {}
    if options.what != "page":
        facts |= {"versions": versions()}
        if options.what == "choose":
            return choose(facts, options.cases, options.methods, options.json)
        return measure(facts, options.cases, options.methods, options.attackers, options.json)
    text = PAGE.read_text()
    for mark, made in (("attacks.py", table(facts)), ("attacks.py choose", choices(facts))):
        begin, end = f"<!-- table: python benchmarks/{mark} -->", f"<!-- end of {mark} -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n\n{made}\n\n{end}{rest.split(end)[1]}"
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
