"""Published tables keep the papers' values whatever fedkin's own defaults are."""

from __future__ import annotations

from fedkin import data
from fedkin.algorithms import FedPnP, FedSKA
from fedkin.papers.originals import ORIGINALS, as_published, published_graph


def test_every_original_differs_from_the_default() -> None:
    for name, parameters in ORIGINALS.items():
        default = type(as_published(name, {}))()
        for key, value in parameters.items():
            assert getattr(default, key) != value, f"{name}.{key} need not be pinned"


def test_a_table_has_the_last_word() -> None:
    assert as_published("fedu", {}).model_dump()["eta"] == 0.01
    assert as_published("fedu", {"eta": 0.05, "epochs": 5}).model_dump()["eta"] == 0.05
    assert as_published("local", {}).epochs == 1


def test_the_statistics_graph_is_the_papers_unless_a_table_names_another() -> None:
    federation = data.load("digits", clients=4, seed=0)
    assert published_graph(None, FedPnP(), federation) == "statistics:published"
    assert published_graph("knn:2", FedPnP(), federation) == "knn:2"
    assert published_graph("knn:2", FedSKA(), federation) is None
