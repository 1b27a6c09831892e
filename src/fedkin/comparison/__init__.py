"""Comparing: train several algorithms with several seeds, and say who does best and who gains."""

from fedkin.comparison.comparison import Comparison, compare, train_all
from fedkin.comparison.graph_choice import GraphChoice, choose_graph

__all__ = ["Comparison", "GraphChoice", "choose_graph", "compare", "train_all"]
