"""auto as a user meets it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedkin
from fedkin import Federation, FedkinError
from fedkin.portfolio.auto import auto
from fedkin.portfolio.join import join

from .conftest import sites

QUICK = {"effort": "quick", "rounds": 10, "lr": 0.3}


def test_clients_are_better_together_and_their_kin_are_their_own_kind(contrary: Federation) -> None:
    result = auto(contrary, "mlr", **QUICK)
    alone = np.mean(result.facts["alone"]["test_accuracy"])
    assert result.summary()["mean"] > alone
    assert result.kin is not None
    same = np.arange(8)[:, None] % 2 == np.arange(8) % 2
    assert (result.kin * same).sum(axis=1).min() > 0.9
    assert np.allclose(result.kin.sum(axis=1), 1)
    for name in contrary.names:
        told = result.auto[name]
        assert sum(told["members"].values()) == pytest.approx(1)
        assert told["gain"][1] <= told["gain"][0] <= told["gain"][2]


def test_the_model_is_one_module_and_survives_saving(tmp_path: Path, contrary: Federation) -> None:
    result = auto(contrary, "mlr", **QUICK)
    result.save(tmp_path / "run")
    again = fedkin.load(tmp_path / "run")
    for k, name in enumerate(contrary.names):
        x, y = contrary.test[k]
        with torch.no_grad():
            out = again.models[name](torch.tensor(x, dtype=torch.float32))
        assert torch.allclose(out.exp().sum(dim=1), torch.ones(len(x)), atol=1e-5)
        assert (out.argmax(dim=1).numpy() == y).mean() == pytest.approx(again.metrics["deployed"]["test_accuracy"][k])
    assert again.auto[contrary.names[0]]["members"] == result.auto[contrary.names[0]]["members"]
    assert np.array_equal(again.kin, result.kin)  # type: ignore[arg-type]


def test_test_samples_choose_nothing(contrary: Federation) -> None:
    """Whatever the test part holds, the models are the same."""
    x, y = contrary.test.x, contrary.test.y
    spoilt = Federation(
        contrary.names, contrary.task, contrary.train, contrary.validation,
        type(contrary.test)(x * -3 + 1, 1 - y, contrary.test.offsets),
    )  # fmt: skip
    one, two = (auto(federation, "mlr", **QUICK) for federation in (contrary, spoilt))
    assert torch.equal(one.extras["parts_rows"], two.extras["parts_rows"])
    assert torch.equal(one.extras["parts_weights"], two.extras["parts_weights"])


def test_the_same_seed_gives_the_same_models_in_any_order_of_clients(contrary: Federation) -> None:
    one = auto(contrary, "mlr", dtype="float64", **QUICK)
    turned = auto(contrary.take(list(range(8))[::-1]), "mlr", dtype="float64", **QUICK)
    x = torch.randn(5, 6, dtype=torch.float64)
    for name in contrary.names:
        assert torch.allclose(one.models[name](x), turned.models[name](x), atol=1e-6)


def test_regression_with_contrary_sites() -> None:
    federation = sites(regression=True)
    result = auto(federation, "linear", effort="standard", rounds=10, lr=0.1)
    assert result.summary()["mean"] < np.mean(result.facts["alone"]["test_mse"])
    out = result.models["site-0"](torch.tensor(federation.test[0][0], dtype=torch.float32))
    mse = float(((out.detach().numpy().ravel() - federation.test[0][1].ravel()) ** 2).mean())
    assert mse == pytest.approx(result.metrics["deployed"]["test_mse"][0], rel=1e-4)


def test_newcomers_get_their_models_without_a_round_of_the_others(contrary: Federation) -> None:
    old, new = contrary.take(range(6)), contrary.take([6, 7])
    result = auto(old, "mlr", **QUICK)
    joined = join(result, new)
    assert joined.names == ("site-6", "site-7")
    assert joined.summary()["mean"] >= np.mean(joined.facts["alone"]["test_accuracy"]) - 0.02
    kin = joined.extras["kin_of_peers"].numpy()
    same = np.arange(6)[None, :] % 2 == np.array([[0], [1]])
    assert (kin * same).sum(axis=1).min() > 0.8
    with pytest.raises(FedkinError, match="part of the run already"):
        join(result, old)


def test_small_and_one_class_clients_are_handled() -> None:
    federation = sites(clients=6)
    x, y = federation.train[0]
    clients = {
        name: {"train": federation.train[k], "test": federation.test[k]} for k, name in enumerate(federation.names)
    }
    clients["tiny"] = {"train": (x[:1], y[:1]), "test": federation.test[0]}
    clients["one-class"] = {"train": (x[y == 1][:4], y[y == 1][:4]), "test": federation.test[0]}
    result = auto(Federation.from_arrays(clients, classes=[0, 1]), "mlr", **QUICK)
    assert np.isfinite(result.metrics["deployed"]["test_accuracy"]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [({"effort": "quik"}, "unknown effort 'quik'; did you mean 'quick'"), ({"rate": 1}, "unknown run option 'rate'")],
)
def test_bad_input_is_refused_in_one_line(contrary: Federation, change: dict[str, object], message: str) -> None:
    with pytest.raises(FedkinError, match=message):
        auto(contrary, "mlr", **{**QUICK, **change})  # type: ignore[arg-type]
    with pytest.raises(FedkinError, match="at least two clients"):
        auto(contrary.take([0]), "mlr")


def test_a_client_without_auroc_keeps_its_model_and_its_other_numbers(contrary: Federation) -> None:
    """All of its test samples are of one class: that is no sign that its training diverged."""
    one = contrary.test.y.copy()
    one[: contrary.test.offsets[1]] = 0
    test = type(contrary.test)(contrary.test.x, one, contrary.test.offsets)
    federation = Federation(contrary.names, contrary.task, contrary.train, contrary.validation, test)
    how = {"metrics": ["auroc", "accuracy"], "rounds": 10}
    trained = fedkin.train(federation, "mlr", fedkin.algorithms.FedAvgFT(lr=0.3), **how)
    plain = fedkin.train(federation, "mlr", fedkin.algorithms.FedAvgFT(lr=0.3), rounds=10)
    combined = auto(federation, "mlr", **{**QUICK, **how})
    for result in (trained, combined):
        found = result.metrics["deployed"]
        assert np.isnan(found["test_auroc"][0])
        assert np.isfinite(found["test_auroc"][1:]).all()
        assert np.isfinite([*found["test_loss"], *found["test_accuracy"]]).all()
    x = torch.randn(5, 6)
    assert torch.equal(trained.models["site-0"](x), plain.models["site-0"](x))


def test_parts_that_do_not_fit_are_refused(tmp_path: Path, contrary: Federation) -> None:
    result = auto(contrary, "mlr", **QUICK)
    for name, value in (("parts_index", result.extras["parts_index"] + 10**6), ("parts_offsets", torch.tensor([0, 1]))):
        replace(result, extras={**result.extras, name: value}).save(tmp_path / name)
        with pytest.raises(FedkinError, match="do not fit together"):
            fedkin.load(tmp_path / name)
