"""Names and forms that others build on: each is tried as somebody would who has read of it, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedkin
from fedkin import algorithms
from fedkin.cli import app
from fedkin.config import settle

PRIVATE = {"level": "sample", "epsilon": 6, "delta": 1e-5, "clip": 1.0}
METHODS = [
    "local", "fedavg", "fedprox", "fedbn", "perfedavg", "pfedme", "scaffold", "afl", "mocha", "ditto", "ifca",
    "fedsem", "sfl", "pfedbayes", "global", "fedpnp", "fedu", "dfedu", "fedcedar", "fedska", "fedrelax", "kin",
    "pfedgraph", "fedfomo", "knnper", "feddbe", "fedala", "mrmtl", "fedbabu", "fedrod", "lgfedavg", "fedproto",
    "cfl", "networklasso",
]  # fmt: skip


@pytest.fixture(scope="module")
def digits() -> fedkin.Federation:
    return fedkin.data.load("digits", clients=4, partition="dirichlet:0.3", seed=0)


@pytest.fixture(scope="module")
def together(digits: fedkin.Federation) -> fedkin.Result:
    return fedkin.auto(digits, "mlr", effort="quick", rounds=2)


def test_every_method_has_its_name() -> None:
    assert set(METHODS) <= set(algorithms.names())


@pytest.mark.parametrize("given", [fedkin.algorithms.FedU(), fedkin.algorithms.FedU, "fedu"])
def test_a_method_is_an_object_a_class_or_a_name(digits: fedkin.Federation, given: object) -> None:
    assert fedkin.train(digits, "mlr", given, rounds=1).algorithm == "fedu"  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [None, 3])
def test_what_is_no_method_is_refused_in_a_line(digits: fedkin.Federation, given: object) -> None:
    with pytest.raises(fedkin.FedkinError, match=r"^\S+ is no method; give one such as FedAvg"):
        fedkin.train(digits, "mlr", given, rounds=1)  # type: ignore[arg-type]


def test_parameters_are_named() -> None:
    with pytest.raises(fedkin.FedkinError, match=r"by name, such as FedProx\(lr=0.1\)"):
        fedkin.algorithms.FedProx(0.1)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "fedpnp"])
def test_every_method_has_a_schedule_of_the_rate(name: str) -> None:
    assert algorithms.make(name, {"schedule": "cosine:5"}) == algorithms.make(name, {"lr_schedule": "cosine:5"})


def test_fedpnp_has_a_schedule_of_the_strength_as_well() -> None:
    both = fedkin.algorithms.FedPnP(schedule="constant", lr_schedule="cosine:5")
    assert (both.schedule, both.lr_schedule) == ("constant", "cosine:5")
    of_rate = fedkin.algorithms.FedPnP(schedule="cosine:5")
    assert (of_rate.schedule, of_rate.lr_schedule) == ("gradual", "cosine:5")


def test_the_schedule_is_set_in_files_and_by_flags() -> None:
    base = {"data": {"name": "digits"}, "algorithms": {"fedavg": {}, "fedpnp": {}}}
    in_file = settle([{**base, "training": {"schedule": "cosine:5"}}])
    by_flag = settle([base], {"schedule": "cosine:5"})
    for settings in (in_file, by_flag):
        assert [method.lr_schedule for method in settings.algorithms.values()] == ["cosine:5", "cosine:5"]


def test_robust_and_private_by_arguments(digits: fedkin.Federation) -> None:
    guarded = fedkin.train(digits, "mlr", "fedavg", rounds=1, robust="median")
    by_method = fedkin.train(digits, "mlr", fedkin.algorithms.FedAvg(robust="median"), rounds=1)
    assert np.array_equal(guarded.rows, by_method.rows)
    assert guarded.privacy == {}
    with pytest.raises(fedkin.FedkinError, match="unknown defence 'medium'; did you mean 'median'"):
        fedkin.train(digits, "mlr", "fedavg", rounds=1, robust="medium")
    found = fedkin.compare(digits, "mlp:8", "fedavg, fedproto", seeds=1, rounds=1, robust="median")
    assert [result.config["algorithm"].get("robust") for result in found.results if result.algorithm != "local"] == [
        "median",
        None,
    ]


def test_a_result_tells_what_each_client_spent(digits: fedkin.Federation, tmp_path: Path) -> None:
    result = fedkin.train(digits, "mlr", "fedavg", rounds=2, privacy=PRIVATE)
    assert list(result.privacy) == list(digits.names)
    assert all(0 < spent <= 6 for spent in result.privacy.values())
    assert fedkin.load(result.save(tmp_path / "run")).privacy == result.privacy


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"level": "sample", "eps": 6, "delta": 1e-5},
            "fedavg: privacy = .* is not allowed: unknown key 'eps'; did you mean 'epsilon'[?]",
        ),
        ({"level": "sample", "delta": 1e-5}, "fedavg: privacy.epsilon is missing"),
    ],
)
def test_a_table_of_privacy_that_is_none(digits: fedkin.Federation, table: dict[str, object], message: str) -> None:
    with pytest.raises(fedkin.FedkinError, match=f"^{message}$"):
        fedkin.train(digits, "mlr", "fedavg", rounds=1, privacy=table)


def test_seeds_of_a_comparison_are_how_many_or_which(digits: fedkin.Federation) -> None:
    for given, seeds in ((2, [0, 1]), ([3], [3])):
        found = fedkin.compare(digits, "mlr", "local", seeds=given, rounds=1)
        assert [result.config["run"]["seed"] for result in found.results] == seeds
    with pytest.raises(fedkin.FedkinError, match="seeds is 0; at least one"):
        fedkin.compare(digits, "mlr", "local", seeds=0)


def test_what_auto_leaves(together: fedkin.Result, digits: fedkin.Federation) -> None:
    for name, told in together.auto.items():
        assert sum(told["members"].values()) == pytest.approx(1)
        assert isinstance(told["kept_alone"], bool)
        gain, low, high = told["gain"]
        assert low <= gain <= high
        model = together.models[name]
        assert model.outputs == "logits"
        chances = torch.softmax(model(torch.zeros(2, 64)), dim=-1)
        assert torch.allclose(chances.sum(dim=-1), torch.ones(2))
    assert together.kin is not None
    assert together.kin.shape == (4, 4)


def test_auto_on_numbers_says_so() -> None:
    rng = np.random.default_rng(0)
    sites = {f"site-{k}": (x := rng.normal(size=(30, 3)), x.sum(axis=1)) for k in range(3)}
    result = fedkin.auto(fedkin.Federation.from_arrays(sites), "linear", effort="quick", rounds=2)
    assert {model.outputs for model in result.models.values()} == {"numbers"}


def test_newcomers_join_by_name(together: fedkin.Result) -> None:
    later = fedkin.data.load("digits", clients=6, seed=5).take([4, 5])
    assert together.join(later).names == ("client-04", "client-05")
    assert together.join(later, name="client-05").names == ("client-05",)
    assert fedkin.join(together, later.take([0]), name="Köln").names == ("Köln",)
    with pytest.raises(fedkin.FedkinError, match="unknown newcomer 'Köln'"):
        together.join(later, name="Köln")


def test_suggestions_are_made_once() -> None:
    for name in ("fedavgg", "foo"):
        with pytest.raises(fedkin.FedkinError) as refused:
            algorithms.make(name)
        suggested = str(refused.value).partition("did you mean ")[2].rstrip("?").split(", ")
        assert len(set(suggested)) == len(suggested)


def test_a_graph_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(fedkin.FedkinError, match=r"none\.npz does not exist; give the path of an \.npz file$"):
        fedkin.ClientGraph.load(tmp_path / "none.npz")


def test_robust_is_a_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shared = ["--data", "digits", "--clients", "4", "--model", "mlp:8", "--rounds", "1", "--robust", "median"]
    run = CliRunner().invoke(app, ["run", *shared, "--out", "run", "--json", "run.json"])
    assert run.exit_code == 0, run.output
    assert {"config.toml", "checkpoints", "history.jsonl", "result.safetensors"} <= {
        path.name for path in Path("run").iterdir()
    }
    assert json.loads(Path("run.json").read_text())["config"]["algorithm"]["robust"] == "median"
    compared = CliRunner().invoke(
        app, ["compare", *shared, "--algorithms", "fedavg,fedproto", "--json", "comparison.json"]
    )
    assert compared.exit_code == 0, compared.output
    for entry in json.loads(Path("comparison.json").read_text())["results"]:
        assert {"algorithm", "seed", "accuracy"} <= set(entry)
        assert {"mean", "std", "best5", "worst5"} <= set(entry["accuracy"])
