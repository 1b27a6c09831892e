"""Fitted estimators are saved without pickle, read again, and predict; what they could be made to do is refused."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

import fedkin
from fedkin import Federation
from fedkin.algorithms import FedRelax
from fedkin.errors import FedkinError
from fedkin.result.estimators_file import ESTIMATORS_FILE, _check_trees, estimators_to_bytes

pytest.importorskip("skops")


def visits() -> pd.DataFrame:
    rng, n = np.random.default_rng(0), 180
    frame = pd.DataFrame(
        {"site": rng.choice(["a", "b", "c"], n), "age": rng.normal(50, 10, n), "dose": rng.normal(size=n)}
    )
    frame["sex"] = rng.choice(["m", "f"], n)
    frame["outcome"] = np.where((frame["age"] > 50) & (frame["site"] != "c"), "ill", "well")
    frame["stay"] = 100 + frame["age"]
    return frame


@pytest.mark.parametrize("target", ["outcome", "stay"])
def test_trees_of_fedrelax_are_loaded_again_and_predict(target: str, tmp_path: Path) -> None:
    frame = visits().drop(columns="stay" if target == "outcome" else "outcome")
    federation = Federation.from_frame(frame, "site", target)
    result = fedkin.train(federation, "tree:3", FedRelax(), graph="complete", rounds=2, out=tmp_path / "run")
    assert "pickle" not in zipfile.ZipFile(tmp_path / "run" / ESTIMATORS_FILE).read("schema.json").decode().lower()
    loaded = fedkin.load(tmp_path / "run")
    here, there = (fedkin.predict(r, None, frame, client_column="site") for r in (result, loaded))
    pd.testing.assert_frame_equal(here, there)
    for k, name in enumerate(result.names):
        x, y = federation.test[k]
        said = fedkin.predict(loaded, name, frame[frame["site"] == name])
        if target == "outcome":
            assert (said["probability_ill"] + said["probability_well"]).to_numpy() == pytest.approx(1)
            continue
        direct = loaded.models[name].predict(x.reshape(len(x), -1))
        error = result.task.scale.std * np.sqrt(np.mean((direct - y) ** 2))
        assert error == pytest.approx(result.metrics["deployed"]["test_rmse"][k], rel=1e-5)
    loaded.save(tmp_path / "copy")
    pd.testing.assert_frame_equal(
        fedkin.predict(fedkin.load(tmp_path / "copy"), None, frame, client_column="site"), here
    )


def test_what_is_not_ours_is_not_read(tmp_path: Path) -> None:
    from skops import io

    frame = visits()
    federation = Federation.from_frame(frame.drop(columns="stay"), "site", "outcome")
    fedkin.train(federation, "tree:2", FedRelax(), graph="complete", rounds=1, out=tmp_path)
    (tmp_path / ESTIMATORS_FILE).write_bytes(io.dumps({"a": np.random.default_rng(0), "b": print}))
    with pytest.raises(FedkinError, match="changed"):
        fedkin.load(tmp_path)
    with pytest.raises(FedkinError, match="which fedkin does not write"):
        fedkin.predict(fedkin.load(tmp_path, accept_changes=True), "a", frame)
    (tmp_path / ESTIMATORS_FILE).write_bytes(b"PK not a zip")
    with pytest.raises(FedkinError, match="is damaged"):
        fedkin.predict(fedkin.load(tmp_path, accept_changes=True), "a", frame)


def test_a_tree_that_leads_astray_is_refused() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 3))
    y = (x[:, 0] > 0).astype(int)
    forest = RandomForestClassifier(3).fit(x, y)
    _check_trees({"a": forest})
    forest.estimators_[1].tree_.children_left[0] = 10**6
    with pytest.raises(ValueError, match="a node that it lacks"):
        _check_trees({"a": forest})
    tree = DecisionTreeClassifier().fit(x, y)
    tree.tree_.children_right[0] = 0  # a circle
    with pytest.raises(ValueError, match="a node that it lacks"):
        _check_trees(tree)
    boosted = HistGradientBoostingClassifier(max_iter=2).fit(x, y)
    _check_trees(boosted)
    boosted._predictors[1][0].nodes["left"][0] = 10**6
    with pytest.raises(ValueError, match="a node that it lacks"):
        _check_trees(boosted)


def test_a_tree_that_asks_for_an_input_there_is_not_is_refused() -> None:
    """Compiled code reads x[feature] without looking: only numbers below those that the estimator checks are let in."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 3))
    y = (x[:, 0] > 0).astype(int)
    tree = DecisionTreeClassifier().fit(x, y)
    tree.tree_.feature[0] = 3
    with pytest.raises(ValueError, match="an input that there is not"):
        _check_trees({"a": tree})
    boosted = HistGradientBoostingClassifier(max_iter=2).fit(x, y)
    boosted._predictors[0][0].nodes["feature_idx"][0] = 3
    with pytest.raises(ValueError, match="an input that there is not"):
        _check_trees({"a": boosted})
    forest = RandomForestClassifier(3).fit(x, y)
    forest.estimators_[1].n_features_in_ = 1000
    with pytest.raises(ValueError, match="other inputs than the whole"):
        _check_trees({"a": forest})
    by_category = HistGradientBoostingClassifier(max_iter=2, categorical_features=[2])
    codes = np.column_stack([x[:, :2], rng.integers(0, 5, 100)])
    by_category.fit(codes, codes[:, 2] % 2)
    with pytest.raises(ValueError, match="splits by category"):
        _check_trees({"a": by_category})
    assert estimators_to_bytes({"a": GradientBoostingClassifier(n_estimators=2).fit(x, y), "b": by_category}) is None


def test_only_what_can_be_trusted_is_written() -> None:
    class Own(DecisionTreeClassifier):
        pass

    x, y = np.arange(10.0)[:, None], np.arange(10) % 2
    assert estimators_to_bytes({"a": Own().fit(x, y)}) is None
    assert estimators_to_bytes({"a": DecisionTreeClassifier().fit(x, y), "b": Own().fit(x, y)}) is not None
