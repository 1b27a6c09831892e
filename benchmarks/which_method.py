"""Which method when: every method at its own default on natural clients and on partitions, five seeds, and who is harmed.

    python benchmarks/which_method.py                      every cell that which_method.jsonl lacks, then docs/which-method.md
    python benchmarks/which_method.py --seeds 1 --only heart --methods local fedavg auto --cells FILE --page FILE
    python benchmarks/which_method.py --page-only          writes the page again from the cells
    python benchmarks/which_method.py --verify 160         computes a random sample of the cells again, and says how many agree
    python benchmarks/which_method.py --afresh --methods fedrep       computes cells again and puts them in the place of the old

A cell is one case, one method and one seed, one line of JSON; cells are taken seed by seed, and what is there is not done again,
so the study can be stopped and taken up at any moment. Natural sets and MNIST come from $FEDKIN_DATA, the cache or upstream
(docs/data.md). Each tells the commit that made it. A sample of `--verify` has a fixed seed, takes methods and cases as evenly as they
go and leaves auto out; what it finds is added to which_method_verified.jsonl, which the page sums up.

What is chosen (a method's rate: its default or a fifth of it; which method does best) is chosen on a quarter of every client's
*training* samples, held out; then the method trains on all of them with the rate that was found, and its deployed models are
judged on test samples: by accuracy, MSE, or what the set's entry in the catalogue asks for (heart: AUROC). Harm is counted three
times (docs/auto.md), sample by sample, by right classes or squared errors: clients significantly worse than Local, than both of two
Locals of different seeds, and, as the floor, the second Local against the first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from auto import Scores, against, line, scores
from auto_cases import again, halved, loaded
from which_method_page import page

from fedkin import Federation, FedkinError, Result, algorithms, train
from fedkin import auto as find
from fedkin.federation.folds import folded
from fedkin.result.summary import summarise

HERE = Path(__file__).resolve().parent
MODEL, ROUNDS, SEEDS = "feature-mlp:32", 25, 5
SLOWER = 0.2
"""A method may have its own default rate or this share of it."""
OTHER_SEED = 1000
"""Added to the seed of the second Local."""
KEYS = ("failed", "rate", "held_out", "mean", "worst5", "worse", "worse_both")
"""What `--verify` keeps of both."""


@dataclass(frozen=True)
class Case:
    """Clients that a seed draws, or splits, anew."""

    name: str
    natural: bool
    make: Callable[[int], Federation]


def hospitals(seed: int) -> Federation:
    """heart, judged by AUROC as its entry in the catalogue says."""
    whole = loaded("heart", test_fraction=0.5)(seed)
    return replace(whole, task=replace(whole.task, metrics=("auroc", "accuracy"), headline="auroc"))


def people(seed: int) -> Federation:
    """HAR: every third of the 561 features, 3,000 windows."""
    whole = loaded("har", partition="natural", samples=3000, test_fraction=0.5)(seed)
    return again(whole, lambda x: x[:, ::3])


def small_mnist(seed: int) -> Federation:
    """About 60 training and 90 test images per client, 14 × 14."""
    how = {"partition": "dirichlet:1.0", "clients": 30, "samples": 4500, "test_fraction": 0.6}
    return again(loaded("mnist", **how)(seed), halved)


def digits(partition: str) -> Callable[[int], Federation]:
    return loaded("digits", clients=20, partition=partition, test_fraction=0.5)


CASES = (
    Case("heart (hospitals)", True, hospitals),
    Case("vehicle (sensors)", True, loaded("vehicle", test_fraction=0.5)),
    Case("parkinsons (patients)", True, loaded("parkinsons", test_fraction=0.5)),
    Case("wisdm (people)", True, loaded("wisdm", test_fraction=0.5)),
    Case("har (people)", True, people),
    Case("fmi (stations)", True, loaded("fmi", clients=60)),
    Case("school (schools)", True, loaded("school", clients=70, test_fraction=0.5)),
    Case("digits, Dir(0.1)", False, digits("dirichlet:0.1")),
    Case("digits, Dir(1)", False, digits("dirichlet:1.0")),
    Case("mnist, Dir(1)", False, small_mnist),
)


def methods() -> tuple[str, ...]:
    """Every method, Local first; auto last."""
    return ("local", *(name for name in algorithms.names() if name != "local"), "auto")


def without_a_quarter(federation: Federation, seed: int) -> Federation:
    """Three quarters of the training samples train; the last is where test samples are, of which there are none.

    So no method sees the quarter, not even one that has a use for validation samples.
    """
    cut = folded(federation, 4, 1, seed)
    return replace(cut, names=federation.names, graph=federation.graph, validation=cut.test, test=cut.validation)


def held_out(result: Result, federation: Federation) -> float:
    """The loss of what clients deploy on the held-out quarter, a mean over clients; infinite where one diverged."""
    losses = np.array(result.metrics["deployed"]["test_loss"], dtype=float)[federation.test.sizes > 0]
    return float(losses.mean()) if np.isfinite(losses).all() else float("inf")


class Bench:
    """One case with one seed: the federation, the same with a quarter of the training samples held out, two Locals."""

    def __init__(self, case: Case, seed: int, rounds: int = ROUNDS) -> None:
        self.case, self.seed, self.rounds = case, seed, rounds
        self.federation = case.make(seed)
        self.held = without_a_quarter(self.federation, seed)
        self._alone: list[Scores] | None = None

    def cell(self, name: str) -> dict[str, Any]:
        """What a method comes to: numbers, or why there are none."""
        told = {"case": self.case.name, "method": name, "seed": self.seed}
        started = time.process_time()
        try:
            rate, loss = (None, None) if name == "auto" else self.chosen(name)
            before = time.process_time()
            result = self.trained(name, rate, self.seed)
            own = line(self.federation, scores(result, self.federation), self.alone) | self.judged(result)
        except FedkinError as problem:
            return told | {"failed": str(problem).removeprefix(f"{name}: ")}
        if not np.isfinite(own["mean"]) or abs(own["mean"]) > 1e3:
            return told | {"failed": f"diverged on all samples at rate {rate}"}
        now = time.process_time()
        told |= {"rate": rate, "held_out": loss, "bytes": int(result.facts["bytes"])}
        told |= {"cpu": now - before, "cpu_with_choice": now - started}
        return told | own | (self.described() if name == "local" else {})

    def judged(self, result: Result) -> dict[str, float]:
        """Mean and worst 5 % by a headline that is no mean over samples; nothing where `line` tells it."""
        task = self.federation.task
        if task.kind != "classification" or task.headline == "accuracy":
            return {}
        told = summarise(result.metrics["deployed"][f"test_{task.metric}"], larger_is_better=task.larger_is_better)
        return {"mean": told["mean"], "worst5": told["worst5"]}

    def described(self) -> dict[str, Any]:
        """What a practitioner would know of these clients, and the floor of harm."""
        classes = self.federation.task.kind == "classification"
        return {
            "clients": len(self.federation),
            "samples": float(np.median(self.federation.train.sizes)),
            "metric": self.federation.task.headline if classes else "mse",
            "natural": self.case.natural,
            "floor": against(self.alone[1], self.alone[:1], classes)["worse"],
        }

    def chosen(self, name: str) -> tuple[float, float]:
        """The rate with the smaller held-out loss, and that loss."""
        default = algorithms.make(name, {}).lr
        found: dict[float, float] = {}
        problem: FedkinError | None = None
        for rate in (default, SLOWER * default):
            try:
                found[rate] = held_out(self.trained(name, rate, self.seed, held=True), self.held)
            except FedkinError as fault:
                problem = fault
        if not found and problem is not None:
            raise problem
        best = min(found, key=lambda rate: found[rate])
        if not np.isfinite(found[best]):
            raise FedkinError("a client diverged on the folds at both rates")
        return best, found[best]

    def trained(self, name: str, rate: float | None, seed: int, held: bool = False) -> Result:
        clients = self.held if held else self.federation
        if name == "auto":
            return find(clients, MODEL, "quick", seed=seed, rounds=self.rounds)
        method = algorithms.make(name, {"lr": rate})
        return train(clients, MODEL, method, rounds=self.rounds, seed=seed, eval_every=self.rounds)

    @property
    def alone(self) -> list[Scores]:
        """Two Locals, sample by sample."""
        if self._alone is None:
            rate, _ = self.chosen("local")
            both = (self.trained("local", rate, seed) for seed in (self.seed, self.seed + OTHER_SEED))
            self._alone = [scores(result, self.federation) for result in both]
        return self._alone


@cache
def commit() -> str:
    """The state of the code, with a + where files under src differ from it."""
    told = subprocess.run(
        ["git", "describe", "--always", "--exclude=*", "--abbrev=9"], cwd=HERE, capture_output=True, text=True
    )
    changed = subprocess.run(["git", "status", "--porcelain", "../src"], cwd=HERE, capture_output=True, text=True)
    return told.stdout.strip() + ("+" if changed.stdout.strip() else "")


def sampled(cells: Sequence[dict[str, Any]], count: int, seed: int = 0, seeds: int = 2) -> list[dict[str, Any]]:
    """Cells with numbers, or that diverged: methods and cases as evenly as they go, of `seeds` seeds drawn for each case."""
    rng = np.random.default_rng(seed)
    told = [cell for cell in cells if cell["method"] != "auto" and "diverged" in cell.get("failed", "diverged")]
    told.sort(key=lambda cell: (cell["case"], cell["method"], cell["seed"]))
    own = {case.name: sorted({cell["seed"] for cell in told if cell["case"] == case.name}) for case in CASES}
    drawn = {case: rng.permutation(have)[:seeds] for case, have in own.items()}
    pool = [told[i] for i in rng.permutation(len(told)) if told[i]["seed"] in drawn[told[i]["case"]]]
    taken: list[dict[str, Any]] = []
    methods_taken, cases_taken = Counter[str](), Counter[str]()
    while pool and len(taken) < count:
        rarest = min(pool, key=lambda cell: (methods_taken[cell["method"]], cases_taken[cell["case"]]))
        pool.remove(rarest)
        taken.append(rarest)
        methods_taken[rarest["method"]] += 1
        cases_taken[rarest["case"]] += 1
    return taken


def agree(kept: dict[str, Any], now: dict[str, Any]) -> bool:
    """Two computations of a cell: the same rate, held-out loss and test mean to a thousandth, or both failed."""
    if "failed" in kept or "failed" in now:
        return "failed" in kept and "failed" in now
    return kept["rate"] == now["rate"] and all(
        np.isclose(kept[key], now[key], rtol=1e-3) for key in ("held_out", "mean")
    )


def verified(cells: Sequence[dict[str, Any]], only: list[str], count: int, rounds: int) -> Iterator[dict[str, Any]]:
    """The sampled cells again, those of a case and a seed together: does each agree with the kept one, and what differs?"""
    chosen = [cell for cell in sampled(cells, count) if any(text in cell["case"] for text in only)]
    cases, state = {case.name: case for case in CASES}, commit()
    for name, seed in sorted({(cell["case"], cell["seed"]) for cell in chosen}):
        bench = Bench(cases[name], seed, rounds)
        for kept in (cell for cell in chosen if (cell["case"], cell["seed"]) == (name, seed)):
            now = rounded(bench.cell(kept["method"]))
            both = [{key: cell[key] for key in KEYS if key in cell} for cell in (kept, now)]
            told = {"case": name, "method": kept["method"], "seed": seed, "agrees": agree(kept, now), "commit": state}
            yield told | {"made_by": kept.get("commit"), "kept": both[0], "now": both[1]}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def missing(
    cells: list[dict[str, Any]], only: list[str], names: list[str], seeds: int, rounds: int = ROUNDS
) -> Iterator[dict[str, Any]]:
    """The cells that are not there yet, seed by seed."""
    there = {(cell["case"], cell["method"], cell["seed"]) for cell in cells}
    for seed in range(seeds):
        for case in CASES:
            lacking = [name for name in methods() if name in names and (case.name, name, seed) not in there]
            if lacking and any(text in case.name for text in only):
                bench = Bench(case, seed, rounds)
                yield from (rounded(bench.cell(name)) | {"commit": commit()} for name in lacking)


def write(path: Path, cells: Sequence[dict[str, Any]]) -> None:
    """All of them, at once."""
    path.with_suffix(".new").write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    path.with_suffix(".new").replace(path)


def asked(cell: dict[str, Any], only: list[str], names: list[str], seeds: int) -> bool:
    """Whether the options of the command line name a cell."""
    return cell["seed"] < seeds and cell["method"] in names and any(text in cell["case"] for text in only)


def replaced(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last of each case, method and seed, in the order of the first."""
    return list({(cell["case"], cell["method"], cell["seed"]): cell for cell in cells}.values())


def keep(path: Path, cells: Iterator[dict[str, Any]]) -> None:
    """Add each as soon as it is there."""
    with path.open("a") as out:
        for cell in cells:
            facts = (cell[key] for key in ("case", "method", "seed", "agrees") if key in cell)
            print(time.strftime("%H:%M:%S"), *facts, flush=True)
            out.write(json.dumps(cell) + "\n")
            out.flush()


def rounded(cell: dict[str, Any]) -> dict[str, Any]:
    """Six digits are enough."""
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in cell.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, default=HERE / "which_method.jsonl")
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs" / "which-method.md")
    parser.add_argument("--page-only", action="store_true", help="write the page from the cells, measure nothing")
    parser.add_argument(
        "--verify", type=int, metavar="N", help="compute N cells of a stratified sample again, and compare"
    )
    parser.add_argument("--verified", type=Path, default=HERE / "which_method_verified.jsonl")
    parser.add_argument(
        "--afresh", action="store_true", help="compute the named cells again, and let them replace the old"
    )
    parser.add_argument("--only", nargs="*", default=[""], help="cases whose name holds one of these texts")
    parser.add_argument("--methods", nargs="*", default=list(methods()))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tag", help="a word by which others find this process; changes nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    done = read(options.cells)
    if options.verify:
        keep(options.verified, verified(done, options.only, options.verify, options.rounds))
    elif not options.page_only:
        named = (options.only, options.methods, options.seeds)
        old = [cell for cell in done if options.afresh and asked(cell, *named)]
        others = [cell for cell in done if cell not in old]
        keep(options.cells, missing(others, *named, options.rounds))
        if old:
            write(options.cells, replaced(read(options.cells)))
    options.page.write_text(page(read(options.cells), read(options.verified)))
    print(f"wrote {options.page}")


if __name__ == "__main__":
    main()
