"""FedRelax's figures: the paper's experiments as functions that return plain data, with reference values and claims."""

from fedkin.papers.fedrelax.bound import variation, variation_bound
from fedkin.papers.fedrelax.figures import figure_1a, figure_1b, figure_1c, figure_5a, figure_5b, variation_over_rounds
from fedkin.papers.fedrelax.trees import figure_2a, figure_2b, figure_3a, figure_3b, figure_4a, figure_4b

FIGURES = {
    "1a": figure_1a,
    "1b": figure_1b,
    "1c": figure_1c,
    "2a": figure_2a,
    "2b": figure_2b,
    "3a": figure_3a,
    "3b": figure_3b,
    "4a": figure_4a,
    "4b": figure_4b,
    "5a": figure_5a,
    "5b": figure_5b,
}
"""Name → function (runs, seed) → {"figure", "title", "metric", "rows", "claims", "seconds", …}."""

__all__ = ["FIGURES", *(f"figure_{name}" for name in FIGURES), "variation", "variation_bound", "variation_over_rounds"]
