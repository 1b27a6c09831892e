"""The ledger: on disk before it is used, whatever kills the process; nobody trains beyond it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkin import data, load, resume, train
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.privacy.accounting import cost_of_steps, epsilon_of
from fedkin.privacy.ledger import LEDGER, BudgetSpent, Charge, Ledger
from fedkin.run.callbacks import Callback

PRIVACY: dict[str, Any] = {"level": "sample", "epsilon": 6.0, "delta": 1e-5, "clip": 1.0}
CRASH = Path(__file__).parents[1] / "faults"


def digits() -> Federation:
    return data.load("digits", clients=3, seed=0)


def steps_in(path: Path, client: str) -> int:
    """The steps that a client has paid for, read as another program would."""
    total = 0
    for line in path.read_text().splitlines():
        if line.strip():
            entry = json.loads(line)
            total += sum(n for who, n in zip(entry["clients"], entry["steps"]) if who == client)
    return total


def test_charges_add_up_over_processes_and_a_budget_ends(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    one, other = Ledger(path), Ledger(path)
    for ledger in (one, other, one):
        ledger.charge([Charge("a", 0.1, 2.0, 10), Charge("b", 0.1, 2.0, 5)], "sample", 10.0, 1e-5)
    fresh = Ledger(path)
    assert fresh.epsilon("a", "sample", 1e-5) == epsilon_of(cost_of_steps(0.1, 2.0, 30), 1e-5)
    assert fresh.epsilon("a", "client", 1e-5) == 0
    limit = fresh.epsilon("a", "sample", 1e-5) * 1.01
    with pytest.raises(BudgetSpent, match="client 'a' has spent"):
        other.charge([Charge("b", 0.1, 2.0, 1), Charge("a", 0.1, 2.0, 50)], "sample", limit, 1e-5)
    assert Ledger(path).epsilon("b", "sample", 1e-5) == fresh.epsilon("b", "sample", 1e-5)  # nobody paid


def test_every_piece_of_a_line_that_a_killed_writer_leaves_is_survived(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge([Charge("a", 0.1, 2.0, 10)], "sample", 10.0, 1e-5)
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole + whole[:cut])
        ledger = Ledger(path)
        ledger.charge([Charge("a", 0.1, 2.0, 1)], "sample", 10.0, 1e-5)
        again = Ledger(path)
        paid = 11 + (10 if cut >= len(whole) - 1 else 0)  # without its newline a line may count: it is safe to
        assert again.epsilon("a", "sample", 1e-5) == epsilon_of(cost_of_steps(0.1, 2.0, paid), 1e-5)
        assert ledger.epsilon("a", "sample", 1e-5) == again.epsilon("a", "sample", 1e-5)


def test_a_damaged_line_is_refused_not_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    for _ in range(2):
        Ledger(path).charge([Charge("a", 0.1, 2.0, 10)], "sample", 10.0, 1e-5)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"clients"', b'"clients', 1))
    with pytest.raises(FedkinError, match="damaged"):
        Ledger(path)


def test_a_strange_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"level": "sample", "clients": ["a"], "rate": [2], "noise": [1], "steps": [1]}\n')
    with pytest.raises(FedkinError, match="must not be edited"):
        Ledger(path)


def test_a_run_stops_at_its_budget_and_others_on_the_same_data_go_on_counting(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = train(digits(), "mlr", "fedavg", rounds=50, out=out, privacy={**PRIVACY, "noise": 2.0})
    rounds = len(result.history)
    assert 1 <= rounds < 50
    assert 5 < float(result.extras["epsilon"].max()) <= 6 * (1 + 1e-6)
    spent = Ledger(out / LEDGER).spent(1e-5)["sample"]
    assert np.allclose([spent[name] for name in result.names], result.extras["epsilon"].numpy())
    assert load(out).extras["epsilon"].tolist() == result.extras["epsilon"].tolist()
    with pytest.raises(FedkinError, match="privacy budget does not last for another round: client"):
        resume(out, rounds=60)
    with pytest.raises(FedkinError, match=f"^all {rounds} rounds are done, and the privacy budget does not last"):
        resume(out, rounds=rounds)
    shared = {**PRIVACY, "ledger": str(out / LEDGER)}
    with pytest.raises(FedkinError, match="privacy budget does not last for another round: client"):
        train(digits(), "mlr", "fedu", graph="complete", rounds=3, privacy=shared, progress=True)
    more = train(digits(), "mlr", "fedavg", rounds=2, privacy={**shared, "epsilon": 9.0, "noise": 3.0})
    assert float(more.extras["epsilon"].min()) > float(result.extras["epsilon"].min())


def test_a_budget_below_one_round_is_refused_with_what_a_round_takes() -> None:
    with pytest.raises(FedkinError, match=r"used ε = 0 of 1 .* a round and the test of what it trains alone") as told:
        train(digits(), "mlr", "fedavg", rounds=1, privacy={**PRIVACY, "epsilon": 1.0, "noise": 1.0})
    taken = float(str(told.value).split("alone takes ")[1].split(";")[0])
    enough = {**PRIVACY, "epsilon": taken * 1.01, "noise": 1.0}
    assert len(train(digits(), "mlr", "fedavg", rounds=1, privacy=enough).history) == 1


class PressCtrlC(Callback):
    """Interrupts a run after its first round, as a person would."""

    def on_round(self, run: Any, record: Any) -> None:
        if record["round"] == 1 and run.options.rounds > 1:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("level", ["sample", "client"])
def test_an_interrupted_run_keeps_its_budget_for_the_rounds_that_are_left(level: str, tmp_path: Path) -> None:
    """Resumed it has paid for its rounds and one test of trained models, no more than a run in one go."""
    how: dict[str, Any] = {"rounds": 3, "privacy": {**PRIVACY, "level": level, "delta": 1e-5}}
    train(digits(), "mlr", "fedavg", out=tmp_path / "whole", **how)
    part = train(digits(), "mlr", "fedavg", out=tmp_path / "part", callbacks=[PressCtrlC()], **how)
    assert not part.facts["finished"]
    if level == "sample":
        assert part.metrics["post"] == part.metrics["pre"]
    resumed = resume(tmp_path / "part", digits())
    assert len(resumed.history) == 3
    for client in digits().names:
        assert steps_in(tmp_path / "part" / LEDGER, client) == steps_in(tmp_path / "whole" / LEDGER, client)


def test_clients_without_budget_sit_out_and_the_others_go_on() -> None:
    rng = np.random.default_rng(0)
    sizes = {"small": 40, "large": 400}
    held = Federation.from_arrays({k: (rng.normal(size=(n, 4)), rng.integers(0, 2, n)) for k, n in sizes.items()})
    result = train(held, "mlr", "fedavg", rounds=12, privacy={**PRIVACY, "epsilon": 8.0, "noise": 3.0})
    took_part = [record["participants"] for record in result.history]
    assert took_part[0] == 2
    assert took_part[-1] == 1
    assert np.all(result.extras["epsilon"].numpy() <= 8 * (1 + 1e-6))


CRASHING = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from crash import CRASHED, Points, arm
from fedkin import data, resume, train
from fedkin.local.private import PrivateTraining
from fedkin.privacy.accounting import accountants
from fedkin.run import checkpoint

federation = data.load("digits", clients=3, seed=0)
privacy = {"level": "sample", "epsilon": 20.0, "delta": 1e-5, "noise": 1.0}
begin = PrivateTraining.plan
accountants()  # imported once, before the forks

def once(out, used, last):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    mark = os.open(used, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def plan(self, place, dtype):
        os.write(mark, b"x" * int(self.steps[list(place).index(0)] if 0 in place else 0))
        return begin(self, place, dtype)

    PrivateTraining.plan = plan
    arm(Points("kill", last), out)
    if checkpoint.latest(out) is None:
        train(federation, "mlr", "fedavg", rounds=2, checkpoint_every=1, workers=1, out=out, privacy=privacy)
    else:
        resume(out, federation)
    os._exit(0)

for point in map(int, sys.argv[3:]):
    out, used = Path(sys.argv[2]) / str(point), str(Path(sys.argv[2]) / f"{point}.used")
    print(point, once(out, used, point), once(out, used, 0), flush=True)
"""


def crashed(tmp_path: Path, *points: int) -> list[list[int]]:
    how = [sys.executable, "-c", CRASHING, str(CRASH), str(tmp_path), *map(str, points)]
    said = subprocess.run(how, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    return [[int(number) for number in line.split()] for line in said.stdout.splitlines()]


@pytest.mark.parametrize("points", [(2, 9, 23), pytest.param(range(1, 61), marks=pytest.mark.slow)], ids=len)
def test_a_run_that_is_killed_while_it_writes_has_paid_for_all_it_used(points: range, tmp_path: Path) -> None:
    """Points at which a run writes: the middle of a write, before a sync, a rename or a removal."""
    found = crashed(tmp_path, *points)
    assert [first for _, first, _ in found].count(137) >= 3
    for point, _, again in found:
        used = (tmp_path / f"{point}.used").stat().st_size
        paid = Ledger(tmp_path / str(point) / LEDGER)
        rate = min(1.0, 32 / int(digits().train.sizes[0]))
        name = digits().names[0]
        assert again == 0
        assert paid.epsilon(name, "sample", 1e-5) >= epsilon_of(cost_of_steps(rate, 1.0, used), 1e-5) - 1e-9
        assert paid.epsilon(name, "sample", 1e-5) <= 20 * (1 + 1e-6)


@pytest.mark.slow
def test_kill_minus_nine_and_resume_go_on_counting(tmp_path: Path) -> None:
    out = tmp_path / "run"
    how = ["--data", "digits", "--clients", "3", "--model", "mlr", "--rounds", "4000", "--out", str(out)]
    table = "level=sample,epsilon=100,delta=1e-5,noise=8"
    command = [
        sys.executable,
        "-c",
        "from fedkin.cli import main; main()",
        "run",
        *how,
        "--privacy",
        table,
        "--set",
        "epochs=1",
    ]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ledger = out / LEDGER
    waited = time.monotonic() + 60
    while not (ledger.exists() and ledger.stat().st_size > 3000) and time.monotonic() < waited:
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    spent = Ledger(ledger).spent(1e-5)["sample"]
    assert min(spent.values()) > 0
    shared = {**PRIVACY, "epsilon": 100.0, "noise": 8.0, "ledger": str(ledger)}
    result = train(data.load("digits", clients=3, seed=0), "mlr", "fedavg", rounds=1, privacy=shared)
    after = dict(zip(result.names, result.extras["epsilon"].tolist()))
    assert all(after[name] > spent[name] for name in spent)
    assert steps_in(ledger, result.names[0]) > 0
