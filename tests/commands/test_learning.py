"""Losses and metrics on the command line, in settings files and on every surface that shows a number."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
from typer.testing import CliRunner

import fedkin
from fedkin.cli import app
from fedkin.commands import show

SITES = 5


@pytest.fixture(autouse=True)
def _tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """rare.csv: 6 % ill, nobody at the last site; dose.csv: a number to predict."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    tables = []
    for k in range(SITES):
        x = rng.normal(size=(100, 3))
        score = x[:, 0] + 0.5 * rng.normal(size=100)
        ill = (score > np.quantile(score, 0.92)) & (k < SITES - 1)
        table = pd.DataFrame(x, columns=list("abc")).assign(site=f"site-{k}")
        tables.append(table.assign(ill=np.where(ill, "yes", "no"), dose=score))
    whole = pd.concat(tables)
    whole.drop(columns="dose").to_csv("rare.csv", index=False)
    whole.drop(columns="ill").to_csv("dose.csv", index=False)


RARE = "--csv rare.csv --client site --target ill --model mlr"
DOSE = "--csv dose.csv --client site --target dose --model linear"


def says(arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def refusal(arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    (line,) = [line for line in result.stderr.splitlines() if line.strip()]
    return line


def cells(page: str, key: str) -> list[float]:
    """A column of the page's table, as its sort values."""
    return [float(value) for value in re.findall(rf'data-value="([^"]+)" data-key="{key}"', page)]


@pytest.mark.parametrize(
    ("arguments", "headline", "heading"),
    [
        (f"{RARE} --metric auroc,f1 --class-weight balanced", "auroc", "auroc %"),
        (f"{RARE} --metric f1 --metric brier --headline brier --loss focal:1", "brier", "brier"),
        (f"{DOSE} --metric mae --loss huber:1", "mae", "mae"),
        (f"{DOSE} --metric mse,r2 --headline r2 --loss mae", "r2", "r2"),
    ],
)
def test_terminal_json_and_page_say_the_same_of_the_chosen_metric(arguments: str, headline: str, heading: str) -> None:
    said = says(f"compare {arguments} --algorithms fedavg,ditto --rounds 3 --seeds 2 --out all --json all.json")
    told = json.loads(Path("all.json").read_text())
    says(f"report {' '.join(str(path) for path in sorted(Path('all').glob('*-seed*')))} --out page.html")
    page = Path("page.html").read_text()
    metric = fedkin.load("all/local-seed0").task.headline_metric
    assert metric.name == headline
    assert heading in said
    assert metric.better in said
    lines = {line["algorithm"]: line for line in told["means"]}
    assert {line["larger_is_better"] for line in lines.values()} == {metric.larger_is_better}
    assert {line["unit"] for line in lines.values()} == {metric.unit}
    shown = {name: line[headline]["mean"] for name, line in lines.items()}
    assert sorted(cells(page, "deployed")) == pytest.approx(sorted(shown.values()))
    for name, line in lines.items():
        (row,) = re.findall(rf"^ *{name}\b.*$", said, re.MULTILINE)
        assert metric.number(line[headline]["mean"]) in row
        assert metric.amount(line[headline]["mean"]) in page
        if name != "local":
            assert f"{line['gained']} / {line['lost']}" in row
            better = np.sign(line["gain"]) * (1 if metric.larger_is_better else -1)
            assert np.sign(shown[name] - shown["local"]) == better
    assert metric.better in page
    data = json.loads(re.search(r'id="data"[^>]*>(.*?)</script>', page, re.DOTALL).group(1))  # type: ignore[union-attr]
    assert data["metric"]["larger"] is metric.larger_is_better
    assert data["metric"]["unit"] == metric.unit


def test_a_site_of_one_class_has_no_value_and_is_counted_as_such() -> None:
    said = says(f"run {RARE} --metric auroc --rounds 2 --out r --json r.json")
    told = json.loads(Path("r.json").read_text())
    assert told["clients"]["site-4"]["deployed"] is None
    assert told["valued"] == SITES - 1
    assert "NaN" not in Path("r.json").read_text()
    assert re.search(r"site-4 +\d+ +– +–", said)
    assert "auroc of 4 of 5 clients" in " ".join(said.split())
    assert "nan" not in said
    says("report r --out r.html")
    assert "auroc of 4 of 5 clients" in Path("r.html").read_text()
    assert "nan" not in repr(fedkin.load("r")).lower()
    result = fedkin.load("r")
    assert "nan" not in str(result.table()).lower()
    assert result.table()["deployed"].mean() == pytest.approx(told["auroc"]["mean"])
    page = result._repr_html_()
    assert "<td>site-4</td><td>75</td><td>–</td><td>–</td><td>–</td>" in page
    assert "deployed, auroc %" in page
    assert "auroc of 4 of 5 clients" in page


def test_a_comparison_in_a_notebook_tells_unit_and_who_is_left_out() -> None:
    federation = fedkin.Federation.from_frame(pd.read_csv("rare.csv"), "site", "ill")
    found = fedkin.compare(federation, "mlr", ["fedavg"], seeds=[0], rounds=2, metrics=["auroc"])
    page, line = found._repr_html_(), found.lines[-1]
    assert "<th>auroc %</th>" in page
    assert f"<td>FedAvg</td><td>{100 * line.deployed['mean']:.1f}</td>" in page
    assert "auroc of 4 of 5 clients" in page
    assert "larger is better" in page


def test_where_nobody_has_a_value_nothing_breaks() -> None:
    frame = pd.read_csv("rare.csv")
    frame["ill"] = np.where(frame["site"].isin(["site-0", "site-1"]), "yes", "no")
    frame.to_csv("rare.csv", index=False)
    said = says(f"compare {RARE} --metric auroc --algorithms fedavg --rounds 2 --out all --json all.json")
    assert "auroc of 0 of 5 clients" in said
    assert json.loads(Path("all.json").read_text())["means"][0]["auroc"]["mean"] is None
    says("report all/local-seed0 all/fedavg-seed0 --out page.html")


def test_unknown_names_list_near_matches() -> None:
    assert "did you mean 'focal'" in refusal(f"run {RARE} --loss focl")
    assert "did you mean 'auroc'" in refusal(f"compare {RARE} --metric aurok")
    assert "did you mean 'auroc'" in refusal(f"auto {RARE} --headline aurok")
    assert "choose one of: balanced" in refusal(f"run {RARE} --class-weight heavy")
    assert "label=number" in refusal(f"run {RARE} --class-weight 1,x")
    assert "needs probabilities" in refusal(f"compare {DOSE} --metric auroc")


def test_other_targets_are_refused_by_name_with_what_to_do() -> None:
    assert "ranks (loss='mae' predicts the median rank)" in refusal(f"run {DOSE} --task ordinal")
    assert "“event before t”" in refusal(f"compare {DOSE} --task survival")
    assert "give them as arrays" in refusal(f"run {RARE} --task multilabel")
    assert "did you mean 'regression'" in refusal(f"run {DOSE} --task regresion")


def test_explain_shows_what_is_minimised_and_how_it_is_judged() -> None:
    said = says(f"run {RARE} --loss focal:1 --class-weight yes=5 --metric f1,brier --headline brier --explain")
    assert re.search(r"run\.loss +focal:1 +flag", said)
    assert re.search(r"run\.class_weight +1, 5 +flag", said)
    assert re.search(r"run\.metrics +f1, brier +flag", said)
    assert re.search(r"run\.headline +brier \(smaller is better\) +flag", said)
    assert re.search(r"run\.loss +mse +default", says(f"run {DOSE} --explain"))


def test_a_settings_file_says_the_same_as_flags() -> None:
    settings: dict[str, Any] = {
        "data": {"csv": "rare.csv", "client": "site", "target": "ill"},
        "model": "mlr",
        "run": {"rounds": 2, "loss": "focal:1", "class_weight": {"yes": 5.0}, "metrics": ["f1", "auroc"]},
    }
    Path("e.toml").write_text(tomli_w.dumps(settings))
    says("run e.toml --headline auroc --out file")
    says(f"run {RARE} --rounds 2 --loss focal:1 --class-weight yes=5 --metric f1,auroc --headline auroc --out flags")
    one, other = fedkin.load("file"), fedkin.load("flags")
    assert one.task == other.task
    assert np.array_equal(one.rows, other.rows)


def test_a_rare_class_makes_auroc_the_headline_unless_told_otherwise() -> None:
    said = says(f"run {RARE} --rounds 1 --out r")
    assert "class 'yes', so the headline is AUROC" in said
    assert fedkin.load("r").metric == "test_auroc"
    assert "test_accuracy" in fedkin.load("r").metrics["deployed"]
    said = says(f"run {RARE} --rounds 1 --headline accuracy --out a")
    assert "so the headline is AUROC" not in said
    assert fedkin.load("a").metric == "test_accuracy"


def test_auto_speaks_of_the_headline_and_refuses_other_losses() -> None:
    quick = "--effort quick --rounds 3 --set lr=0.1"
    said = says(f"auto {RARE} {quick} --metric auroc --out r")
    assert "alone, together: auroc % on test samples, larger is better" in said
    assert "auroc of 4 of 5 clients" in said
    result = fedkin.load("r")
    (row,) = re.findall(r"^ *site-0 .*$", said, re.MULTILINE)
    assert result.task.headline_metric.number(result.facts["alone"]["test_auroc"][0]) in row
    assert "…" not in said
    assert "drop loss, class_weight" in refusal(f"auto {RARE} {quick} --class-weight balanced")
    pd.read_csv("rare.csv").query("site == 'site-0'").assign(site="new").to_csv("new.csv", index=False)
    assert "auroc %" in says("join r --csv new.csv")


def test_a_metric_of_ones_own_is_shown_where_it_is_not_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedkin.task.metrics import METRICS

    @fedkin.metric("dose-error", needs="values", larger_is_better=False, unit="mg")
    def dose_error(predicted: np.ndarray, true: np.ndarray) -> float:
        return float(np.abs(predicted - true).max())

    federation = fedkin.data.from_csv("dose.csv", client="site", target="dose")
    fedkin.train(federation, "linear", rounds=1, metrics=["dose-error"], out="r")
    monkeypatch.delitem(METRICS, "dose-error")
    result = fedkin.load("r")
    assert not result.task.larger_is_better
    assert f"{result.summary()['mean']:.4g} mg" in result.report("r.html").read_text()
    assert "dose error mg" in [str(table.columns[0].header) for table in show.result_tables(result)]
