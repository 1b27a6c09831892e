"""The page's section about privacy: what every client has spent, and what each can have learned of every other."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from fedkin.result import Result
from fedkin.result.contenders import Contender

MOST_NAMED = 40
"""A table or a matrix of more clients than this is left to `fedkin privacy` and `result.extras`."""


def privacy_section(methods: Sequence[Contender]) -> str:
    """Nothing for runs without privacy."""
    private = [(method.label, method.first) for method in methods if "privacy" in method.first.facts]
    if not private:
        return ""
    body = "".join(f"<h3>{escape(label)}</h3>{_told(run)}" for label, run in private)
    return (
        '<section id="privacy" aria-labelledby="privacy-h"><div class="head"><h2 id="privacy-h">Privacy</h2></div>'
        f"{body}</section>"
    )


def _told(run: Result) -> str:
    asked, spent = run.facts["privacy"], run.extras["epsilon"].numpy()
    what = "one training sample of a client" if asked["level"] == "sample" else "one whole client"
    words = (
        f"Hides {what}: ε spent {spent.min():.3g} to {spent.max():.3g} of {asked['epsilon']:g}, δ = {asked['delta']:g}, "
        f"clipped to norm {asked['clip']:g}."
    )
    if not asked["secret_noise"]:
        words += " The noise came from --insecure-noise-seed: this run protects nobody."
    parts = [f'<p class="about">{escape(words)}</p>']
    if len(run.names) <= MOST_NAMED:
        lines = "".join(
            f'<tr><th scope="row">{escape(name)}</th><td>{value:.3f}</td></tr>' for name, value in zip(run.names, spent)
        )
        parts.append(
            f'<div class="scroll"><table><thead><tr><th>Client</th><th>ε spent</th></tr></thead><tbody>{lines}</tbody></table></div>'
        )
        if "exposure" in run.extras:
            parts.append(_matrix(run.names, run.extras["exposure"].numpy()))
    return "".join(parts)


def _matrix(names: Sequence[str], exposure: np.ndarray) -> str:
    """ε_ij as a picture: row i is who learns, column j of whom."""
    side, top, room = 14, float(exposure.max()) or 1.0, 6.6 * min(24, max(map(len, names))) + 8
    cells = "".join(
        f'<rect x="{side * j}" y="{side * i}" width="{side - 1}" height="{side - 1}" fill="currentColor" '
        f'fill-opacity="{0.05 + 0.95 * value / top:.3f}"><title>{escape(names[i])} of {escape(names[j])}: ε ≤ {value:.3g}</title></rect>'
        for i, row in enumerate(exposure)
        for j, value in enumerate(row)
    )
    width = side * len(names)
    labels = "".join(
        f'<text x="-5" y="{side * i + 10}" text-anchor="end">{escape(name[:24])}</text>'
        f'<text transform="translate({side * i + 10} {width + 6}) rotate(-90)" text-anchor="end">{escape(name[:24])}</text>'
        for i, name in enumerate(names)
    )
    return (
        '<p class="about">What a client (row) can have learned of another (column) through the couplings: ε at most '
        f"{top:.3g}, fainter is less, 0 where nothing can have come.</p>"
        f'<svg viewBox="{-room} 0 {width + room} {width + room}" width="{width + room}" role="img" '
        f'aria-label="Pairwise privacy: who learns, row, of whom, column">{labels}{cells}</svg>'
    )
