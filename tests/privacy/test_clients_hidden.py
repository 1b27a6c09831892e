"""Privacy of whole clients, calibrated to the coupling; what clients can have learned of each other; commands and the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedkin import algorithms, train
from fedkin.cli import app
from fedkin.couplings import Average, LaplacianStep
from fedkin.couplings.noisy import Noisy, leverage
from fedkin.couplings.reach import passed_on
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.graphs import ClientGraph
from fedkin.privacy.accounting import cost_of_steps, epsilon_of

NAMES = tuple("abcde")
CHAIN = np.diag(np.ones(4), 1) + np.diag(np.ones(4), -1)
BUDGET = {"level": "client", "epsilon": 5.0, "delta": 1e-2, "clip": 0.5}


def federation() -> Federation:
    rng = np.random.default_rng(0)
    return Federation.from_arrays({name: (rng.normal(size=(30, 4)), rng.integers(0, 2, 30)) for name in NAMES})


def chain() -> ClientGraph:
    return ClientGraph(CHAIN, NAMES)


def test_leverage_of_averages_and_of_couplings_that_can_be_undone() -> None:
    assert leverage(Average(np.ones(5))) == pytest.approx(np.full(5, 0.2))
    weights = np.array([3.0, 1.0, 1.0, 0.0, 0.0])
    assert leverage(Average(weights)) == pytest.approx(weights**2 / 11)
    assert leverage(LaplacianStep(chain(), 0.1)) == pytest.approx(np.ones(5))


def test_what_is_handed_out_is_clipped_and_has_the_noise_of_the_mechanism() -> None:
    before, ids = torch.zeros((5, 20_000), dtype=torch.float64), np.array([0, 1, 2, 4])
    rows = before.clone()
    rows[1] = 7.0  # far beyond the bound
    rows[4, 0] = 0.1
    coupling = Average(np.ones(5), ids)
    noisy = Noisy(coupling, before, ids, clip=0.5, noise=2.0)
    assert noisy.scale == pytest.approx(2.0 * 0.5 / 2)  # h = 1/4
    found = [noisy.apply(rows)[0] for _ in range(2)]
    assert not torch.equal(*found)
    mean = coupling.apply(
        torch.cat([before[:1], (rows[1] / rows[1].norm() * 0.5)[None], before[:1], before[:1], rows[4:]])
    )
    noise = (found[0] - mean[0]).numpy()
    # Beside what one client can change, m·C = 0.125, the noise of the average is σ times as large.
    assert noise.std() == pytest.approx(2.0 * 0.125, rel=0.03)


@pytest.mark.parametrize("name", ["fedavg", "mrmtl", "fedu", "fedpnp"])
def test_clients_spend_and_the_run_ends_with_the_budget(name: str) -> None:
    graph = "complete" if algorithms.get(name).graph_spec else None
    result = train(federation(), "mlr", name, graph=graph, rounds=4, privacy=BUDGET)
    assert len(result.history) == 4
    spent = result.extras["epsilon"].numpy()
    assert np.all((spent > 0.97 * 5) & (spent <= 5 * (1 + 1e-6)))
    short = train(federation(), "mlr", name, graph=graph, rounds=40, privacy={**BUDGET, "noise": 2.0})
    assert 1 <= len(short.history) < 40
    assert any("ended after round" in note for note in short.notes)


def test_what_hides_no_client_is_refused() -> None:
    with pytest.raises(FedkinError, match="scaffold is not among the methods"):
        train(federation(), "mlr", "scaffold", rounds=1, privacy=BUDGET)
    with pytest.raises(FedkinError, match="there are 5 clients"):
        train(federation(), "mlr", "fedavg", rounds=1, privacy={**BUDGET, "delta": 0.2})
    with pytest.raises(FedkinError, match="robust"):
        train(federation(), "mlr", algorithms.make("fedavg", {"robust": "median"}), rounds=1, privacy=BUDGET)


def test_news_travel_one_edge_a_round() -> None:
    heard = torch.zeros((5, 5), dtype=torch.float64)
    coupling = LaplacianStep(chain(), 0.1)
    for round_ in range(1, 4):
        heard += torch.eye(5, dtype=torch.float64)
        heard = passed_on(heard, coupling)
        away = np.abs(np.arange(5)[:, None] - np.arange(5)[None, :])
        assert np.array_equal(heard.numpy(), np.where(away == 0, round_, np.maximum(round_ + 1 - away, 0)))
    assert torch.equal(passed_on(heard, None), torch.full((5, 5), 3.0, dtype=torch.float64))


def test_pairwise_privacy_follows_the_graph() -> None:
    privacy = {"level": "sample", "epsilon": 6.0, "delta": 1e-3, "noise": 6.0}
    method = algorithms.make("fedu", {"epochs": 1, "batch_size": 10})
    found = train(federation(), "mlr", method, graph=chain(), rounds=3, privacy=privacy).extras["exposure"].numpy()
    size = int(federation().train.sizes[0])
    steps, rate = -(-size // 10), 10 / size
    for away, rounds in ((1, 3), (2, 2), (3, 1)):
        assert found[0, away] == pytest.approx(epsilon_of(cost_of_steps(rate, 6.0, steps * rounds), 1e-3))
    assert found[0, 4] == 0
    assert np.all(np.diag(found) == 0)
    alone = train(federation(), "mlr", "local", rounds=2, privacy=privacy).extras["exposure"].numpy()
    assert not alone.any()


def test_commands_and_the_report_tell_what_was_spent(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["site,x,y,out", *(f"{'ab'[k % 2]},{rng.normal():.3f},{rng.normal():.3f},{k // 2 % 2}" for k in range(80))]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    where = [
        "--csv",
        str(tmp_path / "table.csv"),
        "--client",
        "site",
        "--target",
        "out",
        "--out",
        str(tmp_path / "run"),
    ]
    table = ["--privacy", "level=sample,epsilon=4,delta=1e-3", "--insecure-noise-seed", "3"]
    said = CliRunner().invoke(app, ["run", *where, "--model", "mlr", "--rounds", "2", *table])
    assert said.exit_code == 0, said.output
    assert "protects nobody" in said.output
    shown = CliRunner().invoke(app, ["privacy", str(tmp_path / "run"), "--json", str(tmp_path / "spent.json")])
    assert shown.exit_code == 0, shown.output
    assert "ε spent of 4 at δ = 0.001, hiding one sample" in shown.output
    spent = json.loads((tmp_path / "spent.json").read_text())["spent"]["sample"]
    assert all(3.8 < value <= 4.00001 for value in spent.values())
    page = tmp_path / "page.html"
    assert CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--out", str(page)]).exit_code == 0
    text = page.read_text()
    assert "Hides one training sample of a client" in text
    assert "Pairwise privacy" in text


def test_a_file_may_say_it(tmp_path: Path) -> None:
    from fedkin import config

    (tmp_path / "a.toml").write_text(
        'data = "digits"\n[training.privacy]\nlevel = "sample"\nepsilon = 3\ndelta = 1e-5\n'
    )
    made = config.settle([config.read_toml(tmp_path / "a.toml")]).algorithms["fedavg"]
    assert made.privacy is not None
    assert made.privacy.epsilon == 3
