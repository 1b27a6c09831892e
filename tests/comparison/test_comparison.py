from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from fedkin import ClientGraph, Comparison, Federation, compare, data, train
from fedkin.algorithm import Algorithm, Setting
from fedkin.algorithms import FedAvg, FedPnP, FedProx, FedU, Local
from fedkin.commands.show import comparison_table
from fedkin.errors import FedkinError
from fedkin.graphs.build import build
from fedkin.run import Run
from fedkin.run.callbacks import Callback


def digits(seed: int) -> Federation:
    return data.load("digits", clients=5, partition="dirichlet:0.5", seed=seed)


def regression() -> Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 30, 3)).astype(np.float32)
    return Federation.from_arrays({f"site-{k}": (x[k], x[k] @ np.array([1.0, 2.0, float(k)])) for k in range(4)})


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(digits, "mlr", ["fedavg", FedProx(mu=0.5)], seeds=[0, 1], rounds=3)


def test_local_joins_for_the_gains(found: Comparison) -> None:
    assert found.listed == ("fedavg", "fedprox")
    assert [(r.algorithm, r.config["run"]["seed"]) for r in found.results] == [
        (name, seed) for seed in (0, 1) for name in ("local", "fedavg", "fedprox")
    ]
    assert [entry["listed"] for entry in found.entries()] == [False, True, True] * 2


def test_local_trains_as_the_first_method_does() -> None:
    results = compare(digits(0), "mlr", [FedAvg(lr=0.3, epochs=2)], seeds=[0], rounds=1).results
    alone = compare(digits(0), "mlr", [Local(lr=0.3, epochs=2)], seeds=[0], rounds=1).results
    assert results[0].algorithm == alone[0].algorithm == "local"
    np.testing.assert_array_equal(results[0].models.rows, alone[0].models.rows)  # type: ignore[attr-defined]


def test_gains_count_clients_against_local_with_the_same_seed(found: Comparison) -> None:
    entries = {(e["algorithm"], e["seed"]): e for e in found.entries()}
    for (name, seed), entry in entries.items():
        mine, alone = ([e["clients"][c]["deployed"] for c in e["clients"]] for e in (entry, entries["local", seed]))
        assert entry["gained"] == sum(a > b for a, b in zip(mine, alone))
        assert entry["lost"] == sum(a < b for a, b in zip(mine, alone))
        assert entry["gained"] + entry["lost"] + entry["same"] == 5
        assert name != "local" or entry["same"] == 5
        gains = [client["gain"] for client in entry["clients"].values()]
        np.testing.assert_allclose(gains, np.array(mine) - np.array(alone))


def test_means_are_over_seeds(found: Comparison) -> None:
    line = next(line for line in found.means() if line["algorithm"] == "fedprox")
    own = [entry["accuracy"]["mean"] for entry in found.entries() if entry["algorithm"] == "fedprox"]
    assert line["accuracy"]["mean"] == pytest.approx(np.mean(own))
    assert line["seed_std"] == pytest.approx(np.std(own, ddof=1))
    assert line["seeds"] == [0, 1]


def test_regression_has_its_own_metric() -> None:
    entry = compare(regression(), "linear", ["fedavg"], seeds=[0], rounds=2).entries()[1]
    assert entry["metric"] == "mse"
    assert "accuracy" not in entry
    assert entry["mse"]["best5"] <= entry["mse"]["mean"] <= entry["mse"]["worst5"]
    better = [name for name, client in entry["clients"].items() if client["gain"] > 1e-12]
    assert entry["gained"] == len(better)


class Counted(Callback):
    """Counts the rounds that are trained."""

    rounds = 0

    def on_round(self, run: Any, record: Any) -> None:
        Counted.rounds += 1


def test_finished_runs_are_read_and_interrupted_ones_go_on(tmp_path: Path) -> None:
    def again(methods: list[str], **options: Any) -> Comparison:
        Counted.rounds = 0
        watch = options.pop("watch", lambda name, seed: [Counted()])
        return compare(digits, "mlr", methods, seeds=[0, 1], out=tmp_path, watch=watch, rounds=3, **options)

    first = again(["fedavg"])
    assert Counted.rounds == 2 * 2 * 3
    assert {path.name for path in tmp_path.iterdir()} == {
        *("local-seed0", "local-seed1", "fedavg-seed0", "fedavg-seed1", "comparison.json")
    }
    second = again(["fedavg", "fedprox"])
    assert Counted.rounds == 2 * 3, "only fedprox is new"
    for one in first.results:
        (other,) = [r for r in second.results if (r.algorithm, r.config["run"]) == (one.algorithm, one.config["run"])]
        np.testing.assert_array_equal(one.rows, other.rows)
        assert one.metrics == other.metrics
    entries = json.loads((tmp_path / "comparison.json").read_text())["results"]
    assert len(entries) == 6

    # As if the machine had died after the last checkpoint of a run.
    (tmp_path / "fedprox-seed1" / "result.safetensors").unlink()
    third = again(["fedavg", "fedprox"])
    assert Counted.rounds == 0, "the checkpoint of the last round is all there is to do"
    np.testing.assert_array_equal(third.results[-1].rows, second.results[-1].rows)

    with pytest.raises(FedkinError, match=r"algorithm\.mu = 0\.01, now it is 0\.5; choose another --out"):
        compare(digits, "mlr", [FedProx(mu=0.5)], seeds=[0], out=tmp_path, rounds=3)
    with pytest.raises(FedkinError, match=r"run\.rounds = 3, now it is 4"):
        compare(digits, "mlr", ["fedavg"], seeds=[0], out=tmp_path, rounds=4)


class Picky(FedAvg):
    """Refuses every setting; registered under a name of its own for this test only."""

    title: ClassVar[str] = "Picky"

    def check(self, setting: Setting) -> None:
        raise FedkinError("not this one")


@pytest.fixture
def picky() -> Any:
    Picky.name = "picky"
    yield Picky()
    Algorithm.registry.pop("picky", None)


def test_unfit_methods_are_refused_before_training_or_skipped(picky: Picky) -> None:
    with pytest.raises(FedkinError, match="picky: not this one"):
        compare(digits, "mlr", ["fedavg", picky], seeds=[0], rounds=1, watch=lambda name, seed: [Refuse()])
    found = compare(digits, "mlr", ["fedavg", picky], seeds=[0], rounds=1, skip_unfit=True)
    assert found.skipped == {"picky": "not this one"}
    assert [result.algorithm for result in found.results] == ["local", "fedavg"]


class Refuse(Callback):
    def on_start(self, run: Any) -> None:
        raise AssertionError("training has begun")


def test_a_run_that_diverges_is_noted_and_the_others_go_on() -> None:
    wild = FedProx(mu=1e30, lr=1e10, epochs=3)
    found = compare(regression(), "linear", [FedAvg(lr=0.01), wild], seeds=[0], rounds=2)
    assert [result.algorithm for result in found.results] == ["local", "fedavg"]
    (failure,) = found.failed
    assert (failure["algorithm"], failure["seed"]) == ("fedprox", 0)


def test_nothing_to_compare() -> None:
    with pytest.raises(FedkinError, match="name at least one method"):
        compare(digits, "mlr", [], seeds=[0])


def test_an_algorithm_is_listed_once() -> None:
    with pytest.raises(FedkinError, match="fedprox is listed twice"):
        compare(digits, "mlr", [FedProx(mu=0.1), FedProx(mu=1.0)], seeds=[0])


@pytest.mark.parametrize("federation", [digits, digits(0)], ids=["data drawn anew", "same data"])
def test_terminal_page_and_json_say_the_same(federation: Any, tmp_path: Path) -> None:
    found = compare(federation, "mlr", ["fedavg", "fedpnp"], seeds=[0, 1, 2], rounds=3)
    shown = json.loads(found.save(tmp_path).joinpath("comparison.json").read_text())["means"]
    terminal = comparison_table(found)
    cells = {str(column.header): list(column.cells) for column in terminal.columns}
    page = found.report(tmp_path / "page.html").read_text()
    rows = re.findall(r'<tr><th scope="row".*?</tr>', page)
    assert [line["algorithm"] for line in shown] == ["local", "fedavg", "fedpnp"]
    for k, line in enumerate(shown):
        values = {key: value for value, key in re.findall(r'<td data-value="([^"]*)" data-key="(\w+)">', rows[k])}
        assert float(values["deployed"]) == line["accuracy"]["mean"]
        assert float(values["over_seeds"]) == line["seed_std"]
        assert cells["± seeds"][k] == f"{100 * line['seed_std']:.1f}"
        assert cells["pre"][k] == f"{100 * line['pre']['mean']:.1f}"
        if line["algorithm"] == "local":
            assert (cells["gained/lost"][k], values["gained"]) == ("–", "")
            continue
        counts = f"{line['gained']} / {line['lost']}"
        assert cells["gained/lost"][k] == counts
        assert f">{counts}</td>" in rows[k]
        assert line["gained"] + line["lost"] + line["same"] == (15 if callable(federation) else 5)
    assert f"of {15 if callable(federation) else 5}" in str(terminal.caption)


def test_every_training_builds_one_run_and_every_graph_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, graphs = [], []
    make_run = Run.__init__

    def counted_run(self: Run, *args: Any, **options: Any) -> None:
        runs.append(args[3].name)
        make_run(self, *args, **options)

    def counted_graph(spec: str, *args: Any) -> ClientGraph:
        graphs.append(spec)
        return build(spec, *args)

    monkeypatch.setattr(Run, "__init__", counted_run)
    monkeypatch.setattr("fedkin.run.graph.build", counted_graph)
    found = compare(digits, "mlr", ["local", "fedavg", "fedpnp", FedU(eta=0.01)], seeds=[0, 1], rounds=1)
    assert len(found.results) == 8
    assert len(runs) == 12  # and a further one where FedPnP and FedU hold out a fold to judge by
    assert graphs == [FedPnP().default_graph(), FedU().default_graph()] * 2


def test_a_comparison_s_run_is_the_run_alone() -> None:
    together = compare(digits(3), "mlr", ["fedpnp", "fedsem"], seeds=[3], rounds=2)
    for result in together.results[1:]:
        single = train(digits(3), "mlr", result.algorithm, seed=3, rounds=2)
        np.testing.assert_array_equal(result.rows, single.rows)
        assert (result.facts["bytes"], result.facts["messages"]) == (single.facts["bytes"], single.facts["messages"])
        assert result.graph == single.graph
