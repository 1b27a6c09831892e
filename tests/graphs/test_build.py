from __future__ import annotations

import numpy as np
import pytest

from fedkin.errors import FedkinError
from fedkin.graphs import ClientGraph, build, builder, builders, similarity
from fedkin.graphs.build import specs

NAMES = [f"site-{k}" for k in range(8)]
RNG = np.random.default_rng(0)
TOLD = {
    "statistics": RNG.normal(size=(8, 4, 3)),
    "label_counts": RNG.integers(0, 5, size=(8, 4)),
    "sizes": RNG.integers(10, 100, size=8),
    "coordinates": RNG.uniform(40, 45, size=(8, 2)),
}


@pytest.mark.parametrize(
    ("spec", "needs"),
    [
        ("complete", set()),
        ("empty", set()),
        ("equal", set()),
        ("random", set()),
        ("statistics", {"statistics"}),
        ("statistics:gaussian", {"statistics"}),
        ("statistics:published", {"statistics"}),
        ("statistics:moments=mean+variance:gaussian:max", {"statistics"}),
        ("statistics:literal_raw:mean_degree", {"statistics"}),
        ("gaussian", {"statistics"}),
        ("knn:3", {"statistics"}),
        ("labels", {"label_counts"}),
        ("shared-labels", {"label_counts"}),
        ("sizes", {"sizes"}),
        ("coordinates:2", {"coordinates"}),
        ("coordinates:400km", {"coordinates"}),
    ],
)
def test_only_what_is_needed_is_disclosed(spec: str, needs: set[str]) -> None:
    asked = set()

    def disclosed(what: str) -> np.ndarray:
        asked.add(what)
        return TOLD[what]

    graph = build(spec, NAMES, disclosed, seed=1)
    assert graph.names == tuple(NAMES)
    assert asked == needs
    if spec != "empty":
        assert graph.n_edges > 0


def test_specs_reach_the_right_builder() -> None:
    told = TOLD.__getitem__
    assert build("statistics:literal", NAMES, told) == similarity.from_statistics(TOLD["statistics"], NAMES, "literal")
    assert build("labels", NAMES, told) == builders.label_overlap(TOLD["label_counts"], NAMES)
    assert build("equal:0.2", NAMES, told) == builders.equal(NAMES, 0.2)
    assert build("random", NAMES, told, seed=5) == builders.random(NAMES, 5)
    assert build("shared-labels:1", NAMES, told) == builders.shared_labels(TOLD["label_counts"], NAMES, main=1)


def test_unknown_and_malformed_specs() -> None:
    with pytest.raises(FedkinError, match=r"unknown graph 'statistic'; did you mean 'statistics'"):
        build("statistic", NAMES, TOLD.__getitem__)
    for spec in ("knn:five", "knn:2.5", "equal:x", "empty:3", "labels:2", "statistics:similar", "coordinates:xkm"):
        with pytest.raises(FedkinError):
            build(spec, NAMES, TOLD.__getitem__)


def test_files_are_aligned(tmp_path) -> None:
    graph = builders.random(NAMES, 0)
    graph.take([3, 1, 0, 2, 7, 6, 5, 4]).save(tmp_path / "g.npz")
    assert build(str(tmp_path / "g.npz"), NAMES, TOLD.__getitem__) == graph
    graph.take([3, 1, 0, 2, 7, 6, 5, 4]).to_csv(tmp_path / "g.csv")
    assert build(str(tmp_path / "g.csv"), NAMES, TOLD.__getitem__) == graph
    with pytest.raises(FedkinError, match="site-9"):
        build(str(tmp_path / "g.npz"), [*NAMES, "site-9"], TOLD.__getitem__)


def test_a_new_builder_needs_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys.modules["fedkin.graphs.build"], "_BUILDERS", {})

    @builder("star")
    def star(names, disclosed, seed, option):  # type: ignore[no-untyped-def]
        adjacency = np.zeros((len(names), len(names)))
        adjacency[0, 1:] = adjacency[1:, 0] = 1
        return ClientGraph(adjacency, names)

    assert specs() == ("star",)
    assert len(build("star", NAMES, TOLD.__getitem__).neighbours("site-0")) == 7
