"""Lying sites: a few lies of every kind, and lies with a plan; `make test-faults` tells many (see `lies`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkin.engines.flower.setup import allowed_model
from fedkin.engines.flower.site import answer_at
from fedkin.engines.flower.wire import Message
from fedkin.testing import uneven_federation

from ..engines import sites
from .lies import GROUPS, HONEST, LYING, Campaign, Lie, lies, put, raw


def test_some_lies_of_every_kind_are_survived(tmp_path: Path) -> None:
    tried, faults = lies(tmp_path, "fedavg", every=11)
    assert tried >= 60
    assert not faults, "\n".join(faults)


# --- the lies that once ended everybody's run -------------------------------------------------------------------------


def rows_times(factor: float) -> Lie:
    """Rows that lie so many times as far from the received ones as honest training brings them."""

    def change(message: Message) -> Any:
        rows = message.tensors["array/rows"]
        return Message(message.head, {**message.tensors, "array/rows": rows * factor}).encode()

    return Lie("answer train", f"rows times {factor:g}", change)


ENDED: dict[str, tuple[Lie, str]] = {
    "answered names": (
        Lie("answer train", "answered", lambda m: raw(m, {**m.head, "answered": [["x"]]})),
        "answered",
    ),
    "only ready": (Lie("answer train", "ready", lambda m: ('{"ready": 1}', m.encode()[1])), "ready"),
    "rows of 1e38": (
        Lie(
            "answer train", "1e38", lambda m: Message(m.head, {k: v * 0 + 1e38 for k, v in m.tensors.items()}).encode()
        ),
        "of norm",
    ),
    "rows a hundred thousand times as long": (rows_times(1e5), "'rows' of norm .*others' allow"),
}


@pytest.mark.parametrize("name", ENDED)
def test_a_lie_in_training_sets_its_clients_aside_with_the_reason(name: str, tmp_path: Path) -> None:
    lie, reason = ENDED[name]
    line, result = Campaign(tmp_path, uneven_federation(), "fedavg").run(lie, 0)
    assert line.told
    told = [record["log"].get("failed", {}) for record in result.history]
    assert all(set(failed) == set(LYING) for failed in told)
    assert all(re.search(reason, why) for failed in told for why in failed.values()), told
    place = [result.names.index(client) for client in HONEST]
    assert np.isfinite(result.rows[place]).all()


def test_how_long_a_row_may_be_is_told_by_the_others(tmp_path: Path) -> None:
    """Ten times as far as the others is a matter for robust methods; the bound is for what no training gives."""
    _, result = Campaign(tmp_path, uneven_federation(), "fedavg").run(rows_times(10.0), 0)
    assert not any(record["log"].get("failed") for record in result.history)


@pytest.mark.parametrize("size", [10**25, -1, "many"])
def test_a_size_that_cannot_be_excludes_the_site_before_training(size: Any, tmp_path: Path) -> None:
    lie = Lie("join", f"size {size}", lambda m: raw(m, put(m.head, ("clients", 0, "train"), size)))
    runs = Campaign(tmp_path, uneven_federation(), "fedavg")
    line, result = runs.run(lie, 0)
    assert line.told
    assert set(result.names) == set(HONEST)
    assert np.array_equal(result.rows, runs.run(None, 1, without_liar=True)[1].rows)


# --- lies with a plan -------------------------------------------------------------------------------------------------


def test_a_model_that_a_site_names_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module beside the server would leave a file behind when it is imported."""
    (tmp_path / "lib").mkdir()
    proof = tmp_path / "imported"
    (tmp_path / "lib" / "some_module.py").write_text(f"open({str(proof)!r}, 'w')\ndef f(): open({str(proof)!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    for number, name in enumerate(
        ["some_module:f", "some_module:1", "some_module", "os:abort", "mlp:999999999", "tree:5:x"]
    ):
        lie = Lie("hello", name, lambda m, name=name: raw(m, put(m.head, ("clients", 0, "model"), name)))
        folder = tmp_path / str(number)
        folder.mkdir()
        runs = Campaign(folder, uneven_federation(), "fedrelax", model="sites")
        _, result = runs.run(lie, 0)
        assert set(result.names) == set(HONEST)
        assert not proof.exists()


@pytest.mark.parametrize(
    ("name", "allowed", "may"),
    [
        ("tree:3", [], True),
        ("tree:3", ["tree"], True),
        ("tree:3", ["tree:3"], True),
        ("tree:4", ["tree:3"], False),
        ("ridge", ["tree"], False),
        ("some_module:f", [], False),
        ("some_module:f", ["tree"], False),
        ("some_module:f", ["some_module:f"], True),
        ("some_module:g", ["some_module:f", "some_module"], False),
    ],
)
def test_the_operators_list_says_what_sites_may_bring(name: str, allowed: list[str], may: bool) -> None:
    assert (allowed_model(name, allowed) is None) == may


def test_a_site_trusts_no_module_by_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    proof = tmp_path / "imported"
    (tmp_path / "lib" / "other_module.py").write_text(f"open({str(proof)!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    path = sites.write_sites(uneven_federation(), tmp_path, GROUPS)[0]
    task = {"kind": "classification", "input_shape": [5], "classes": [0, 1, 2], "output_shape": [], "tokens": False}
    setup = {"task": task, "model": "mlr", "dtype": "float64", "seed": 0}
    head = {"kind": "answer", "run": "0a", "setup": setup, "task": "train", "clients": ["site-a"], "shared": {}}
    for change in ({"setup": {**setup, "model": "other_module:1"}}, {"task": "other_module:1"}):
        told = answer_at(path, Message({**head, **change}))
        assert "does not trust 'other_module:1'" in told.head["refused"]
    assert not proof.exists()
