"""The commands in README.md run, one after the other, as written. (Its Python blocks are run by test_docs.py.)"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedkin.cli import app

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
