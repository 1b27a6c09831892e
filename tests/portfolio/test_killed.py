"""A run of auto that is killed, again and again, ends bitwise as one that is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import fedkin
from fedkin import FedkinError
from fedkin.cli import app
from fedkin.clients import Traffic
from fedkin.files import write_tensors
from fedkin.portfolio.kept import KeptMembers, MemberShapes

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


SHAPES = MemberShapes(clients=3, folds=2, width=4, dtype=torch.float32)
ROWS, PEERS = torch.ones(2, 3, 4), torch.zeros((2, 3, 1), dtype=torch.int64)
WEIGHTS = torch.ones((2, 3, 2), dtype=torch.float64)


@pytest.mark.parametrize("told", [{"walls": 1}, {"down": "much"}, 3, None])
def test_a_member_with_a_strange_bill_is_trained_again(tmp_path: Path, told: object) -> None:
    kept = KeptMembers(tmp_path, {})
    write_tensors(tmp_path / "members" / "kin.safetensors", {"rows": 0 * ROWS}, {"traffic": told})
    assert kept.once("kin", Traffic(), lambda: {"rows": ROWS}, SHAPES)["rows"].all()


STRANGE: dict[str, dict[str, torch.Tensor]] = {
    "too few folds": {"rows": 0 * ROWS[:1]},
    "too many clients": {"rows": torch.zeros(2, 4, 4)},
    "another width": {"rows": torch.zeros(2, 3, 5)},
    "another kind": {"rows": 0 * ROWS.double()},
    "no rows": {"rows": torch.zeros(())},
    "an unknown tensor": {"rows": 0 * ROWS, "more": ROWS},
    "a peer that is no client": {"rows": 0 * ROWS, "peers": PEERS + 3, "weights": WEIGHTS},
    "a peer before the first": {"rows": 0 * ROWS, "peers": PEERS - 1, "weights": WEIGHTS},
    "peers without shape": {"rows": 0 * ROWS, "peers": PEERS[0, 0, 0], "weights": WEIGHTS},
    "peers as floats": {"rows": 0 * ROWS, "peers": PEERS.double(), "weights": WEIGHTS},
    "too few weights": {"rows": 0 * ROWS, "peers": PEERS, "weights": WEIGHTS[..., :1]},
}


@pytest.mark.parametrize("what", STRANGE)
def test_a_member_of_other_shapes_is_trained_again(tmp_path: Path, what: str) -> None:
    """Its checksum is right: somebody made it so, or it is another run's."""
    bill = {"traffic": asdict(Traffic())}
    write_tensors(tmp_path / "members" / "kin.safetensors", STRANGE[what], bill)
    made = {"rows": ROWS, "peers": PEERS, "weights": WEIGHTS}
    kept = KeptMembers(tmp_path, {})
    assert kept.once("kin", Traffic(), lambda: made, SHAPES)["rows"].all()
    assert kept.once("kin", Traffic(), lambda: {}, SHAPES).keys() == made.keys()  # kept now


def test_what_training_keeps_is_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file of a real run fits; none is made twice."""
    federation = fedkin.data.load("clusters", clients=6, samples=20, seed=0)
    monkeypatch.setattr(KeptMembers, "clear", lambda kept: None)
    fedkin.auto(federation, "linear", rounds=3, out=tmp_path)
    (tmp_path / "result.safetensors").unlink()
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "members").glob("*.safetensors")}
    assert len(files) >= 6
    fedkin.auto(federation, "linear", rounds=3, out=tmp_path)
    assert {path: path.stat().st_mtime_ns for path in files} == files
