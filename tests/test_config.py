from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedkin import algorithms
from fedkin.config import Experiment, NamedData, OwnTable, origins, parse_assignments, read_toml, settle
from fedkin.errors import FedkinError
from fedkin.run import make_options
from fedkin.streams import parse_seeds

DIGITS = {"data": {"name": "digits", "clients": 4}}


def given(settings: Experiment) -> dict[str, dict[str, Any]]:
    """The parameters that were given, without defaults."""
    return {name: algorithm.model_dump(exclude_unset=True) for name, algorithm in settings.algorithms.items()}


def write(folder: Path, text: str) -> Path:
    path = folder / "experiment.toml"
    path.write_text(text)
    return path


def test_a_file_says_everything(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        model = "mlp:16"
        graph = "knn:3"
        [data]
        name = "digits"
        clients = 6
        [training]
        lr = 0.2
        [algorithms.fedavg]
        [algorithms.fedprox]
        mu = 0.5
        [run]
        rounds = 7
        seeds = 2
        """,
    )
    settings = settle([read_toml(path)])
    assert isinstance(settings.data, NamedData)
    assert (settings.data.clients, settings.model, settings.graph) == (6, "mlp:16", "knn:3")
    assert given(settings) == {"fedavg": {"lr": 0.2}, "fedprox": {"lr": 0.2, "mu": 0.5}}
    assert settings.seeds == (0, 1)
    assert settings.options[1].rounds == 7
    assert settings.algorithms["fedprox"].lr == 0.2


def test_flags_override_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, 'data = "digits"\n[run]\nrounds = 7\nseed = 3\n[algorithm]\nname = "fedprox"\nmu = 0.5\n')
    flags = {"run": {"rounds": 9}, "data": {"clients": 3}}
    settings = settle([read_toml(path), flags], {"mu": 2.0})
    assert settings.options[0].rounds == 9
    assert settings.seeds == (3,)
    assert given(settings) == {"fedprox": {"mu": 2.0}}
    assert settings.federation(3).names == ("client-00", "client-01", "client-02")


def test_another_method_by_flag_leaves_the_file_s_parameters_behind() -> None:
    file = {**DIGITS, "algorithm": {"name": "fedprox", "mu": 0.5}}
    assert given(settle([file, {"algorithm": {"name": "fedavg"}}])) == {"fedavg": {}}


def test_a_method_chosen_by_flag_takes_its_parameters_from_the_file() -> None:
    file = {**DIGITS, "algorithms": {"fedavg": {}, "fedprox": {"mu": 0.5}}}
    assert given(settle([file, {"algorithm": {"name": "fedprox"}}])) == {"fedprox": {"mu": 0.5}}


def test_other_data_by_flag_keep_what_they_also_have() -> None:
    table = {"data": {"name": "csv", "path": "x.csv", "client": "c", "target": "t", "validation_fraction": 0.1}}
    settings = settle([table, {"data": {"name": "digits", "clients": 2}}])
    assert settings.data.model_dump(exclude_unset=True) == {"name": "digits", "clients": 2, "validation_fraction": 0.1}


def test_assignments_go_to_one_method_or_to_all_that_have_the_parameter() -> None:
    file = {**DIGITS, "algorithms": {"fedavg": {}, "fedprox": {}}}
    methods = given(settle([file], {"lr": 0.3, "mu": 1.0, "fedavg.epochs": 2}))
    assert methods == {"fedavg": {"lr": 0.3, "epochs": 2}, "fedprox": {"lr": 0.3, "mu": 1.0}}


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, '[data]\ncsv = "t.csv"\nclient = "c"\ntarget = "y"\n[graph]\nfile = "graph.npz"\n')
    settings = settle([read_toml(path)])
    assert isinstance(settings.data, OwnTable)
    assert settings.data.path == str(tmp_path / "t.csv")
    assert settings.graph == str(tmp_path / "graph.npz")


def test_the_seed_draws_the_partition_unless_it_is_fixed() -> None:
    free, fixed = settle([DIGITS]), settle([{"data": {**DIGITS["data"], "seed": 5}}])
    assert free.federation(0).fingerprint() != free.federation(1).fingerprint()
    assert fixed.federation(0).fingerprint() == fixed.federation(1).fingerprint() == free.federation(5).fingerprint()


def test_the_last_layer_has_the_last_word() -> None:
    layers = {"file": {"run": {"rounds": 1, "seed": 2}}, "flag": {"run": {"rounds": 3}}}
    assert origins(layers, "run") == {"rounds": "flag", "seed": "file"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[dat]\nname = 'digits'", "unknown section in .* 'dat'; did you mean 'data'"),
        ("[data]\nname = 'digits'\nclient_count = 3", "unknown key in .data. of 'digits' 'client_count'; did you mean"),
        ("[data]\nname = 'digist'", "unknown data set 'digist'; did you mean 'digits'"),
        ("[data]\nname = 'digits'\nclients = 'many'", "data: clients = 'many' is not allowed"),
        ("[data]\ncsv = 'a.csv'\nclient = 'c'", "which column holds the target"),
        ("[data]\ncsv = 'a.csv'\nclient = 'c'\ntarget = 't'\nmising = 'error'", "'mising'; did you mean 'missing'"),
        ("data = 'digits'\n[model]\nnme = 'mlp'", "unknown key in .model. 'nme'"),
        ("data = 'digits'\n[run]\nround = 3", "unknown run option 'round'; did you mean 'rounds'"),
        ("data = 'digits'\n[run]\nrounds = -1", "run: rounds = -1 is not allowed"),
        ("data = 'digits'\n[run]\nseed = -1", "seed is -1"),
        ("data = 'digits'\n[run]\nseeds = 0", "seeds is 0"),
        ("data = 'digits'\nalgorithm = 'fedagv'", "unknown algorithm 'fedagv'; did you mean 'fedavg'"),
        ("data = 'digits'\n[algorithm]\nmu = 1", "algorithm. has no name"),
        ("data = 'digits'\n[algorithms.fedprox]\nmuu = 1", "unknown parameter of fedprox 'muu'; did you mean 'mu'"),
        ("data = 'digits'\n[algorithms]\nfedprox = 3", "must be a section"),
        ("data = 'digits'\n[training]\nlearning = 1", "unknown key in .training. 'learning'"),
        ("data = 3", "data must be a section"),
        ("data = ", "is not valid TOML"),
        ("model = 'mlp'", "no data"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FedkinError, match=message) as caught:
        settle([read_toml(write(tmp_path, text))])
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match=r"nowhere\.toml cannot be read"):
        read_toml(tmp_path / "nowhere.toml")


@pytest.mark.parametrize("text", ["lr", "=3"])
def test_assignments_that_are_none(text: str) -> None:
    with pytest.raises(FedkinError, match="write --set key=value"):
        parse_assignments([text])


@pytest.mark.parametrize(("key", "message"), [("muu", "did you mean 'mu'"), ("fedprx.mu", "unknown method in --set")])
def test_assignments_to_nothing(key: str, message: str) -> None:
    with pytest.raises(FedkinError, match=message):
        settle([{**DIGITS, "algorithm": {"name": "fedprox"}}], {key: 1})


@pytest.mark.parametrize("text", ["0", "x", "1,x", "-2", "1,1", [-1]])
def test_seeds_that_are_none(text: str) -> None:
    with pytest.raises(FedkinError, match="seeds is"):
        parse_seeds(text)


@pytest.mark.parametrize("key", ["batch_size", "lr", "epochs"])
def test_true_is_no_number(key: str) -> None:
    with pytest.raises(FedkinError, match=f"{key} = True is not allowed: give a number"):
        algorithms.make("fedavg", {key: True})


def test_true_is_no_number_of_rounds() -> None:
    with pytest.raises(FedkinError, match="rounds = True is not allowed"):
        make_options(rounds=True)


def test_one_rate_for_all_spares_methods_whose_rate_means_something_else() -> None:
    layer = {
        "data": {"name": "digits"},
        "training": {"lr": 0.2, "optimiser": "adam", "epochs": 3},
        "algorithms": {"fedavg": {}, "pfedme": {}, "pfedbayes": {"lr": 0.003}, "fedrelax": {}},
    }
    made = settle([layer]).algorithms
    assert (made["fedavg"].lr, made["fedavg"].optimiser) == (0.2, "adam")
    assert (made["pfedme"].lr, made["pfedme"].optimiser) == (1.0, "sgd")
    assert made["pfedbayes"].lr == 0.003
    assert made["fedrelax"].lr == 0.01
    assert {method.epochs for method in made.values()} == {3}
    assigned = settle([layer], {"lr": 0.3, "pfedme.lr": 0.5}).algorithms
    assert [method.lr for method in assigned.values()] == [0.3, 0.5, 0.003, 0.01]
    alone = {**layer, "algorithms": {"pfedme": {}}}
    assert settle([alone], {"lr": 0.3}).algorithms["pfedme"].lr == 0.3
