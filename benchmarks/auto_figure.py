"""The picture of docs/auto.md: how much of Local's test error auto and others take away, federation by federation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from auto_page import Records, best_fixed, larger_is_better, mean
from PIL import Image

SHOWN = (
    ("fedavgft", "FedAvg + fine-tuning", "o", "#b0aea6"),
    ("one for all, by validation", "one method for all, by validation", "s", "#8a8880"),
    ("best fixed", "best fixed method, chosen on test", "D", "#d9822b"),
    ("auto quick", "auto, quick", "o", "#7fa8d8"),
    ("auto standard", "auto", "o", "#1f5fa8"),
)


def error(value: float, runs: Records) -> float:
    """What is wrong: 1 − accuracy, or the MSE."""
    return 1 - value if larger_is_better(runs) else value


def gain(runs: Records, method: str) -> float:
    """The share of Local's test error that a method takes away, in %; the mean over clients is taken first."""
    reached = best_fixed(runs)[1] if method == "best fixed" else mean(runs, method)
    local = error(mean(runs, "local"), runs)
    return 100 * (1 - error(reached, runs) / local)


def draw(cases: Mapping[str, Records], path: Path) -> None:
    """One row per federation, sorted by what auto gains."""
    from matplotlib.figure import Figure

    names = sorted(cases, key=lambda case: gain(cases[case], "auto standard"))
    figure = Figure(figsize=(8, 0.32 * len(names) + 1.6), layout="constrained")
    axes = figure.subplots()
    for method, label, marker, colour in SHOWN:
        values = [max(gain(cases[name], method), -50.0) for name in names]  # further left says no more
        axes.plot(
            values, range(len(names)), marker, color=colour, label=label, ms=8 if method == "auto standard" else 6
        )
    axes.axvline(0, color="#444441", lw=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("share of Local's test error that goes away, % (cut at −50)")
    axes.grid(axis="x", color="#e5e4df")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, dpi=100)
    with Image.open(path) as drawn:  # a small file: few colours
        picture = drawn.convert("RGB").quantize(64, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)
