"""The commands in README.md run, one after the other, as written. (Its Python blocks are run by test_docs.py.)"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedkin.cli import app
from fedkin.commands.demo import DEMO

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = "".join(BLOCK.findall(README)).splitlines()
    return [line.removeprefix("$ fedkin ") for line in lines if line.startswith("$ fedkin ")]


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"hospital-{i % 3},{i % 7},{i % 5},{'yes' if i % 7 > 3 else 'no'}" for i in range(120)]
    Path("visits.csv").write_text("\n".join(["hospital,age,pressure,died", *rows]) + "\n")
    assert len(commands()) == 3
    for command in commands():
        done = CliRunner().invoke(app, shlex.split(command))
        assert done.exit_code == 0, f"{command}: {done.output}"
    assert "hospital-1" in Path("visits.html").read_text()


def test_every_method_is_listed() -> None:
    from fedkin.algorithms import names

    assert [name for name in names() if f"`{name}`" not in README] == []


TITLES = {"alone (`local`)": "local", "FedAvg, then fine-tuning": "fedavgft", "**auto**, quick": "auto"}
"""Methods that README.md does not call by their titles."""


def demo_in_readme() -> dict[str, list[str]]:
    """Method → mean, deviation over seeds, worst 5 %, gained, lost."""
    table = re.search(r"^\| method .*?(?=\n\n)", README, re.MULTILINE | re.DOTALL)
    assert table is not None
    rows = [re.split(r" *\| *", line.strip("| ")) for line in table[0].splitlines()[2:]]
    return {TITLES.get(row[0], row[0].lower()): [*row[1].split(" ± "), row[2], *counts(row[3])] for row in rows}


def demo_in_first_steps() -> dict[str, list[str]]:
    text = (ROOT / "docs" / "first-steps.md").read_text()
    rows = [re.split(r"\s{2,}", line) for line in text.splitlines() if line.partition(" ")[0] in DEMO["algorithms"]]
    return {row[0]: [row[1].partition(" ")[0], row[2], row[4], *counts(row[5])] for row in rows if len(row) > 5}


def counts(cell: str) -> list[str]:
    return cell.split(" / ") if "/" in cell else []


def test_the_demo_has_the_same_lines_wherever_it_is_shown() -> None:
    assert list(demo_in_readme()) == list(DEMO["algorithms"])
    assert demo_in_readme() == demo_in_first_steps()


@pytest.mark.slow
def test_the_demo_gives_the_table_of_the_read_me(tmp_path: Path) -> None:
    """To rounding: in float32 another processor may see a sample in another way."""
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "runs"), "--json", str(tmp_path / "d.json")])
    assert done.exit_code == 0, done.output
    for line in json.loads((tmp_path / "d.json").read_text())["means"]:
        shares = 100 * line["accuracy"]["mean"], 100 * line["seed_std"], 100 * line["accuracy"]["worst5"]
        told = [float(entry) for entry in demo_in_readme()[line["algorithm"]]]
        assert told[:3] == pytest.approx(shares, abs=0.25), line["algorithm"]
        assert told[3:] == (
            [] if line["algorithm"] == "local" else pytest.approx([line["gained"], line["lost"]], abs=1)
        )


def test_the_method_in_contributing_works() -> None:
    from fedkin import data, train
    from fedkin.algorithm import Algorithm

    (text,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {}
    try:
        exec(text, namespace)
        federation = data.load("digits", clients=4, seed=0)
        apart, together = (train(federation, "mlr", namespace["Lazy"](), rounds=rounds) for rounds in (1, 2))
        fedavg = train(federation, "mlr", namespace["Lazy"](every=1), rounds=1)
    finally:
        Algorithm.registry.pop("lazy", None)
    assert (apart.rows[0] != apart.rows[1]).any()
    assert (together.rows == together.rows[0]).all()
    assert (fedavg.rows == train(federation, "mlr", "fedavg", rounds=1).rows).all()
