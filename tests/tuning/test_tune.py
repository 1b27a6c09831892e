"""Tuning with the real Optuna: what is searched, on which samples, stopped trials, and searches that are killed."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fedkin
from fedkin import Federation, algorithms
from fedkin.cli import app
from fedkin.errors import FedkinError
from fedkin.federation.folds import folded, without_fold
from fedkin.federation.split import Split
from fedkin.tuning import Tuning
from fedkin.tuning.space import Between, OneOf, apart, grid
from fedkin.tuning.storage import JOURNAL

SMALL = "--data digits --clients 4 --model mlr --rounds 2"


@pytest.fixture(scope="module")
def digits() -> Federation:
    return fedkin.data.load("digits", clients=4, partition="dirichlet:0.3", seed=0)


def told(tuning: Tuning) -> list[tuple[Any, ...]]:
    return [(t.number, dict(t.chosen), t.state, t.value, t.loss, dict(t.curve)) for t in tuning.trials]


# --- what is searched -------------------------------------------------------------------------------------------------


def test_a_list_is_searched_unless_the_parameter_is_one() -> None:
    given = {"lr": [0.1, 0.2], "period": [2, 5], "clusters": "2..5", "model": ["mlr", "mlp:8"], "momentum": 0.5}
    fixed, space = apart(algorithms.FedCedar, given)
    assert fixed == {"period": [2, 5], "momentum": 0.5}
    assert space == {
        "lr": OneOf((0.1, 0.2)),
        "clusters": Between(2, 5, whole=True),
        "model": OneOf(("mlr", "mlp:8")),
    }
    _, nested = apart(algorithms.FedCedar, {"period": [[2, 5], [3]]})
    assert nested == {"period": OneOf(([2, 5], [3]))}
    assert [entry["period"] for entry in grid(nested) or ()] == ["[2, 5]", "[3]"]
    assert nested["period"].value("[2, 5]") == [2, 5]


def test_combinations_are_all_of_them_and_a_range_has_no_end() -> None:
    _, space = apart(algorithms.FedProx, {"lr": [0.1, 0.2], "mu": [0.0, 1.0, 2.0]})
    found = grid(space)
    assert found is not None
    assert {tuple(entry.values()) for entry in found} == {(a, b) for a in (0.1, 0.2) for b in (0.0, 1.0, 2.0)}
    assert grid(apart(algorithms.FedProx, {"lr": "0.1..0.2"})[1]) is None
    assert Between(0.01, 0.3, False).log
    assert not Between(0.1, 0.3, False).log
    assert not Between(0.0, 3.0, False).log


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"mu": [0.1, -1]}, "mu = -1 is not allowed"),
        ({"lr": (0.1, 0.0001)}, "smaller of two numbers first"),
        ({"epochs": (1.5, 3)}, "smaller of two whole numbers first"),
        ({"optimiser": "sgd..adam"}, "only numbers have a range"),
        ({"lr": [0.1, 0.1]}, "each value to try once"),
        ({"lr": 0.1}, "is a single value"),
        ({"epoch": [1, 2]}, "unknown parameter of fedprox 'epoch'; did you mean 'epochs'"),
        ({"lr": []}, "at least one"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_training(
    digits: Federation, space: dict[str, Any], words: str
) -> None:
    with pytest.raises(FedkinError, match=words) as refused:
        fedkin.tune(digits, "mlr", "fedprox", space, rounds=10**6)
    assert "\n" not in str(refused.value)


def test_privacy_is_not_spent_by_trials(digits: Federation) -> None:
    private = algorithms.FedAvg(privacy={"level": "sample", "epsilon": 6, "delta": 1e-5, "clip": 1.0})
    with pytest.raises(FedkinError, match="privacy is spent anew in every trial"):
        fedkin.tune(digits, "mlr", private, {"lr": [0.1, 0.2]}, rounds=1)


# --- on which samples -------------------------------------------------------------------------------------------------


def test_a_fold_is_that_of_the_folded_federation(digits: Federation) -> None:
    whole, size = folded(digits, 3, seed=5), len(digits)
    for fold in range(3):
        cut = without_fold(digits, 3, fold, seed=5)
        assert cut.names == digits.names
        assert not cut.test.sizes.any()
        for k in range(size):
            for part in ("train", "validation"):
                ours, theirs = getattr(cut, part)[k], getattr(whole, part)[fold * size + k]
                assert all(np.array_equal(a, b) for a, b in zip(ours, theirs))


def test_test_samples_change_nothing(digits: Federation) -> None:
    rng = np.random.default_rng(0)
    noise = Split(rng.permutation(digits.test.x), rng.permutation(digits.test.y), digits.test.offsets)
    asked: dict[str, Any] = {"space": {"lr": [0.01, 0.3]}, "rounds": 2, "used": 2}
    one, other = (fedkin.tune(f, "mlr", "local", **asked) for f in (digits, replace(digits, test=noise)))
    assert told(one) == told(other)


def test_the_value_is_the_metric_on_what_was_held_out(digits: Federation) -> None:
    found = fedkin.tune(
        digits, "mlr", "fedprox", {"mu": [0.5]}, rounds=2, folds=3, used=2, headline="balanced-accuracy"
    )
    values = []
    for fold in range(2):
        cut = without_fold(digits, 3, fold)
        result = fedkin.train(cut, "mlr", algorithms.FedProx(mu=0.5), rounds=2, headline="balanced-accuracy")
        values.append(np.nanmean(result.metrics["deployed"]["validation_balanced_accuracy"]))
    assert found.trials[0].value == pytest.approx(np.mean(values), abs=1e-12)


# --- trials that stop, fail, and searches that are killed -----------------------------------------------------------


def test_a_hopeless_rate_is_stopped_and_a_diverging_one_fails(digits: Federation) -> None:
    rates = [0.2, 0.25, 0.3, 0.35, 0.4, 1e-6, 1e30]
    found = fedkin.tune(digits, "mlr", algorithms.FedAvg(), {"lr": rates}, rounds=10)
    states = {trial.chosen["lr"]: trial for trial in found.trials}
    assert states[1e-6].state == "stopped"
    assert 0 < states[1e-6].rounds < 10
    assert states[1e30].state == "failed"
    assert states[1e30].reason
    assert found.best["lr"] in rates[:5]
    assert list(found.table()["state"])[-2:] == ["stopped", "failed"]
    assert "1e+30" in found._repr_html_()


def test_a_search_in_which_everything_fails_says_why(digits: Federation) -> None:
    found = fedkin.tune(digits, "mlr", "fedavg", {"lr": [1e30]}, rounds=2)
    with pytest.raises(FedkinError, match="no trial of fedavg came to its end"):
        _ = found.best


class Killed(Exception):
    pass


def test_a_killed_search_goes_on_as_if_nothing_had_happened(digits: Federation, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"space": {"lr": (0.003, 0.5), "mu": (0.0, 1.0)}, "trials": 7, "rounds": 3, "seed": 3}
    quiet = fedkin.tune(digits, "mlr", "fedprox", **asked)

    def die(number: int, trials: int, round: int, rounds: int, best: str) -> None:
        if number == 6 and round >= 2:
            raise Killed

    with pytest.raises(Killed):
        fedkin.tune(digits, "mlr", "fedprox", **asked, out=tmp_path, watch=die)
    with open(tmp_path / JOURNAL, "ab") as journal:
        journal.write(b'{"op_code":4,"worker')  # killed while it wrote
    (tmp_path / f"{JOURNAL}.lock").write_text("")
    again = fedkin.tune(digits, "mlr", "fedprox", **asked, out=tmp_path)
    assert told(again) == told(quiet)
    assert {trial.state for trial in quiet.trials} >= {"complete"}
    more = fedkin.tune(digits, "mlr", "fedprox", **{**asked, "trials": 8}, out=tmp_path)
    assert told(more)[:7] == told(quiet)
    with pytest.raises(FedkinError, match="holds another search: its run differ"):
        fedkin.tune(digits, "mlr", "fedprox", **{**asked, "rounds": 4}, out=tmp_path)


def test_kept_trials_are_json_that_optuna_reads(digits: Federation, tmp_path: Path) -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    found = fedkin.tune(digits, "mlr", "fedprox", {"mu": [0.0, 1.0]}, rounds=2, out=tmp_path)
    for line in (tmp_path / JOURNAL).read_text().splitlines():
        json.loads(line)
    study = optuna.load_study(study_name="fedkin", storage=JournalStorage(JournalFileBackend(str(tmp_path / JOURNAL))))
    assert [trial.value for trial in study.trials] == [trial.value for trial in found.trials]
    (tmp_path / JOURNAL).write_text("not a journal\nat all\n")
    with pytest.raises(FedkinError, match="is damaged"):
        fedkin.tune(digits, "mlr", "fedprox", {"mu": [0.0, 1.0]}, rounds=2, out=tmp_path)


# --- the command ------------------------------------------------------------------------------------------------------


def says(arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == code, done.output
    return done.output


def test_lists_in_a_settings_file_give_settings_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep.toml").write_text(
        'model = ["mlr", "mlp:8"]\n[data]\nname = "digits"\nclients = 4\n[training]\nlr = 0.2\n'
        "[algorithm]\nname = 'fedprox'\nmu = [0.01, 10]\n[run]\nrounds = 3\n"
    )
    said = says("tune sweep.toml --out found --json found.json")
    assert "best: " in said
    record = json.loads(Path("found.json").read_text())
    assert len(record["trials"]) == 4
    assert sorted(path.name for path in Path("found").iterdir()) == [
        *("best.toml", "trials.csv", JOURNAL, "tuning.json", "tuning.png"),
    ]
    best = tomllib.loads(Path("found/best.toml").read_text())
    assert best["algorithm"] == {"name": "fedprox", "lr": 0.2, "mu": 0.01}
    assert best["model"]["name"] == record["best"]["model"]
    says("run found/best.toml --out run --json run.json")
    assert json.loads(Path("run.json").read_text())["algorithm"] == "fedprox"
    assert "fedkin tune tries them" in says("run sweep.toml --model mlr", code=2)


def test_what_the_command_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words, expected in (
        ("--set mu=[0.1,1]", "unknown parameter of fedavg"),
        ("--set lr=0.1..x", "is no range"),
        ("--set lr=0.1..0.2 --folds 2 --used 3", "hold out at least 1"),
        ("--set lr=0.1..0.2 --engine nowhere", "unknown engine"),
    ):
        said = says(f"tune {SMALL} {words} --out none", code=2).strip().splitlines()[-1]
        assert said.startswith("error: ")
        assert expected in said


def test_without_a_word_the_rate_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    says(f"tune {SMALL} --trials 2")
    (folder,) = Path("runs").iterdir()
    record = json.loads((folder / "tuning.json").read_text())
    assert record["space"] == {"lr": "0.003..0.3"}
    assert record["trials"][0]["chosen"] == {"lr": 0.05}  # the default, to compare with
