"""The page "which method when", from the cells of benchmarks/which_method.py. Every method it names is computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin import algorithms

YARDSTICKS = ("global", "oracle")
"""No federated methods: all samples in one place, the truth known."""
FEW, SMALL = 25, 50
"""Fewer clients are few, fewer training samples of the median client small."""
MANY = 0.25
"""With a larger share of its sampled cells different, a federation is named as a whole."""
ON_A_FOLD = ("fedpnp", "fedu", "dfedu", "kin", "networklasso")
"""Methods that once deployed *post* where there were no validation samples, and decide on a fold now."""
OLD = "†"
REDONE = ("parkinsons (patients)", "fedrep", 2)
CHOSEN = "by folds"
"""The method with the smallest held-out loss, for each case and seed."""

Cell = dict[str, Any]
INTRO = """Written by `python benchmarks/which_method.py` from [which_method.jsonl](../benchmarks/which_method.jsonl); do not edit. What the methods
are: [methods](methods.md).

**Seeds computed: {seeds}{auto}.** {cases} federations, each drawn or split anew by every seed; {methods} methods at their own defaults, 25 rounds,
`feature-mlp:32`, all clients in every round. *Chosen* here is always chosen on folds: a quarter of every client's training samples is
held out, a method takes its default rate or a fifth of it by the loss there, then trains on all of them. Test samples judge and choose
nothing. A *gain* is the share of Local's test error (1 − accuracy, 1 − AUROC for heart, or MSE) that goes away, a mean over clients first. *Harmed* are the
clients whose test results are significantly worse than Local's (McNemar mid-p or paired t, one-sided 0.025); training Local again
with another seed harms some too, which is the *floor*; *than both* counts those worse than both Locals, and means something.

{states}"""


@dataclass(frozen=True)
class Study:
    """The cells of the seeds that are complete (but for auto, which may have fewer), by case, seed and method."""

    cells: dict[tuple[str, int, str], Cell]
    cases: tuple[str, ...]
    seeds: tuple[int, ...]
    methods: tuple[str, ...]

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> Study:
        found = {(cell["case"], cell["seed"], cell["method"]): cell for cell in cells}
        cases, methods = (tuple(dict.fromkeys(cell[key] for cell in cells)) for key in ("case", "method"))
        seeds = sorted({cell["seed"] for cell in cells})
        fixed = [name for name in methods if name != "auto"]
        whole = tuple(s for s in seeds if all((case, s, name) in found for case in cases for name in fixed))
        return cls(found, cases, whole, methods)

    def local(self, case: str, seed: int) -> Cell:
        return self.cells[case, seed, "local"]

    def got(self, case: str, name: str) -> list[Cell]:
        """A method's cells with numbers; none where it does not apply or diverged."""
        own = [self.chosen(case, s) if name == CHOSEN else self.cells.get((case, s, name), {}) for s in self.seeds]
        return [cell for cell in own if "mean" in cell]

    def old(self, case: str, name: str) -> bool:
        """Whether a cell behind a number is of older code."""
        return any("commit" not in cell for cell in self.got(case, name))

    def diverged(self, case: str, name: str) -> bool:
        return any("diverged" in self.cells.get((case, s, name), {}).get("failed", "") for s in self.seeds)

    @property
    def auto_seeds(self) -> int:
        """The seeds that auto has in every case."""
        return sum(all((case, s, "auto") in self.cells for case in self.cases) for s in self.seeds)

    def chosen(self, case: str, seed: int) -> Cell:
        """The cell of the method with the smallest held-out loss."""
        told = [self.cells[case, seed, name] for name in self.methods if name not in (*YARDSTICKS, "auto")]
        return min((cell for cell in told if cell.get("held_out") is not None), key=lambda cell: cell["held_out"])

    def gain(self, case: str, name: str) -> float:
        """The share of Local's test error that goes away, a mean over the method's seeds."""
        percent, own = self.percent(case), self.got(case, name)
        locals_ = [self.local(case, cell["seed"]) for cell in own]
        kept, alone = ([1 - cell["mean"] if percent else cell["mean"] for cell in some] for some in (own, locals_))
        return 1 - float(np.mean(kept)) / float(np.mean(alone))

    def percent(self, case: str) -> bool:
        """Whether more is better and 1 the most: accuracy and AUROC, not MSE."""
        return bool(self.local(case, self.seeds[0])["metric"] != "mse")

    def harmed(self, case: str, name: str, key: str) -> float:
        """The share of the clients that are worse (`key` worse, worse_both, floor), a mean over seeds."""
        clients = self.local(case, self.seeds[0])["clients"]
        return float(np.mean([cell[key] for cell in self.got(case, name)])) / clients

    def places(self, case: str) -> dict[str, float]:
        """Methods by their held-out loss on the folds: 0 the best, 1 the worst; those that diverged are last."""
        losses: dict[str, float] = {}
        for name in self.methods:
            cells = self.got(case, name)
            if name in YARDSTICKS or (not self.diverged(case, name) and not cells):
                continue
            told = [cell["held_out"] for cell in cells]
            if not self.diverged(case, name) and None in told:  # auto
                continue
            losses[name] = np.inf if self.diverged(case, name) else float(np.mean(told))
        order = sorted(losses, key=lambda name: losses[name])
        return {name: place / max(1, len(order) - 1) for place, name in enumerate(order)}

    def alike(self, case: str) -> bool:
        """Whether FedAvg's held-out loss is below Local's: something anybody can try on their own folds."""
        fedavg, local = ([cell["held_out"] for cell in self.got(case, name)] for name in ("fedavg", "local"))
        return bool(fedavg) and float(np.mean(fedavg)) < float(np.mean(local))


def page(cells: Sequence[Cell], checked: Sequence[Cell] = ()) -> str:
    """The Markdown page, from the study's cells and from those that were computed twice."""
    study = Study.of(cells)
    if not study.seeds:
        return "# Which method when\n\nNo seed is complete yet.\n"
    facts: dict[str, Any] = {"seeds": len(study.seeds), "cases": len(study.cases), "methods": len(study.methods) - 1}
    facts["auto"] = "" if study.auto_seeds == len(study.seeds) else f" (auto in all cases: {study.auto_seeds})"
    facts["states"] = states(cells, checked)
    parts = [
        "# Which method when",
        advice(study),
        INTRO.format(**facts),
        "## Every method",
        overall(study),
        "## Federation by federation",
        federations(study),
        "## All numbers",
        numbers(study),
        *refused(study),
    ]
    return "\n\n".join(parts) + "\n"


def states(cells: Sequence[Cell], checked: Sequence[Cell]) -> str:
    """Which states of the code made the cells, and how many of the older ones were computed again and agree."""
    made = Counter(cell.get("commit", "") for cell in cells)
    older = made.pop("", 0)
    parts = ["**Cells and the code.**"]
    if made:
        parts.append(f"{sum(made.values())} of {len(cells)} cells tell the commit that made them: {counted(made)}.")
    if not older:
        return " ".join(parts)
    still = {(cell["case"], cell["method"], cell["seed"]) for cell in cells if "commit" not in cell}
    parts.append(f"{older} cells tell no commit: they are of older states, most from before clients could halve a rate that diverges "
                 "([learning](learning.md), `halvings`) and before Per-FedAvg, FedRep and APFL counted clients alike.")  # fmt: skip
    parts.append(
        f"Numbers with such a cell are marked {OLD} in the tables below; places and best methods compare them with newer ones."
    )
    if waiting := [title(name) for name in ON_A_FOLD if any(name == method for _, method, _ in still)]:
        parts.append(
            f'In them {", ".join(waiting)} deploy what local training left (`validation = "given"`); by default a fold decides now.'
        )
    if REDONE in still:
        parts.append("One of them (FedRep on parkinsons, seed 2) was redone after its test error had been seen.")
    if any(name == "auto" for _, name, _ in still):
        parts.append("auto's among them are of earlier designs of auto.")
    if checked:
        own = [told for told in checked if (told["case"], told["method"], told["seed"]) in still]
        agree = sum(told["agrees"] for told in own)
        parts.append(f"A random sample of {len(checked)} of the older ones (auto apart; methods and federations as evenly as they go) was computed again at "
                     f"{', '.join(sorted({told['commit'] for told in checked}))}; of those that still stand here {agree} of {len(own)} agree (same "
                     f"rate; held-out loss and test mean to a thousandth).")  # fmt: skip
        parts += differences(own)
    return " ".join(parts)


def differences(own: Sequence[Cell]) -> list[str]:
    """Where checked cells came out otherwise, and by how much: federations with many of them, and methods in the others."""
    other = [told for told in own if not told["agrees"]]
    if not other:
        return []
    bad = [case for case in dict.fromkeys(told["case"] for told in other) if share(own, "case", case) > MANY]
    rest = [told for told in own if told["case"] not in bad]
    methods = [name for name in dict.fromkeys(told["method"] for told in rest) if share(rest, "method", name) > 0]
    lines = [f"{case} {few(own, 'case', case)}" for case in bad]
    lines += [f"{title(name)} {few(rest, 'method', name)}" for name in methods]
    both = [
        (told["kept"]["mean"], told["now"]["mean"]) for told in rest if "mean" in told["kept"] and "mean" in told["now"]
    ]
    far = max((abs(now - kept) for kept, now in both), default=0.0)
    elsewhere = f" (elsewhere; test means there differ by at most {far:.3f})" if methods and bad else ""
    return [f"Those that differ: {', '.join(lines)}{elsewhere}. Read these rows and columns as of older code; "
            "`python benchmarks/which_method.py --afresh --only NAME --methods NAME` computes them anew."]  # fmt: skip


def share(own: Sequence[Cell], key: str, name: str) -> float:
    return float(np.mean([not told["agrees"] for told in own if told[key] == name]))


def few(own: Sequence[Cell], key: str, name: str) -> str:
    some = [told for told in own if told[key] == name]
    return f"{sum(not told['agrees'] for told in some)} of {len(some)}"


def counted(made: Counter[str]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in sorted(made.items()))


def advice(study: Study) -> str:
    """One screen: what to take for which clients."""
    known = {case: study.local(case, study.seeds[0]) for case in study.cases}
    kinds: dict[str, Callable[[str], bool]] = {
        f"few (under {FEW})": lambda case: known[case]["clients"] < FEW,
        f"many ({FEW} and more)": lambda case: known[case]["clients"] >= FEW,
        "alike (FedAvg beats Local on folds)": study.alike,
        "unlike (it does not)": lambda case: not study.alike(case),
        f"small (under {SMALL} samples)": lambda case: known[case]["samples"] < SMALL,
        f"large ({SMALL} and more)": lambda case: known[case]["samples"] >= SMALL,
        "natural": lambda case: known[case]["natural"],
        "partitions of one data set": lambda case: not known[case]["natural"],
    }
    rows = []
    for kind, belongs in kinds.items():
        cases = [case for case in study.cases if belongs(case)]
        if cases:
            rows.append([kind, str(len(cases)), *(told(study, cases, name) for name in best(study, cases)), told(study, cases, "auto")])  # fmt: skip
    gains = {name: mean_gain(study, study.cases, name) for name in (CHOSEN, "auto")}
    both = {name: mean_harm(study, study.cases, name, "worse_both") for name in gains}
    broke = [case for case in study.cases if study.diverged(case, "auto")]
    lost = f" (without {', '.join(broke)}, where it diverged)" if broke else ""
    return "\n\n".join(
        [
            "**Do not choose: `fedkin auto`** (or `fedkin.auto(federation)`) tries, weighs and gates for every client: [auto](auto.md). Its quick "
            f"effort takes away {gains['auto']:.0%} of Local's error here{lost} and leaves {both['auto']:.1%} of the clients worse than both Locals. Training "
            f"every method and taking the best on folds, one for all clients: {gains[CHOSEN]:.0%} and {both[CHOSEN]:.1%}.",
            "**If you want one method**, see what your clients are like. Named are the three with the best places on the folds; in brackets the gain over "
            "Local on test and the clients worse than both Locals.",
            markdown(["your clients are", "cases", "take", "or", "or", "auto (quick)"], rows),
        ]
    )


def best(study: Study, cases: Sequence[str], count: int = 3) -> list[str]:
    """The methods with the best mean place on the folds, of those that apply to all the cases."""
    places = [study.places(case) for case in cases]
    names = [name for name in study.methods if all(name in place for place in places)]
    return sorted(names, key=lambda name: float(np.mean([place[name] for place in places])))[:count]


def applies(study: Study, cases: Sequence[str], name: str) -> list[str]:
    return [case for case in cases if study.got(case, name)]


def mean_gain(study: Study, cases: Sequence[str], name: str) -> float:
    own = applies(study, cases, name)
    return float(np.mean([study.gain(case, name) for case in own])) if own else float("nan")


def mean_harm(study: Study, cases: Sequence[str], name: str, key: str) -> float:
    own = applies(study, cases, name)
    return float(np.mean([study.harmed(case, name, key) for case in own])) if own else float("nan")


def told(study: Study, cases: Sequence[str], name: str) -> str:
    if not applies(study, cases, name):
        return f"{title(name)} (–)"
    both = mean_harm(study, cases, name, "worse_both")
    return f"{title(name)} ({signed(mean_gain(study, cases, name))}, {both:.1%})"


def overall(study: Study) -> str:
    """One line per method, best place first."""
    places = {case: study.places(case) for case in study.cases}
    mean = {
        name: float(np.mean(own))
        for name in study.methods
        if (own := [places[case][name] for case in study.cases if name in places[case]])
    }
    rows = []
    for name in sorted(
        (*study.methods, CHOSEN), key=lambda name: (mean.get(name, 2.0), -mean_gain(study, study.cases, name))
    ):
        own = applies(study, study.cases, name)
        if own:
            lost = sum(study.diverged(case, name) for case in study.cases) if name != CHOSEN else 0
            shares = [f"{mean_harm(study, own, name, key):.1%}" for key in ("worse", "worse_both")]
            mark = OLD if any(study.old(case, name) for case in own) else ""
            rows.append([title(name) + mark, f"{mean[name]:.2f}" if name in mean else "–", signed(mean_gain(study, own, name)), *shares,
                         str(len(own)), str(lost), ratio(study, own, name, "bytes"), ratio(study, own, name, "cpu")])  # fmt: skip
    floor = mean_harm(study, study.cases, "local", "floor")
    head = ["method", "place on folds", "gain on test", "harmed", "than both", "cases", "diverged in", "bytes", "time"]
    note = (
        f"Places run from 0 (always the smallest held-out loss) to 1. The floor of *harmed* is {floor:.1%}: Local trained again. Bytes and processor "
        "time are those of a run at the chosen rate, FedAvg = 1. *Diverged in*: cases in which a seed had a client diverge at both rates, or on all samples."
    )
    return note + "\n\n" + markdown(head, rows)


def ratio(study: Study, cases: Sequence[str], name: str, key: str) -> str:
    """A cost beside FedAvg's, the median over cases."""
    pairs = [(study.got(case, name), study.got(case, "fedavg")) for case in cases]
    found = [np.mean([c[key] for c in own]) / np.mean([c[key] for c in base]) for own, base in pairs if base]
    return "–" if name == CHOSEN or not found else f"{float(np.median(found)):.1f}"


def federations(study: Study) -> str:
    head = ["federation", "clients", "samples", "alike?", "Local", "best on folds", "its test", "auto (quick)", "harmed: best, auto, floor"]  # fmt: skip
    rows = []
    for case in study.cases:
        known = study.local(case, study.seeds[0])
        first = best(study, [case], 1)[0]
        harms = [f"{study.harmed(case, name, 'worse_both') * known['clients']:.2g}" if study.got(case, name) else "–" for name in (first, "auto")]  # fmt: skip
        floor = f"{study.harmed(case, 'local', 'floor') * known['clients']:.2g}"
        rows.append([case, str(known["clients"]), f"{known['samples']:.0f}", "yes" if study.alike(case) else "no",
                     shown(study, case, "local"), title(first), shown(study, case, first), shown(study, case, "auto"),
                     ", ".join([*harms, floor])])  # fmt: skip
    note = "Accuracy in % (heart: AUROC), or MSE; mean / worst 5 % of the clients. Samples: training samples of the median client. Harmed: clients worse than both Locals."
    return note + "\n\n" + markdown(head, rows)


def numbers(study: Study) -> str:
    """Mean test results of every method in every case, in the order of the names."""
    rows = [[title(name), *(shown(study, case, name, False) for case in study.cases)] for name in study.methods]
    return markdown(["method", *study.cases], rows)


def refused(study: Study) -> list[str]:
    """Why cells are empty."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for name in study.methods:
        for case in study.cases:
            for seed in study.seeds:
                why = study.cells.get((case, seed, name), {}).get("failed")
                if why:
                    kind = "diverged" if "diverged" in why else why
                    reasons.setdefault(title(name), {}).setdefault(kind, []).append(case)
    if not reasons:
        return []
    lines = [
        f"- {name}: " + "; ".join(f"{why} ({', '.join(dict.fromkeys(own))})" for why, own in found.items()) + "."
        for name, found in reasons.items()
    ]
    return ["## What is empty, and why", "\n".join(lines)]


def shown(study: Study, case: str, name: str, worst: bool = True) -> str:
    own = study.got(case, name)
    if not own:
        return "–"
    values = [float(np.mean([cell[key] for cell in own])) for key in (("mean", "worst5") if worst else ("mean",))]
    told = " / ".join(f"{100 * value:.1f}" if study.percent(case) else f"{value:.3f}" for value in values)
    return told + (OLD if study.old(case, name) else "")


def title(name: str) -> str:
    if name == CHOSEN:
        return "the best on folds"
    return "auto (quick)" if name == "auto" else algorithms.get(name).title


def signed(share: float) -> str:
    return f"{share:+.0%}".replace("-", "−")


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
