"""FedRelax's figures 1 to 5 at full size: pictures, and the tables of docs/fedrelax.md.

Run: fedkin reproduce fedrelax.figure1a … fedrelax.figure5b --scale paper, then python examples/fedrelax_figures.py

The first computes what is not kept yet in results/: the linear figures (1, 3, 5) take some minutes each, those with
trees longer: figure 2 fits 67,500 trees, figure 4 as many on 15,000 points each.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt

from fedkin.files import write_atomic
from fedkin.papers.fedrelax import FIGURES
from fedkin.reproduction.kept import Kept

ROOT = Path(__file__).parents[1]
PICTURES, PAGE = ROOT / "docs" / "images", ROOT / "docs" / "fedrelax.md"
AXES = {"d": "dimension d (m = 10 samples)", "sigma": "noise σ", "p_in": "density p_in", "method": ""}


def draw(found: dict[str, Any], path: Path) -> None:
    """One curve per α with the spread over runs; bars where methods are compared; the bound of figure 5 dashed."""
    figure, ax = plt.subplots(figsize=(4.6, 3.2), layout="constrained")
    x = found["x"]
    if x == "method":
        rows = found["rows"]
        ax.barh([r["method"] for r in rows], [r["mean"] for r in rows], xerr=[r["std"] for r in rows], color="C0")
        ax.invert_yaxis()
        ax.set_xlabel(found["metric"])
    else:
        for number, alpha in enumerate(sorted({row["alpha"] for row in found["rows"]})):
            rows = [row for row in found["rows"] if row["alpha"] == alpha]
            places = [row[x] for row in rows]
            spread = [row["std"] for row in rows]
            ax.errorbar(
                places, [r["mean"] for r in rows], spread, marker="o", color=f"C{number}", label=f"α = {alpha:g}"
            )
            if "bound" in rows[0]:
                ax.plot(places, [row["bound"] for row in rows], "--", color=f"C{number}")
        if "bound" in found["rows"][0] or found["figure"] == "1b":
            ax.set_yscale("log")
        ax.set(xlabel=AXES[x], ylabel=found["metric"])
        ax.legend(fontsize="small")
    ax.set_title(f"Figure {found['figure']}. {found['title']}", fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def table(found: dict[str, Any]) -> str:
    """The numbers beside the reference values, and the claims."""
    count = len(found["rows"][0]["runs"])
    lines = [f"**Figure {found['figure']}. {found['title']}** ({found['metric']}, mean ± std of {count} runs)", ""]
    lines += [f"![Figure {found['figure']}](images/fedrelax-{found['figure']}.png)", ""]
    bound = "bound" in found["rows"][0]
    head = [found["x"], *(["α"] if found["x"] != "method" else []), "here", "reference"]
    lines.append("| " + " | ".join([*head, *(["bound here", "reference"] if bound else [])]) + " |")
    lines.append("|" + "---|" * (len(head) + 2 * bound))
    for row in found["rows"]:
        cells = [str(row[found["x"]]), *([f"{row['alpha']:g}"] if "alpha" in row else [])]
        cells += [f"{row['mean']:.3g} ± {row['std']:.2g}", _known(row["reference"])]
        cells += [f"{row['bound']:.3g}", _known(row["reference_bound"])] if bound else []
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *(f"- {claim['says']}: **{'yes' if claim['holds'] else 'no'}**" for claim in found["claims"]), ""]
    return "\n".join(lines)


def _known(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


def main() -> None:
    """Draw all figures that are kept, and put their tables on the page."""
    texts, kept = [], Kept(ROOT / "results")
    for name in FIGURES:
        for record in kept.of(f"fedrelax.figure{name}", "paper"):
            draw(record["figure"], PICTURES / f"fedrelax-{name}.png")
            texts.append(table(record["figure"]))
    marked = re.compile(r"(<!-- figures -->\n).*(<!-- end of figures -->)", re.DOTALL)
    page = marked.sub(lambda m: m[1] + "\n" + "\n".join(texts) + "\n" + m[2], PAGE.read_text())
    write_atomic(PAGE, page.encode())
    print(f"{len(texts)} of {len(FIGURES)} figures drawn")


if __name__ == "__main__":
    main()
