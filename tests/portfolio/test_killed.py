"""A run of auto that is killed, again and again, ends bitwise as one that is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import fedkin
from fedkin import FedkinError
from fedkin.cli import app
from fedkin.clients import Traffic
from fedkin.files import write_tensors
from fedkin.portfolio.kept import KeptMembers

SCRIPT = """
import os, signal, sys
import fedkin
member, number, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
def watch(name, round, rounds):
    if (name, round) == (member, number):
        os.kill(os.getpid(), signal.SIGKILL)
federation = fedkin.data.load("clusters", clients=6, samples=20, seed=0)
fedkin.auto(federation, "linear", rounds=6, out=out, watch=watch)
"""


def killed(member: str, number: int, out: Path) -> int:
    how = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, member, str(number), str(out)], env=how, timeout=120
    ).returncode


def test_a_killed_run_goes_on_and_ends_bitwise_the_same(tmp_path: Path) -> None:
    federation = fedkin.data.load("clusters", clients=6, samples=20, seed=0)
    whole = fedkin.auto(federation, "linear", rounds=6, out=tmp_path / "whole")
    assert not (tmp_path / "whole" / "members").exists()
    out = tmp_path / "killed"
    for member, number in (("local", 6), ("kin", 4), ("pfedbayes", 2)):
        assert killed(member, number, out) == -signal.SIGKILL
        with pytest.raises(FedkinError, match="fedkin resume"):
            fedkin.load(out)
    with pytest.raises(FedkinError, match="rounds = 6, now it is 7"):
        fedkin.auto(federation, "linear", rounds=7, out=out)
    (out / "members" / "fedavg.safetensors").write_bytes(b"damaged")  # is trained again
    done = CliRunner().invoke(app, ["resume", str(out)])
    assert done.exit_code == 0, done.output
    again = fedkin.load(out)
    assert whole.extras.keys() == again.extras.keys()
    for name, value in whole.extras.items():
        assert torch.equal(value, again.extras[name]), name
    assert whole.metrics == again.metrics
    assert whole.facts["bytes"] == again.facts["bytes"]
    assert whole.facts["messages"] == again.facts["messages"]
    with pytest.raises(FedkinError, match="already holds a result"):
        fedkin.auto(federation, "linear", rounds=6, out=out)


@pytest.mark.parametrize("told", [{"walls": 1}, {"down": "much"}, 3, None])
def test_a_member_with_a_strange_bill_is_trained_again(tmp_path: Path, told: object) -> None:
    kept = KeptMembers(tmp_path, {})
    write_tensors(tmp_path / "members" / "kin.safetensors", {"rows": torch.zeros(1)}, {"traffic": told})
    assert kept.once("kin", Traffic(), lambda: {"rows": torch.ones(1)})["rows"].item() == 1
