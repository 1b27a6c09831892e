"""Attackers send what their attack says, honest clients what they trained."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedkin import algorithms, cli
from fedkin.attacks import ATTACKS, Attack, attackers, poisoned, study, under_attack
from fedkin.attacks.behaviour import Sight
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.run import make_options
from fedkin.testing import uneven_federation


def sight() -> Sight:
    rng = torch.Generator().manual_seed(0)
    rows = [torch.randn((n, 4), generator=rng, dtype=torch.float64) for n in (2, 2, 5, 5)]
    return Sight(*rows, noise=lambda: torch.randn((2, 4), generator=rng, dtype=torch.float64))


def send(name: str, seen: Sight) -> torch.Tensor:
    how = ATTACKS[name].send
    assert how is not None
    return how(seen)


def test_what_attackers_send_is_what_the_attack_says() -> None:
    seen = sight()
    update = (seen.honest_trained - seen.honest_received).mean(dim=0)
    torch.testing.assert_close(send("sign-flip", seen), seen.received - 10 * (seen.trained - seen.received))
    torch.testing.assert_close(send("ipm", seen), seen.received - 0.5 * update)
    torch.testing.assert_close((send("large-norm", seen) - seen.received).norm(dim=1), 100 * update.norm().repeat(2))
    expected = seen.honest_trained.mean(dim=0) - 1.5 * seen.honest_trained.std(dim=0)
    torch.testing.assert_close(send("alie", seen), expected.expand(2, -1))
    assert float((send("free-rider", seen) - seen.received).norm()) < 0.01 * float(update.norm())


def test_only_attackers_have_other_samples() -> None:
    federation = uneven_federation()
    flipped, marked = (poisoned(federation, [2], how) for how in ("labels", "backdoor"))
    classes = len(federation.task.classes)
    for k in range(len(federation)):
        x, y = federation.train[k]
        if k == 2:
            np.testing.assert_array_equal(flipped.train[k][1], classes - 1 - y)
            changed = (marked.train[k][0] != x).any(axis=1)
            assert changed.sum() == len(x) // 2
            assert (marked.train[k][1][changed] == 0).all()
        else:
            np.testing.assert_array_equal(flipped.train[k][1], y)
            np.testing.assert_array_equal(marked.train[k][0], x)
    np.testing.assert_array_equal(marked.test.x, federation.test.x)


def test_who_attacks_does_not_depend_on_the_order_of_clients() -> None:
    names = [f"site-{k}" for k in range(9)]
    chosen = {names[k] for k in attackers(names, 3, 5)}
    assert {names[::-1][k] for k in attackers(names[::-1], 3, 5)} == chosen
    assert {names[k] for k in attackers(names, 2, 5)} < chosen
    with pytest.raises(FedkinError, match="leave at least one honest client"):
        attackers(names, 9, 0)


@pytest.mark.parametrize("method", ["local", "fedavg", "dfedu", "ifca", "fedper"])
def test_an_attack_that_changes_nothing_gives_the_clean_run(method: str) -> None:
    federation, options = uneven_federation(), make_options(rounds=2, seed=1, dtype="float64")
    made = algorithms.make(method, {"lr": 0.1, "batch_size": 8, **({"clusters": 2} if method == "ifca" else {})})
    harmless = Attack("nothing", "", lambda seen: seen.trained)
    found = under_attack(federation, "mlp:6", made, options, harmless, np.array([1]))
    clean = under_attack(federation, "mlp:6", made, options, harmless, np.array([], dtype=np.int64))
    honest = np.arange(6) != 1 if method == "dfedu" else slice(None)  # dFedU's attackers do not listen
    np.testing.assert_allclose(found.rows[honest], clean.rows[honest], atol=0.05 if method == "dfedu" else 1e-12)


def test_letters_of_attackers_reach_their_neighbours() -> None:
    federation, options = uneven_federation(), make_options(rounds=1, seed=1, dtype="float64")
    made = algorithms.make("dfedu", {"lr": 0.1, "batch_size": 8})
    shout = Attack("shout", "", lambda seen: torch.full_like(seen.trained, 1e4))
    found = under_attack(federation, "mlp:6", made, options, shout, np.array([1]))
    largest = found.server_rows.abs().max(dim=1).values.numpy()
    assert largest[np.arange(6) != 1].min() > 1
    assert largest[1] < 10


def test_a_study_counts_honest_clients_alone() -> None:
    federation, options = uneven_federation(), make_options(rounds=2, seed=1)
    found = study(federation, "mlp:6", ["fedavg"], ["sign-flip", "backdoor"], [1, 2], options)
    assert [(cell.attack, cell.attackers) for cell in found.cells] == [
        ("sign-flip", 1),
        ("backdoor", 1),
        ("sign-flip", 2),
        ("backdoor", 2),
    ]
    assert all(0 <= cell.guarded <= 1 for cell in found.cells if cell.guarded is not None)
    assert found.cells[1].backdoor.keys() == {"clean", "attacked", "guarded"}
    assert {key[3] for key in found.influence} == {"attacked", "guarded"}


def test_the_command_writes_a_table_json_and_pictures(tmp_path: Path) -> None:
    flags = (
        "--data digits --clients 6 --rounds 2 --model mlr --algorithms fedavg,fedu --attacks sign-flip --attackers 1,2"
    )
    ran = CliRunner().invoke(cli.app, ["attack", *flags.split(), "--out", str(tmp_path / "out"), "--json", str(tmp_path / "a.json")])  # fmt: skip
    assert ran.exit_code == 0, ran.output
    assert "sign-flip" in ran.output
    told = json.loads((tmp_path / "a.json").read_text())
    assert len(told["cells"]) == 4
    assert (tmp_path / "out" / "reach-fedavg.png").exists()
    assert json.loads((tmp_path / "out" / "attack.json").read_text()) == told


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--attacks sing-flip", "did you mean 'sign-flip'"),
        ("--attackers x", "give a number"),
        ("--attackers 6", "honest"),
        ("--attackers 0", "at least 1"),
        ("--robust klip", "did you mean 'clip'"),
        ("--algorithms fedu,global", "no defence to compare"),
        ("--algorithms fedu,mocha --model mlp", "leave it out"),
        ("--data school --attacks backdoor", "needs classes"),
    ],
)
def test_bad_input_gets_one_line_before_anybody_trains(
    flags: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base = "attack --rounds 1 --algorithms fedavg" + ("" if "--data" in flags else " --data digits --clients 6")
    with pytest.raises(SystemExit) as stopped:
        cli.app([*base.split(), *flags.split()])
    assert stopped.value.code == 2
    told = capsys.readouterr()
    assert message in told.err
    assert "local" not in told.out


def test_without_names_a_study_leaves_out_attacks_that_the_task_has_no_samples_for() -> None:
    rng = np.random.default_rng(0)
    parts = {f"c{k}": (rng.normal(size=(12, 3)), rng.normal(size=12)) for k in range(4)}
    federation = Federation.from_arrays(parts, task="regression", test_fraction=0.25)
    found = study(federation, "linear", ["fedavg"], None, [1], make_options(rounds=1))
    assert "backdoor" not in {cell.attack for cell in found.cells}
    assert len(found.cells) == len(ATTACKS) - 1
    assert not any(cell.broke for cell in found.cells)
