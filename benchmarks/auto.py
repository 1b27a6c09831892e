"""auto beside Local and fixed methods: accuracy, the worst 5 %, who is harmed, newcomers, cost.

    python benchmarks/auto.py                          every federation, five seeds; what is in auto.json is not run again
    python benchmarks/auto.py --only heart --seeds 5   federations whose name holds a text
    python benchmarks/auto.py --page-only              write the tables in docs/auto.md from auto.json
    python benchmarks/auto.py --merge A.json B.json    what several processes measured, each with --json of its own, in auto.json
    python benchmarks/auto.py --cost                   processor time and peak memory of FedAvg and auto, a process each

Nothing here chooses anything for auto. A fixed method trains at the learning rate that auto found for training alone or as auto's
FedAvg (Kin as auto's Kin), whichever is better on a fifth of the training samples; "best fixed" is chosen on test, which no user could do.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from auto_cases import CASES, Case
from auto_figure import draw
from auto_page import by_case, written
from scipy.stats import binom, ttest_rel

from fedkin import Federation, FedkinError, Result, algorithms, join, train
from fedkin import auto as find
from fedkin.federation.folds import folded
from fedkin.files import write_json
from fedkin.result.summary import summarise

HERE = Path(__file__).resolve().parent
ROUNDS = 30
TRAINING: dict[str, Any] = {"steps": 10, "batch_size": 32}
FIXED: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("fedavg", "fedavgft", "ditto", "fedamp", "ifca", "kin", "fedu", "fedpnp")},
    "pfedbayes": {"lr": 0.01, "zeta": 0.1, "steps": 5, "inner_steps": 2},
    **{name: {} for name in ("fedfomo", "knnper", "pfedgraph")},
}
SIGNIFICANT = 0.025
NEWCOMERS = 3

Scores = list[np.ndarray]
"""Per client, one number per test sample, larger is better: 1 where the class is right, or −(squared error)."""


def scores(result: Result, federation: Federation) -> Scores:
    """How the deployed models do, sample by sample."""
    found = []
    for k, name in enumerate(federation.names):
        x, y = federation.test[k]
        with torch.no_grad():
            inputs = torch.from_numpy(np.ascontiguousarray(x))
            out = result.models[name](inputs.float() if inputs.is_floating_point() else inputs).double().numpy()
        if federation.task.kind == "classification":
            found.append((out.argmax(axis=1) == y).astype(float))
        else:
            found.append(-((out.reshape(len(y), -1) - y.reshape(len(y), -1)) ** 2).mean(axis=1))
    return found


def significantly_worse(own: np.ndarray, other: np.ndarray, classes: bool) -> bool:
    """One-sided at 0.025: McNemar's test with the mid-p for classes, a paired t-test for squared errors.

    >>> significantly_worse(np.zeros(6), np.ones(6), True), significantly_worse(np.zeros(4), np.ones(4), True)
    (True, False)
    """
    if classes:
        lost, won = int((other > own).sum()), int((own > other).sum())
        chance = binom.sf(lost, lost + won, 0.5) + 0.5 * binom.pmf(lost, lost + won, 0.5)
        return bool(lost + won and chance < SIGNIFICANT)
    if len(own) < 2 or np.allclose(own, other):
        return False
    return bool(ttest_rel(own, other, alternative="less").pvalue < SIGNIFICANT)


def against(own: Scores, locals_: Sequence[Scores], classes: bool) -> dict[str, int]:
    """How many clients are significantly worse than the first Local, and than both."""
    worse = np.array([[significantly_worse(a, b, classes) for a, b in zip(own, other)] for other in locals_])
    return {"worse": int(worse[0].sum()), "worse_both": int(worse.all(axis=0).sum())}


def line(federation: Federation, own: Scores, locals_: Sequence[Scores]) -> dict[str, Any]:
    """Mean and worst 5 % over clients, and who is harmed."""
    classes = federation.task.kind == "classification"
    values = [float(np.mean(each)) if len(each) else float("nan") for each in own]
    told = summarise(values)
    sign = 1 if classes else -1
    return {"mean": sign * told["mean"], "worst5": sign * told["worst5"], **against(own, locals_, classes)}


def clocked(run: Callable[[], Result]) -> tuple[Result, dict[str, float]]:
    """A result and its cost; processor time, since the machine is shared."""
    before = time.process_time()
    result = run()
    return result, {"cpu": round(time.process_time() - before, 2), "bytes": int(result.facts["bytes"])}


def trained(
    case: Case, federation: Federation, name: str, how: dict[str, Any], seed: int
) -> tuple[Result, dict[str, float]]:
    method = algorithms.make(name, {**TRAINING, **how, **FIXED.get(name, {})})
    return clocked(lambda: train(federation, case.model, method, rounds=ROUNDS, seed=seed, eval_every=ROUNDS))


def measure(
    case: Case, seed: int, done: dict[str, Any], keep: Callable[[dict[str, Any]], None], standard: bool
) -> None:
    """All of one federation and seed; `done` is what there is already, `keep` is told whenever there is more."""
    federation = case.make(seed)
    done |= {"case": case.name, "seed": seed, "clients": len(federation), "metric": federation.task.metric}
    done.setdefault("methods", {})
    efforts = ["quick", *(["standard"] if standard else [])]
    missing = [effort for effort in efforts if f"auto {effort}" not in done["methods"]]
    if not missing and "newcomers" in done and "by_validation" in done:
        return
    found: dict[str, tuple[Result, dict[str, float]]] = {}
    for effort in missing:
        found[effort] = clocked(lambda: find(federation, case.model, effort, seed=seed, rounds=ROUNDS))  # noqa: B023
        done["rate"] = {"lr": found[effort][0].config["algorithm"]["lr"]}
        done["ways"] = found[effort][0].facts["training"]
    rate = done["rate"]
    local, cost = trained(case, federation, "local", rate, seed)
    second, _ = trained(case, federation, "local", rate, seed + 1000)
    alone = [scores(local, federation), scores(second, federation)]
    done["methods"]["local"] = line(federation, alone[0], alone) | cost
    done["methods"]["local, another seed"] = line(federation, alone[1], alone[:1])
    for effort, (result, cost) in found.items():
        kept_alone = sum(entry["kept_alone"] for entry in result.auto.values())
        done["methods"][f"auto {effort}"] = line(federation, scores(result, federation), alone) | cost
        done["methods"][f"auto {effort}"]["kept_alone"] = kept_alone
    keep(done)
    if "by_validation" not in done:
        fixed(case, federation, seed, alone, done)
        keep(done)
    if "newcomers" not in done:
        done["newcomers"] = newcomers(case, federation, seed)
        keep(done)


def fixed(case: Case, federation: Federation, seed: int, alone: list[Scores], done: dict[str, Any]) -> None:
    """Every fixed method, and the two ways to choose among them and Local on a fifth of the training samples."""
    held = replace(folded(federation, 5, 1, seed), test=federation.test)
    own: dict[str, Scores] = {}
    losses: dict[str, np.ndarray] = {}
    for name in ("local", *FIXED):
        ways = [done["rate"], done["ways"].get(name, done["ways"]["fedavg"])]
        tried, reasons = [], []
        for how in ways[:1] if name in ("local", "pfedbayes") or ways[0] == ways[1] else ways:
            try:
                result, _ = trained(case, held, name, how, seed)
            except FedkinError as problem:  # at this rate; there is another
                reasons.append(str(problem))
                continue
            own_losses = np.array(result.metrics["deployed"]["validation_loss"])
            tried.append((float(np.nan_to_num(np.nanmean(own_losses), nan=np.inf)), own_losses, how))
        try:
            if not tried:
                raise FedkinError(reasons[0])
            _, found, how = min(tried, key=lambda one: one[0])
            result, cost = trained(case, federation, name, how, seed)
            if name == "fedavg" and how != done["rate"]:  # what everything is compared with is one plain run
                cost = trained(case, federation, name, done["rate"], seed)[1]
        except FedkinError as problem:
            done["methods"][name] = {"failed": str(problem)}
            continue
        losses[name] = found
        own[name] = scores(result, federation)
        if name != "local":
            done["methods"][name] = line(federation, own[name], alone) | cost
            done["methods"][name] |= {
                f"{when}_{key}": result.summary(when)[key] for when in ("pre", "post") for key in ("mean", "worst5")
            }
    means = {name: np.nanmean(values) for name, values in losses.items()}
    one = min(means, key=lambda name: means[name] if np.isfinite(means[name]) else np.inf)
    done["by_validation"] = one
    done["methods"]["one for all, by validation"] = line(federation, own[one], alone)
    names = list(losses)
    table = np.nan_to_num(np.stack([losses[name] for name in names]), nan=np.inf)
    chosen = [own[names[int(table[:, k].argmin())]][k] for k in range(len(federation))]
    done["methods"]["per client, by validation"] = line(federation, chosen, alone)


def newcomers(case: Case, federation: Federation, seed: int) -> dict[str, Any]:
    """Three clients come after a quick run of the others: their own Local, and what joining gives them."""
    count = min(NEWCOMERS, len(federation) - 2)
    late = np.sort(np.random.default_rng(seed).choice(len(federation), count, replace=False))
    early = np.setdiff1d(np.arange(len(federation)), late)
    result = find(federation.take(early), case.model, "quick", seed=seed, rounds=ROUNDS)
    rate = {"lr": result.config["algorithm"]["lr"]}
    new = federation.take(late)
    joined = scores(join(result, new, model=case.model), new)
    alone = [scores(trained(case, new, "local", rate, own)[0], new) for own in (seed, seed + 1000)]
    classes = federation.task.kind == "classification"
    return {
        "clients": int(count),
        "local": line(new, alone[0], alone)["mean"],
        "joined": line(new, joined, alone)["mean"],
        **against(joined, alone, classes),
        "floor": against(alone[1], alone[:1], classes)["worse"],
    }


SPENDERS = ("fedavg", "quick", "standard", "thorough")


def spend(case: Case, what: str) -> None:
    """Train (FedAvg three times) and print the median processor time and this process's peak memory in MB."""
    federation = case.make(0)
    find(federation.take(range(2)), case.model, "quick", rounds=1)  # so that no measurement pays for imports
    times = []
    for _ in range(3 if what == "fedavg" else 1):
        before = time.process_time()
        if what == "fedavg":
            trained(case, federation, what, {"lr": 0.1}, 0)
        else:
            find(federation, case.model, what, seed=0, rounds=ROUNDS)  # type: ignore[arg-type]
        times.append(time.process_time() - before)
    print(f"{np.median(times):.3f} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}")


def spending(case: Case) -> dict[str, dict[str, float]]:
    """Processor time and peak memory (data and libraries included) of FedAvg and the three efforts, a process each."""
    call = [sys.executable, __file__, "--spend", case.name]
    told = {what: subprocess.check_output([*call, what]).split()[-2:] for what in SPENDERS}
    return {what: {"cpu": float(cpu), "memory": int(memory)} for what, (cpu, memory) in told.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=HERE / "auto.json")
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs" / "auto.md")
    parser.add_argument("--page-only", action="store_true", help="write the tables from the JSON, measure nothing")
    parser.add_argument("--only", nargs="*", default=[""], help="federations whose name holds one of these texts")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--no-standard", action="store_true", help="the quick effort alone")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="put the records of these files in --json")
    parser.add_argument("--cost", action="store_true", help="measure cost alone, beside the records of seed 0")
    parser.add_argument("--spend", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.spend:
        return spend(next(case for case in CASES if case.name == options.spend[0]), options.spend[1])

    def known() -> dict[str, Any]:
        return (
            {f"{r['case']}, seed {r['seed']}": r for r in json.loads(options.json.read_text())}
            if options.json.exists()
            else {}
        )

    def keep(record: dict[str, Any]) -> None:
        records = known() | {f"{record['case']}, seed {record['seed']}": record}
        write_json(options.json, list(records.values()))

    chosen = [case for case in CASES if any(text in case.name for text in options.only)]
    for case in chosen if options.cost else ():
        record = known().get(f"{case.name}, seed 0")
        if record is not None and "cost" not in record:
            keep(record | {"cost": spending(case)})
    for path in options.merge:
        for record in json.loads(path.read_text()):
            keep(record)
    if not options.page_only and not options.cost and not options.merge:
        find(CASES[0].make(0), CASES[0].model, "quick", rounds=1)  # so that no measurement pays for imports
        for seed in range(options.first, options.seeds):
            for case in chosen:
                print(f"{time.strftime('%H:%M:%S')} {case.name}, seed {seed} …", flush=True)
                measure(case, seed, known().get(f"{case.name}, seed {seed}", {}), keep, not options.no_standard)
    if options.page.exists():
        written(options.page, list(known().values()))
        draw(by_case(list(known().values())), options.page.parent / "images" / "auto-federations.png")


if __name__ == "__main__":
    main()
