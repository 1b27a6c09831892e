"""The section of a page about auto: client by client, alone and together, with whose help."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fedkin.result import Result
from fedkin.result.contenders import Contender
from fedkin.result.verdict import combination, distilled_text, gain_text, kin_of, sentence, trained_alone

LONG = 25
"""More rows than this scroll in a box of their own."""

MOST_ROWS = 500
"""More clients than this would make a page that nobody reads."""


def with_alone(results: Sequence[Result]) -> list[Result]:
    """The runs and, for those of auto that have no run of Local beside them, what their clients reached alone."""
    there = any(result.algorithm == "local" for result in results)
    return [*results, *(trained_alone(result) for result in results if "alone" in result.facts and not there)]


def section(methods: Sequence[Contender]) -> str:
    """HTML about every run of auto among the methods; empty where there is none."""
    return "".join(_about(method.first) for method in methods if "auto" in method.first.facts)


def _about(result: Result) -> str:
    heads = ("Client", "Samples", "Alone", "Together", "Expected gain", "Model", "Kin")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    tall = " tall" if len(result.names) > LONG else ""
    rows = "".join(_row(result, k) for k in range(min(len(result.names), MOST_ROWS)))
    return (
        '<section id="together" aria-labelledby="together-h"><div class="head"><h2 id="together-h">Alone and together</h2>'
        f'</div><p class="about">{escape(sentence(result))} Alone and together: test {escape(result.task.headline_metric.label)}. The gain is that to '
        "expect on new samples, in loss per sample with its 95 % interval, judged on training samples that the models had "
        f'not seen.{escape(_distilled(result))}</p><div class="scroll plain{tall}" tabindex="0" role="region" aria-label="Alone and together">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _distilled(result: Result) -> str:
    if "distilled" not in result.facts:
        return ""
    text = distilled_text(result)
    return f" {text[0].upper()}{text[1:]}."


def _row(result: Result, k: int) -> str:
    name = result.names[k]
    told, metric = result.auto[name], result.task.headline_metric
    cells = (
        f"{int(result.sizes[k]):,}",
        metric.amount(result.facts["alone"][result.metric][k]),
        metric.amount(result.metrics["deployed"][result.metric][k]),
        gain_text(told),
        ", ".join(combination(told)),
        ", ".join(kin_of(result, k)) or "–",
    )
    return f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
