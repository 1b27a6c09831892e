"""What a user sees of a result of auto: terminal, page, predictions, exported models, its line in a comparison."""

from __future__ import annotations

import re
from html import escape, unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import fedkin
from fedkin import Federation, FedkinError, Result
from fedkin.cli import app
from fedkin.commands.auto import clients_table
from fedkin.portfolio.contender import Auto
from fedkin.portfolio.effort import EFFORTS
from fedkin.portfolio.progress import Done
from fedkin.result.verdict import sentence

from .conftest import sites

QUICK = {"effort": "quick", "rounds": 6, "lr": 0.3}
NAMES = ["Köln", "Berlin", "Nîmes", "Łódź", "Charité Campus Mitte", "<b>San Francisco</b> General Hospital"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    rows = []
    for k, name in enumerate(NAMES):
        for x in rng.normal(size=(50, 3)):
            rows.append((name, *x, int(x @ [1, 2, -1] * (1 if k % 2 else -1) + 0.3 * rng.normal() > 0)))
    path = tmp_path_factory.mktemp("visits") / "visits.csv"
    pd.DataFrame(rows, columns=["hospital", "age", "pressure", "dose", "died"]).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def run(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("auto") / "run"
    fedkin.auto(fedkin.data.from_csv(table, client="hospital", target="died"), "mlr", out=folder, **QUICK)
    return folder


@pytest.fixture(scope="module")
def result(run: Path) -> Result:
    return fedkin.load(run)


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_in_the_terminal_cuts_no_number_and_no_member(result: Result, width: int) -> None:
    screen = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    screen.print(clients_table(result, width))
    text = screen.export_text()
    assert max(map(len, text.splitlines())) <= width
    for head in ("client", "n", "alone", "together", "gain", "model", "kin"):
        assert head in text.splitlines()[1].split()
    told = result.auto["Köln"]
    heaviest = max(told["members"], key=lambda name: told["members"][name])
    line = next(line for line in text.splitlines() if "Köln" in line)
    assert told["kept_alone"] or heaviest in line
    for values in (result.facts["alone"], result.metrics["deployed"]):
        assert f"{100 * values[result.metric][result.names.index('Köln')]:.1f}" in line


def test_the_page_says_who_does_better_together_and_holds_it_against_training_alone(
    run: Path, result: Result, tmp_path: Path
) -> None:
    done = CliRunner().invoke(app, ["report", str(run), "--out", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "page.html").read_text()
    assert "Alone and together" in page
    assert "clients do better together" in page
    assert "<b>San Francisco" not in page
    assert "alone it is" in page  # gains over Local, though no run of Local was given
    for name in NAMES[:4]:
        assert f'<th scope="row">{name}</th>' in page


def test_the_page_and_the_terminal_say_the_same_of_every_client(run: Path, result: Result) -> None:
    """As a comparison's do (tests/comparison): alone, together, the gain to expect; and the same headline."""
    page = result.report(run.parent / "same.html").read_text()
    terminal = {str(column.header): list(column.cells) for column in clients_table(result, 120).columns}
    rows = re.findall(r'<tr><th scope="row">.*?</tr>', page[page.index('id="together"') :])
    assert escape(sentence(result)) in page
    for k, row in enumerate(rows[: len(NAMES)]):
        name, n, alone, together, gain, *_ = re.findall(r">([^<>]+)</t[hd]>", row)
        assert (unescape(name), n) == (terminal["client"][k], terminal["n"][k])
        assert (alone, together) == (f"{terminal['alone'][k]} %", f"{terminal['together'][k]} %")
        assert unescape(gain) == terminal["gain"][k]
    assert len(rows) >= len(NAMES)


def test_predictions_are_those_of_the_combined_model(run: Path, result: Result, table: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(table).head(7)
    frame.to_csv(tmp_path / "new.csv", index=False)
    done = CliRunner().invoke(
        app, ["predict", str(run), str(tmp_path / "new.csv"), "--client", "Köln", "--out", str(tmp_path / "said.csv")]
    )
    assert done.exit_code == 0, done.output
    said = pd.read_csv(tmp_path / "said.csv")
    from fedkin.result.predict import inputs_of

    with torch.no_grad():
        chance = result.models["Köln"](torch.tensor(inputs_of(result, frame), dtype=torch.float32)).exp()
    assert said["prediction"].tolist() == chance.argmax(dim=1).tolist()
    assert np.allclose(said["probability"], chance.max(dim=1).values, atol=1e-5)


def test_combined_models_are_exported_as_weights_and_as_programs(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    federation = sites(clients=2)
    result = fedkin.auto(federation, "mlr", **QUICK)
    result.export(tmp_path, "torch")
    x = torch.randn(3, 6)
    for name in federation.names:
        module = result.models[name]
        again = torch.export.load(tmp_path / f"{name}.pt2").module()
        assert torch.allclose(again(x), module(x), atol=1e-6)
        kept = load_file(tmp_path / f"{name}.safetensors")
        assert {key: value.shape for key, value in kept.items()} == {
            key: value.shape for key, value in module.state_dict().items()
        }


def test_a_newcomers_kin_are_clients_of_the_run(contrary: Federation) -> None:
    from fedkin.result.verdict import helpers, kin_of

    result = fedkin.auto(contrary.take(range(6)), "mlr", **QUICK)
    joined = result_of_newcomers = fedkin.join(result, contrary.take([6, 7]))
    assert {name for name, _ in helpers(result_of_newcomers, 0)} <= {"site-0", "site-2", "site-4"}
    assert all(joined.auto[name]["kept_alone"] or kin_of(joined, k) for k, name in enumerate(joined.names))


def test_a_comparison_lists_auto_like_a_method_and_keeps_its_run(contrary: Federation, tmp_path: Path) -> None:
    entrants = ["fedavg", Auto(effort="quick", lr=0.3)]
    found = fedkin.compare(contrary, "mlr", entrants, seeds=[0], rounds=6, out=tmp_path)
    assert [line.algorithm for line in found.lines] == ["local", "fedavg", "auto"]
    assert found.lines[-1].counted == len(contrary)
    again = fedkin.compare(contrary, "mlr", entrants, seeds=[0], rounds=6, out=tmp_path)
    assert again.results[-1].facts["seconds"] == found.results[-1].facts["seconds"]  # read, not trained again
    assert "Alone and together" in again.report(tmp_path / "page.html").read_text()
    with pytest.raises(FedkinError, match="other settings"):
        fedkin.compare(contrary, "mlr", ["fedavg", Auto(effort="quick", lr=0.1)], seeds=[0], rounds=6, out=tmp_path)


def test_auto_is_compared_on_the_command_line_and_is_no_method_of_run() -> None:
    common = ["--data", "digits", "--clients", "3", "--model", "mlr", "--rounds", "2"]
    done = CliRunner().invoke(
        app, ["compare", *common, "--algorithms", "fedavg,auto", "--set", "auto.effort=quick", "--set", "lr=0.3"]
    )
    assert done.exit_code == 0, done.output
    assert "auto" in [line.split()[0] for line in done.output.splitlines() if line.strip()]
    wrong = CliRunner().invoke(app, ["compare", *common, "--algorithms", "auto", "--set", "auto.effort=quik"])
    assert wrong.exit_code != 0
    refused = CliRunner().invoke(app, ["run", *common, "--algorithm", "auto"])
    assert refused.exit_code != 0


@pytest.mark.parametrize("effort", ["quick", "standard"])
def test_progress_goes_from_nothing_to_nearly_all(effort: str) -> None:
    done, shares = Done(EFFORTS[effort], 6, 10), []
    watch = lambda member, round, rounds: shares.append(done.share(member, round, rounds))  # noqa: E731
    fedkin.auto(sites(clients=4), "mlr", effort, rounds=6, lr=0.3, watch=watch)
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.5
    assert shares[-1] <= 1
    whole = Done(EFFORTS["standard"], 6, 10)
    told = [whole.share(member, 6, 6) for member in ("local", "fedavg", "kin", "pfedbayes", "pfedbayes")]
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1)
