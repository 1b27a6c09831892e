"""FedSKA's figures: the learned graph is shown with those clients side by side that belong together."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin import data, train
from fedkin.algorithms.fedska import FedSKA
from fedkin.papers.fedska import known, learned_graph

SOURCE: dict[str, Any] = {"name": "digits", "clients": 8, "partition": "labels:2"}


def test_clients_with_common_labels_belong_together() -> None:
    federation = data.load(seed=0, **SOURCE)
    truth = known(federation)
    labels = [set(np.flatnonzero(counts)) for counts in federation.label_counts("train")]
    assert np.array_equal(truth > 0, [[bool(a & b) for b in labels] for a in labels])
    assert np.allclose(np.diag(truth), 1)


def test_a_graph_that_is_given_follows_the_truth_and_is_shown_in_its_order() -> None:
    parameters = {"k": 3, "prior": 1.0, "lr": 0.05}
    found = learned_graph(0, SOURCE, "feature-mlp:8", rounds=1, parameters=parameters)
    assert found["pre"]["follows_truth"] > 0.8
    shown = np.asarray(found["matrix"])
    result = train(data.load(seed=0, **SOURCE), "feature-mlp:8", FedSKA(**parameters), rounds=1)
    as_it_came = result.learned_graph().adjacency.toarray()
    assert np.allclose(np.sort(shown.ravel()), np.sort(as_it_came.ravel()))
    away = np.abs(np.subtract.outer(np.arange(8), np.arange(8)))  # weight moves towards the diagonal
    assert (shown * away).sum() < (as_it_came * away).sum()
