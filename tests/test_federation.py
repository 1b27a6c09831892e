"""Federation: reading, splitting, and what it says about bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin import ClientGraph, Federation, FedkinError
from fedkin.federation.split import stratified


def arrays(n: int = 20, d: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), np.arange(n) % 2


@given(
    n=st.integers(1, 80),
    classes=st.integers(1, 5),
    test=st.floats(0, 0.6),
    validation=st.floats(0, 0.35),
    seed=st.integers(0, 1000),
)
def test_splits_are_disjoint_complete_and_stratified(
    n: int, classes: int, test: float, validation: float, seed: int
) -> None:
    labels = np.random.default_rng(seed).integers(0, classes, n)
    parts = stratified(n, labels, test, validation, np.random.default_rng(seed))
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(n))
    assert len(parts["train"]) >= 1
    if len(parts["test"]) == round(test * n):
        for label in range(classes):
            expected = test * (labels == label).sum()
            assert abs((labels[parts["test"]] == label).sum() - expected) <= classes + 1


def test_a_client_keeps_its_split_whatever_its_place() -> None:
    clients = {f"c{k}": arrays(seed=k) for k in range(4)}
    straight = Federation.from_arrays(clients)
    turned = Federation.from_arrays(dict(reversed(clients.items())))
    for name in clients:
        for part in ("train", "test"):
            mine = getattr(straight, part)[straight.index(name)]
            theirs = getattr(turned, part)[turned.index(name)]
            assert np.array_equal(mine[0], theirs[0])


def test_labels_may_be_anything_that_sorts() -> None:
    x = np.zeros((8, 2))
    federation = Federation.from_arrays({"a": (x, np.array(list("yxyxyxyx"))), "b": (x, np.array(list("zzxxzzxx")))})
    assert federation.task.classes == ("x", "y", "z")
    assert federation.label_counts().shape == (2, 3)


def test_own_splits_are_kept() -> None:
    x, y = arrays(10)
    federation = Federation.from_arrays({"a": {"train": (x[:6], y[:6]), "test": (x[6:], y[6:])}, "b": (x, y)})
    assert federation.train.sizes[0] == 6
    assert federation.test.sizes[0] == 4
    assert federation.validation.sizes.tolist() == [0, 0]


def test_from_frame_and_from_datasets_agree_with_arrays() -> None:
    x, y = arrays(40)
    site = np.repeat(["north", "south"], 20)
    frame = pd.DataFrame(x.astype(np.float32), columns=["p", "q", "r"]).assign(site=site, label=y)
    tabular = Federation.from_frame(frame, client="site", target="label", standardise=False)
    halves = {"north": slice(0, 20), "south": slice(20, 40)}
    direct = Federation.from_arrays({k: (x[s].astype(np.float32), y[s]) for k, s in halves.items()})
    sets = {
        k: torch.utils.data.TensorDataset(torch.tensor(x[s], dtype=torch.float32), torch.tensor(y[s]))
        for k, s in halves.items()
    }
    assert tabular.fingerprint() == direct.fingerprint() == Federation.from_datasets(sets).fingerprint()


def test_take_keeps_data_graph_and_truth_together() -> None:
    clients = {f"c{k}": arrays(10 + k, seed=k) for k in range(3)}
    graph = ClientGraph(np.array([[0, 1, 0], [1, 0, 2], [0, 2, 0]]), names=list(clients))
    federation = Federation.from_arrays(clients, graph=graph, truth={"cluster": np.array([5, 6, 7])})
    taken = federation.take([2, 0])
    assert taken.names == ("c2", "c0")
    assert np.array_equal(taken.train[0][0], federation.train[2][0])
    assert taken.truth["cluster"].tolist() == [7, 5]
    assert taken.graph is not None
    assert taken.graph.names == ("c2", "c0")


X, Y = arrays()
BAD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("nan", {"a": (X, Y), "b": (np.where(np.arange(60).reshape(20, 3) == 7, np.nan, X), Y)}, {}, "client 'b'.*NaN"),
    ("inf target", {"a": (X, X[:, 0]), "b": (X, X[:, 0] * np.inf)}, {}, "client 'b'.*y of its .* infinity"),
    ("missing class", {"a": (X, Y), "b": (X, Y + 1)}, {"classes": [0, 1]}, "client 'b' holds label .*2.*add it"),
    ("shapes", {"a": (X, Y), "b": (X[:, :2], Y)}, {}, r"client 'b'.*shape \(2,\).*'a'"),
    ("empty", {"a": (X, Y), "b": (X[:0], Y[:0])}, {}, "client 'b' has no samples"),
    ("length", {"a": (X, Y), "b": (X, Y[:5])}, {}, "client 'b': X has 20 rows but y has 5"),
    ("text", {"a": (np.array([["u"]] * 4), Y[:4])}, {}, "client 'a'.*not numbers"),
    ("one class", {"a": (X, Y * 0)}, {}, "single class"),
    ("mixed targets", {"a": (X, Y), "b": (X, X[:, 0])}, {}, "some clients have labels"),
    ("no pair", {"a": X}, {}, r"client 'a': expected a pair \(X, y\)"),
    ("fraction", {"a": (X, Y)}, {"test_fraction": 1.5}, "test_fraction is 1.5"),
    ("public", {"a": (X, Y)}, {"public": {"a": X[:, :2]}}, r"client 'a': its public set.*\(2,\)"),
    ("task", {"a": (X, Y)}, {"task": "classificaton"}, "did you mean 'classification'"),
    ("nobody", {}, {}, "at least one client"),
]


@pytest.mark.parametrize(("clients", "options", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_input_names_the_client_and_the_fix(clients: Any, options: Any, message: str) -> None:
    with pytest.raises(FedkinError, match=message) as problem:
        Federation.from_arrays(clients, **options)
    assert "\n" not in str(problem.value)


def test_missing_columns_list_near_matches() -> None:
    frame = pd.DataFrame({"site": ["a"], "label": [1], "x": [0.0]})
    with pytest.raises(FedkinError, match="unknown client column 'sites'; did you mean 'site'"):
        Federation.from_frame(frame, client="sites", target="label")


def test_public_sets_may_be_common() -> None:
    federation = Federation.from_arrays({"a": (X, Y)}, public=X[:4])
    assert federation.public is not None
    assert federation.public["*"].shape == (4, 3)
