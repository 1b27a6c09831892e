"""Lying sites: a few lies of every kind, and lies with a plan; `make test-faults` tells many (see `lies`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkin.engines.flower.site import answer_at
from fedkin.engines.flower.wire import Message
from fedkin.testing import uneven_federation

from ..engines import sites
from .lies import GROUPS, HONEST, Campaign, Lie, lies, put, raw


def test_some_lies_of_every_kind_are_survived(tmp_path: Path) -> None:
    tried, faults = lies(tmp_path, "fedavg", every=11)
    assert tried >= 60
    assert not faults, "\n".join(faults)


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
