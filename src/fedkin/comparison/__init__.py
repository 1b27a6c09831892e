"""Comparing: train several algorithms with several seeds, and say who does best and who gains."""

from fedkin.comparison.comparison import Comparison, compare, train_all

__all__ = ["Comparison", "compare", "train_all"]
