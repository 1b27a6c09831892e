"""One way to find a thing by name: known, announced, or where it is."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin import plugins
from fedkin.algorithms import FedAvg
from fedkin.data import registry
from fedkin.engines.flower.setup import resolve
from fedkin.errors import FedkinError
from fedkin.models import build_network
from fedkin.testing import uneven_federation

CODE = """
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from fedkin.algorithms import FedAvg
from fedkin.engines.in_process import InProcess

class Same(FedAvg):
    '''FedAvg under another name.'''
    name = "same"
    title = "Same"

def wide(task, width=7):
    return nn.Sequential(nn.Linear(task.input_shape[0], width), nn.ReLU(), nn.Linear(width, task.outputs))

def small():
    return nn.Linear(5, 3)

def tree():
    return DecisionTreeClassifier(max_depth=2)

engine = InProcess
NUMBER = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of the user's own."""
    (tmp_path / "own_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "own_code", None)  # so that it is taken away again afterwards
    del sys.modules["own_code"]
    return "own_code"


def test_a_path_leads_to_the_same_numbers_as_the_object(own: str) -> None:
    federation = uneven_federation()
    for given in ({"algorithm": f"{own}:Same"}, {"engine": f"{own}:engine"}, {"model": f"{own}:wide:6"}):
        result = fedkin.train(federation, **{"model": "mlp:6", "algorithm": "fedavg", "rounds": 2, **given})
        assert result.rows.shape == (6, 5 * 6 + 6 + 6 * 3 + 3)
        plain = fedkin.train(federation, "mlp:6", FedAvg(), rounds=2)
        assert np.array_equal(result.rows, plain.rows)


def test_models_are_given_the_task_only_if_they_ask_for_something(own: str) -> None:
    task = uneven_federation().task
    assert build_network(f"{own}:wide", task)[0].out_features == 7
    assert build_network(f"{own}:wide:9", task)[0].out_features == 9
    assert build_network(f"{own}:small", task).out_features == 3
    with pytest.raises(FedkinError, match="takes no options, but 1 are given"):
        build_network(f"{own}:small:3", task)
    with pytest.raises(FedkinError, match="is a DecisionTreeClassifier, not a network"):
        build_network(f"{own}:tree", task)


def test_estimators_are_named_by_path_too(own: str) -> None:
    result = fedkin.train(uneven_federation(), f"{own}:tree", "fedrelax", rounds=1, graph="complete")
    assert result.config["model"]["name"] == f"{own}:tree"
    assert result.models["site-a"].max_depth == 2


def test_a_run_by_path_resumes_and_its_result_imports_nothing(own: str, tmp_path: Path) -> None:
    federation, out = uneven_federation(), tmp_path / "run"
    given = {"model": f"{own}:wide", "algorithm": f"{own}:Same"}
    whole = fedkin.train(federation, **given, rounds=3, out=tmp_path / "whole", checkpoint_every=1)
    fedkin.train(federation, **given, rounds=2, out=out, checkpoint_every=1)
    assert fedkin.load(out).algorithm == "same"
    assert fedkin.load(out).config["algorithm"]["name"] == f"{own}:Same"
    assert np.array_equal(fedkin.resume(out, federation, rounds=3).rows, whole.rows)
    del sys.modules[own]
    loaded = fedkin.load(out)
    assert own not in sys.modules
    with pytest.raises(FedkinError, match=r"load the result with fedkin\.load"):
        loaded.models["site-a"]
    assert fedkin.load(out, f"{own}:wide").models["site-a"][0].out_features == 7


@pytest.mark.parametrize(
    ("kind", "name", "line"),
    [
        ("algorithm", "nowhere.at_all:Thing", "algorithm 'nowhere.at_all:Thing': there is no module 'nowhere'; is its"),
        ("algorithm", "math:sqqrt", "unknown name in math, for the algorithm, 'sqqrt'; did you mean 'sqrt'"),
        ("loss", "hinge", "unknown loss 'hinge'; choose one of: a"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(kind: str, name: str, line: str) -> None:
    with pytest.raises(FedkinError) as refusal:
        plugins.find(kind, name, {"a": 1})
    assert str(refusal.value).startswith(line)
    assert "\n" not in str(refusal.value)


def test_what_is_there_but_of_another_kind_is_refused(own: str) -> None:
    federation = uneven_federation()
    with pytest.raises(FedkinError, match="is no method"):
        fedkin.algorithms.get("math:sqrt")
    with pytest.raises(FedkinError, match="is none: it must be a DataSet"):
        fedkin.data.load("math:sqrt")
    with pytest.raises(FedkinError, match="not a function that returns Clients"):
        fedkin.train(federation, "mlr", engine=f"{own}:NUMBER")
    with pytest.raises(FedkinError, match="is no builder"):
        fedkin.train(federation, "mlr", "fedu", graph=f"{own}:NUMBER")
    with pytest.raises(FedkinError, match="not a function that returns a model"):
        fedkin.train(federation, f"{own}:NUMBER")
    with pytest.raises(FedkinError, match="give a name or a function"):
        fedkin.algorithms.make("fedpnp", {"denoiser": f"{own}:NUMBER"})


def test_a_data_set_registered_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [entry["name"] for entry in fedkin.data.catalogue()]
    monkeypatch.setattr(registry, "_SETS", dict(registry._SETS))

    @registry.dataset(name="late", description="", size="", licence="", citation="")
    def late(arrays, recipe):  # type: ignore[no-untyped-def]
        return uneven_federation()

    assert len(fedkin.data.load("late")) == 6
    assert [entry["name"] for entry in fedkin.data.catalogue()] == sorted([*known, "late"])


def test_a_site_cannot_have_the_server_import_a_module_through_a_built_in_or_a_plain_name(own: str) -> None:
    """What has no path of its own in `engines/flower/setup.py` goes on as a plain name, and stays one here."""
    task = uneven_federation().task
    for name in (own, f"{own}:", f"mlp:{own}:wide", f"tree:{own}:tree"):
        assert resolve(name) == name
        with pytest.raises(FedkinError):
            build_network(name, task)
        with pytest.raises(FedkinError):
            fedkin.models.estimators.named_estimator(name, task)
    assert own not in sys.modules
