"""Fitted estimators on disk, without pickle: skops, and of it only types that are known to hold nothing but numbers.

`estimators.skops` holds client → estimator. Beside what skops trusts by itself, trees of scikit-learn are let in, and their
nodes are checked before anybody walks along them: compiled code follows a child's number without looking. Estimators with any
other type in them are not saved; `fedkin.resume` fits them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedkin.errors import FedkinError

ESTIMATORS_FILE = "estimators.skops"
TREES = ("sklearn.tree._tree.Tree", "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor")
"""Types that skops leaves to us to trust."""


def estimators_to_bytes(models: Mapping[str, Any]) -> bytes | None:
    """The estimators that can be saved; None where there are none, or skops is not installed."""
    try:
        from skops import io
    except ImportError:
        return None
    kept = {}
    for name in models:
        try:
            model = models[name]
        except FedkinError:  # a result that was loaded may lack some
            continue
        if isinstance(model, nn.Module) or not hasattr(model, "get_params"):
            continue
        try:
            alone = io.dumps(model)
            sound = set(io.get_untrusted_types(data=alone)) <= set(TREES)
            _check_trees(model)
        except Exception:  # an estimator of somebody's own may hold anything at all
            sound = False
        if sound:
            kept[name] = model
    return io.dumps(kept) if kept else None


class SavedEstimators(Mapping[str, Any]):
    """The estimators of a saved run, read when the first is asked for."""

    def __init__(self, out: Path, names: tuple[str, ...]) -> None:
        self.out, self.names = out, names
        self._found: dict[str, Any] | None = None

    def __getitem__(self, name: str) -> Any:
        if self._found is None:
            self._found = _read(self.out / ESTIMATORS_FILE) if (self.out / ESTIMATORS_FILE).exists() else {}
        if name in self._found:
            return self._found[name]
        if name not in self.names:
            raise KeyError(name)
        raise FedkinError(
            f"{self.out} does not hold the estimator of client {name!r} (pip install skops saves scikit-learn's); "
            "fedkin.resume(dir, federation, model) fits it again"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def _read(path: Path) -> dict[str, Any]:
    try:
        from skops import io
    except ImportError:
        raise FedkinError(f"{path} is read with skops; install it: pip install skops") from None
    try:
        strange = sorted(set(io.get_untrusted_types(file=path)) - set(TREES))
        if strange:
            raise FedkinError(f"{path} holds a {strange[0]}, which fedkin does not write; it is not read")
        found = io.load(path, trusted=list(TREES))
        if not isinstance(found, dict):
            raise ValueError("no estimators by client")
        for model in found.values():
            _check_trees(model)
    except FedkinError:
        raise
    except Exception as problem:  # a damaged archive fails in any layer below
        raise FedkinError(
            f"{path} is damaged: {str(problem).splitlines()[0] if str(problem) else problem!r}"
        ) from problem
    return found


def _check_trees(model: Any, inputs: int = 0, seen: set[int] | None = None) -> None:
    """Every child of every tree inside of a model comes after its parent and exists, every feature is one there is.

    `inputs` is how many numbers the estimator around it takes, which scikit-learn compares with what it is given; a tree's own
    word for it is compared with nothing. Splits by category, which look into further tables, are refused, and so are scikit-learn's
    older gradient boosting, whose compiled code trusts the shape of a table of trees, and trees outside of an estimator.
    """
    from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor
    from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor
    from sklearn.tree._tree import Tree

    seen = set() if seen is None else seen
    if id(model) in seen:
        return
    seen.add(id(model))
    if isinstance(model, GradientBoostingClassifier | GradientBoostingRegressor):
        raise ValueError(f"a {type(model).__name__} is not read from files")
    if isinstance(model, Tree):
        inner = np.asarray(model.children_left) != -1
        ends = [np.asarray(model.children_left)[inner], np.asarray(model.children_right)[inner]]
        _check_nodes(np.flatnonzero(inner), ends, model.node_count, np.asarray(model.feature)[inner], inputs)
    elif isinstance(model, TreePredictor):
        nodes = model.nodes
        inner = nodes["is_leaf"] == 0
        ends = [nodes["left"][inner].astype(np.int64), nodes["right"][inner].astype(np.int64)]
        _check_nodes(np.flatnonzero(inner), ends, len(nodes), nodes["feature_idx"][inner], inputs)
        if (nodes["is_categorical"] != 0).any():
            raise ValueError("a tree splits by category, which is not read from files")
    elif isinstance(model, dict | list | tuple | np.ndarray):
        parts = model.values() if isinstance(model, dict) else model
        for part in parts if not isinstance(model, np.ndarray) or model.dtype == object else ():
            _check_trees(part, inputs, seen)
    elif hasattr(model, "__dict__") and type(model).__module__.startswith("sklearn."):
        inputs = int(getattr(model, "n_features_in_", inputs))
        for member in np.ravel(np.asarray(getattr(model, "estimators_", ()), dtype=object)):
            if int(getattr(member, "n_features_in_", inputs)) != inputs:  # a forest does not compare its trees' numbers
                raise ValueError("a part of an ensemble takes other inputs than the whole")
        for part in vars(model).values():
            _check_trees(part, inputs, seen)


def _check_nodes(own: np.ndarray, children: list[np.ndarray], count: int, features: np.ndarray, inputs: int) -> None:
    for ends in children:
        if (ends <= own).any() or (ends >= count).any():
            raise ValueError("a tree leads to a node that it lacks")
    if len(features) and (int(features.min()) < 0 or int(features.max()) >= inputs):
        raise ValueError("a tree asks for an input that there is not")
