"""The tables of docs/auto.md, from the records of benchmarks/auto.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

BEGIN, END = "<!-- tables: begin, written by benchmarks/auto.py -->", "<!-- tables: end -->"
FIXED = (
    "fedavg",
    "fedavgft",
    "ditto",
    "fedamp",
    "ifca",
    "kin",
    "fedu",
    "fedpnp",
    "pfedbayes",
    "fedfomo",
    "knnper",
    "pfedgraph",
)
RIVALS = ("local", *FIXED)
EFFORTS = ("quick", "standard", "thorough")
DIVERGED = 1e12
HARM = 0.03
"""Goal: never more than this share of the clients significantly worse than both Locals."""

Records = Sequence[dict[str, Any]]


def written(path: Path, records: Records) -> None:
    """Put the tables between the page's markers."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    cases = by_case(records)
    parts = [accuracy(cases), goals(cases), cost(cases), newcomers(cases), every(cases)]
    path.write_text(before + "\n\n".join([BEGIN, *parts, END]) + after)


def by_case(records: Records) -> dict[str, list[dict[str, Any]]]:
    """The records of every federation; what was killed half-way is left out."""
    cases: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if "newcomers" in record:
            cases.setdefault(record["case"], []).append(record)
    return cases


def mean(runs: Records, method: str, key: str = "mean") -> float:
    """A number of a method, averaged over seeds; NaN where it failed or diverged in one."""
    return float(np.mean([number(run, method, key) for run in runs]))


def number(run: dict[str, Any], method: str, key: str) -> float:
    value = run["methods"].get(method, {}).get(key)
    return float("nan") if value is None or abs(value) > DIVERGED else float(value)


def larger_is_better(runs: Records) -> bool:
    return bool(runs[0]["metric"] == "accuracy")


def _sign(runs: Records) -> int:
    return 1 if larger_is_better(runs) else -1


def shown(value: float, runs: Records) -> str:
    return f"{100 * value:.1f}" if larger_is_better(runs) else f"{value:.3f}"


def cell(runs: Records, method: str) -> str:
    """mean / worst 5 %, −worse than Local (than both)."""
    if not np.isfinite(mean(runs, method)):
        return "–"
    worse, both = (f"{mean(runs, method, key):.2g}" for key in ("worse", "worse_both"))
    harmed = "" if worse == "0" else f" −{worse}({both})"
    return f"{shown(mean(runs, method), runs)}/{shown(mean(runs, method, 'worst5'), runs)}{harmed}"


def best_fixed(runs: Records) -> tuple[str, float, float]:
    """Local or the fixed method with the best test mean, as deployed, as received or after local training; mean and worst 5 %."""
    sign = _sign(runs)
    options = {
        (f"{method}{note}", before): (mean(runs, method, f"{before}mean"), mean(runs, method, f"{before}worst5"))
        for method in RIVALS
        for note, before in (("", ""), (", received", "pre_"), (", trained", "post_"))
    }
    finite = {name: value for (name, _), value in options.items() if np.isfinite(value[0])}
    name = max(finite, key=lambda key: sign * finite[key][0])
    return name, *finite[name]


def reached_by(run: dict[str, Any], name: str) -> float:
    """The test mean of a method that `best_fixed` names, in one run."""
    method, _, when = name.partition(", ")
    before = {"": "", "received": "pre_", "trained": "post_"}[when]
    return float(run["methods"][method][f"{before}mean"])


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def accuracy(cases: dict[str, list[dict[str, Any]]]) -> str:
    head = ["federation", "seeds", "Local", "FedAvg + fine-tuning", "best fixed, chosen on test", "one for all, by validation",
            "per client, by validation", "auto quick", "**auto standard**", "floor"]  # fmt: skip
    rows = []
    for case, runs in cases.items():
        name, value, worst = best_fixed(runs)
        methods = ("one for all, by validation", "per client, by validation", "auto quick", "auto standard")
        rows.append(
            [
                case,
                str(len(runs)),
                *(cell(runs, method) for method in ("local", "fedavgft")),
                f"{name} {shown(value, runs)}/{shown(worst, runs)}",
                *(cell(runs, method) for method in methods),
                f"{mean(runs, 'local, another seed', 'worse'):.2g}",
            ]
        )
    return "### Accuracy and harm\n\n" + markdown(head, rows)


def goals(cases: dict[str, list[dict[str, Any]]]) -> str:
    head = [
        "federation",
        "mean against the best fixed",
        "worst 5 % against the best of the fixed",
        "worse than both Locals",
    ]
    rows, level, above, tails, nobody, few = [], 0, 0, 0, 0, 0
    for case, runs in cases.items():
        sign, (name, best, _) = _sign(runs), best_fixed(runs)
        apart = sign * (mean(runs, "auto standard") - best)
        scale = 100 if larger_is_better(runs) else 1
        differences = [sign * (run["methods"]["auto standard"]["mean"] - reached_by(run, name)) for run in runs]
        noise = float(np.std(differences, ddof=1)) if len(runs) > 1 else float("nan")
        ahead, reached = apart >= 0, apart >= 0 or apart >= -noise
        tail = max(
            sign * mean(runs, method, "worst5") for method in RIVALS if np.isfinite(mean(runs, method, "worst5"))
        )
        lower = sign * mean(runs, "auto standard", "worst5") - tail
        harmed, clients = mean(runs, "auto standard", "worse_both"), runs[0]["clients"]
        deviation = "" if np.isnan(noise) else f" (± {scale * noise:.2g} over seeds)"
        rows.append(
            [
                case,
                f"{_signed(scale * apart)}{deviation} {_tick(reached)}",
                f"{_signed(scale * lower)} {_tick(lower >= 0)}",
                f"{harmed:.2g} of {clients} {_tick(harmed <= HARM * clients)}",
            ]
        )
        level, above, tails = level + reached, above + ahead, tails + (lower >= 0)
        nobody, few = nobody + (harmed == 0), few + (harmed <= HARM * clients)
    chosen = {
        rule: sum(_sign(runs) * (mean(runs, "auto standard") - mean(runs, rule)) >= 0 for runs in cases.values())
        for rule in ("one for all, by validation", "per client, by validation")
    }
    seldom = sum(mean(runs, "auto standard", "worse_both") < 0.5 for runs in cases.values())
    text = (
        f"Of {len(cases)} federations auto (standard) has at least the mean of the best fixed method chosen on test on {above}, is level with it or above on {level} (less than one standard deviation of the difference over seeds behind), has a worst 5 % at "
        f"least as good as every fixed method's on {tails}, makes nobody significantly worse than both Locals in any seed on {nobody}, less than one client in two runs on {seldom}, and "
        f"at most 3 % of the clients on {few}. Against what a user could choose, it has at least the mean of one method for all by validation on "
        f"{chosen['one for all, by validation']}, of one per client by validation on {chosen['per client, by validation']}. Positive is better; points of accuracy, or MSE."
    )
    return f"### Against the goals\n\n{text}\n\n" + markdown(head, rows)


def _signed(value: float) -> str:
    return f"{value:+.2g}".replace("-", "−")


def _tick(good: bool) -> str:
    return "✓" if good else "✗"


def cost(cases: dict[str, list[dict[str, Any]]]) -> str:
    def ratio(runs: Records, effort: str, key: str) -> float:
        alone = spent(runs)
        if key == "cpu" and effort in alone:
            return float(alone[effort]["cpu"] / alone["fedavg"]["cpu"])
        both = [run for run in runs if np.isfinite(number(run, "fedavg", key))]
        return mean(both, f"auto {effort}", key) / mean(both, "fedavg", key)

    def times(value: float) -> str:
        return f"{value:.1f}×" if np.isfinite(value) else "–"

    columns: dict[str, Callable[[Records], float]] = {
        f"{effort}, {what}": lambda runs, effort=effort, key=key: ratio(runs, effort, key)  # type: ignore[misc]
        for effort in EFFORTS
        for what, key in (("processor time", "cpu"), ("bytes", "bytes"))
        if (effort, key) != ("thorough", "bytes")
    }
    found = {case: [find(runs) for find in columns.values()] for case, runs in cases.items()}
    rows = [[case, _seconds(runs), *map(times, found[case]), memory(runs)] for case, runs in cases.items()]
    medians = [
        times(float(np.median([v for v in column if np.isfinite(v)] or [np.nan]))) for column in zip(*found.values())
    ]
    head = ["federation", "FedAvg, s", *columns, "peak memory in MB: FedAvg / " + " / ".join(EFFORTS)]
    return "### Cost against one FedAvg run\n\n" + markdown(head, [*rows, ["median", "", *medians, ""]])


def spent(runs: Records) -> dict[str, dict[str, float]]:
    """Processor time and peak memory, where they were measured in processes of their own."""
    return next((run["cost"] for run in runs if "cost" in run), {})


def _seconds(runs: Records) -> str:
    took = [number(run, "fedavg", "cpu") for run in runs]
    return f"{spent(runs)['fedavg']['cpu'] if spent(runs) else np.nanmean(took):.2f}"


def memory(runs: Records) -> str:
    """Peak memory of processes that train FedAvg and auto with its efforts, where it was measured."""
    told = spent(runs)
    return (
        " / ".join(str(told[what]["memory"]) if what in told else "–" for what in ("fedavg", *EFFORTS)) if told else "–"
    )


def newcomers(cases: dict[str, list[dict[str, Any]]]) -> str:
    head = ["federation", "newcomers", "their own Local", "joined", "worse than Local (both)", "floor"]
    rows = []
    for case, runs in cases.items():
        late = [run["newcomers"] for run in runs]
        count = {key: sum(entry[key] for entry in late) for key in ("clients", "worse", "worse_both", "floor")}
        means = [shown(float(np.mean([entry[key] for entry in late])), runs) for key in ("local", "joined")]
        rows.append(
            [case, str(count["clients"]), *means, f"{count['worse']} ({count['worse_both']})", str(count["floor"])]
        )
    total = {
        key: sum(run["newcomers"][key] for runs in cases.values() for run in runs)
        for key in ("clients", "worse", "worse_both", "floor")
    }
    text = (
        f"Of {total['clients']} newcomers {total['worse']} are significantly worse than their own Local, {total['worse_both']} than both; "
        f"of their Locals with another seed {total['floor']} are worse than the first."
    )
    return f"### Newcomers\n\n{text}\n\n" + markdown(head, rows)


def every(cases: dict[str, list[dict[str, Any]]]) -> str:
    """The deployed models of every fixed method."""
    rows = [[case, *(cell(runs, method) for method in FIXED)] for case, runs in cases.items()]
    return "### Every fixed method, as it deploys\n\n" + markdown(["federation", *FIXED], rows)
