"""Losses, metrics and the task that owns them: formulas, round trips, and one line for everything that does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from torch import Tensor, nn

import fedkin
from fedkin.algorithms import FedAvg
from fedkin.couplings.server_step import server_step
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.run import make_options
from fedkin.task import Forecast, Task
from fedkin.task.choice import chosen
from fedkin.task.losses import LOSSES, focal, loss_of
from fedkin.task.metrics import METRICS, Metric

TWO = Task("classification", (4,), ("no", "yes"))
THREE = Task("classification", (4,), (0, 1, 2))
NUMBERS = Task("regression", (4,), output_shape=(2,))
COLUMNS = Task("multilabel", (4,), output_shape=(3,))


def made(task: Task, n: int = 60) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn((n, task.outputs), generator=generator, dtype=torch.float64)
    if task.kind == "classification":
        return outputs, torch.randint(0, task.outputs, (n,), generator=generator)
    targets = torch.randn(outputs.shape, generator=generator, dtype=torch.float64) + outputs
    return outputs, targets if task.kind == "regression" else (targets > 0).double()


def judged(task: Task, name: str) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    task = chosen(task, metrics=[name])
    outputs, targets = made(task)
    key = name.replace("-", "_")
    assert task.metric == key
    return (
        task.judge(outputs, targets)[key],
        task.predictions(outputs).numpy(),
        task.labels(outputs).numpy(),
        targets.numpy(),
    )


def test_metrics_of_two_classes_are_scikit_learns() -> None:
    expected = {
        "accuracy": lambda p, c, y: sk.accuracy_score(y, c),
        "balanced-accuracy": lambda p, c, y: sk.balanced_accuracy_score(y, c),
        "auroc": lambda p, c, y: sk.roc_auc_score(y, p[:, 1]),
        "auprc": lambda p, c, y: sk.average_precision_score(y, p[:, 1]),
        "f1": lambda p, c, y: sk.f1_score(y, c),
        "brier": lambda p, c, y: sk.brier_score_loss(y, p[:, 1]),
        "log-loss": lambda p, c, y: sk.log_loss(y, p),
    }
    for name, theirs in expected.items():
        ours, *seen = judged(TWO, name)
        assert ours == pytest.approx(theirs(*seen)), name


def test_metrics_of_three_classes_are_scikit_learns() -> None:
    expected = {
        "balanced-accuracy": lambda p, c, y: sk.balanced_accuracy_score(y, c),
        "auroc": lambda p, c, y: sk.roc_auc_score(y, p, multi_class="ovr"),
        "f1": lambda p, c, y: sk.f1_score(y, c, average="macro"),
        "log-loss": lambda p, c, y: sk.log_loss(y, p),
    }
    for name, theirs in expected.items():
        ours, *seen = judged(THREE, name)
        assert ours == pytest.approx(theirs(*seen)), name


def test_metrics_of_numbers_and_columns_are_scikit_learns() -> None:
    numbers = {
        "mse": lambda p, c, y: sk.mean_squared_error(y, p),
        "rmse": lambda p, c, y: sk.mean_squared_error(y, p) ** 0.5,
        "mae": lambda p, c, y: sk.mean_absolute_error(y, p),
        "r2": lambda p, c, y: sk.r2_score(y, p),
    }
    columns = {
        "auroc": lambda p, c, y: sk.roc_auc_score(y, p),
        "auprc": lambda p, c, y: sk.average_precision_score(y, p),
        "f1": lambda p, c, y: sk.f1_score(y, c, average="macro"),
    }
    for task, expected in ((NUMBERS, numbers), (COLUMNS, columns)):
        for name, theirs in expected.items():
            ours, *seen = judged(task, name)
            assert ours == pytest.approx(theirs(*seen)), name


def test_calibration_error_of_an_honest_and_of_an_overconfident_forecast() -> None:
    ece = METRICS["ece"].function
    true = np.array([1, 1, 1, 0] * 25)
    assert ece(np.tile([0.25, 0.75], (100, 1)), true) == pytest.approx(0)
    assert ece(np.tile([0.05, 0.95], (100, 1)), true) == pytest.approx(0.2)


@pytest.mark.parametrize("name", ["auroc", "auprc", "r2"])
def test_no_value_is_nan(name: str) -> None:
    task = chosen(NUMBERS if name == "r2" else TWO, metrics=[name])
    outputs, targets = made(task, 8)
    assert np.isnan(task.judge(outputs, torch.ones_like(targets))[name])


def test_focal_without_focus_is_cross_entropy() -> None:
    outputs, targets = made(THREE)
    assert torch.allclose(focal(outputs, targets, 0.0), loss_of(THREE)(outputs, targets))


def test_balanced_weights_make_every_class_count_alike() -> None:
    counts = np.array([90, 9, 1])
    task = chosen(THREE, class_weight="balanced", counts=counts)
    assert task.class_weight is not None
    assert np.allclose(np.array(task.class_weight) * counts, 100 / 3)


def test_defaults_are_those_of_the_kind() -> None:
    assert (TWO.loss, TWO.metric, TWO.larger_is_better, TWO.unit, TWO.percent) == (
        "cross-entropy",
        "accuracy",
        True,
        "%",
        True,
    )
    assert (NUMBERS.loss, NUMBERS.metric, NUMBERS.larger_is_better, NUMBERS.percent) == ("mse", "mse", False, False)
    assert (COLUMNS.loss, COLUMNS.metric) == ("bce", "accuracy")


def test_a_task_survives_json_and_old_dictionaries_are_read() -> None:
    tasks = [
        chosen(THREE, "focal:1.5", [1, 2, 3], 0.1, ["auroc", "balanced-accuracy"], "balanced-accuracy"),
        Task("regression", (12,), output_shape=(12,), forecast=Forecast(1.0, 2.0)),
        COLUMNS,
    ]
    for task in tasks:
        assert Task.read(json.loads(json.dumps(task.told()))) == task
    old = {"kind": "classification", "input_shape": [4], "classes": ["no", "yes"], "output_shape": [], "tokens": False}
    assert Task.read(old) == TWO


def test_a_function_is_told_by_its_importable_name() -> None:
    assert chosen(NUMBERS, LOSSES["mae"].function).told()["loss"] == "fedkin.task.losses:mae"
    assert chosen(NUMBERS, "fedkin.task.losses:mae").told()["loss"] == "fedkin.task.losses:mae"
    assert chosen(NUMBERS, lambda o, y: (o - y).abs().sum(dim=1)).told()["loss"].startswith("own function ")


def once(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum()


BAD: dict[str, tuple[Task, dict[str, Any], str]] = {
    "unknown loss": (TWO, {"loss": "focl"}, "did you mean 'focal'"),
    "unknown metric": (TWO, {"metrics": ["aurok"]}, "did you mean 'auroc'"),
    "option of a loss": (NUMBERS, {"loss": "quantile:2"}, "between 0 and 1"),
    "loss of another kind": (NUMBERS, {"loss": "focal:2"}, "not for regression"),
    "metric of another kind": (NUMBERS, {"metrics": ["auroc"]}, "needs probabilities"),
    "headline of another kind": (NUMBERS, {"headline": "f1"}, "needs labels"),
    "shape": (TWO, {"loss": once}, r"returns \(\) for 16 samples"),
    "no gradient": (TWO, {"loss": lambda o, y: o.detach()[:, 0]}, "not differentiable"),
    "not finite": (TWO, {"loss": lambda o, y: o[:, 0].log()}, "not finite"),
    "fails": (TWO, {"loss": lambda o, y: o @ o}, "fails on outputs"),
    "looks at others": (TWO, {"loss": lambda o, y: o[:, 0] - o[:, 0].mean()}, "depends on the other samples"),
    "weights of regression": (NUMBERS, {"class_weight": "balanced"}, "needs classes"),
    "smoothing of regression": (NUMBERS, {"label_smoothing": 0.1}, "label_smoothing needs classes"),
    "weight of no class": (TWO, {"class_weight": {"maybe": 2}}, "unknown class in class_weight"),
    "weight nobody needs": (TWO, {"class_weight": {"yes": 2}, "counts": np.array([5, 0])}, "nobody has"),
    "balanced without a class": (TWO, {"class_weight": "balanced", "counts": np.array([5, 0])}, "nobody has"),
    "too few weights": (THREE, {"class_weight": [1, 2]}, "2 entries"),
    "weights with own loss": (TWO, {"loss": lambda o, y: o[:, 0], "class_weight": [1, 2]}, "your own loss"),
    "loss of numbers": (TWO, {"loss": "mae"}, "or say task='regression'"),
    "loss of counts": (TWO, {"loss": "poisson"}, "or say task='counts'"),
    "other case": (TWO, {"metrics": ["AUROC"]}, "did you mean 'auroc'"),
    "a loss that is an object": (TWO, {"loss": nn.CrossEntropyLoss()}, r"'CrossEntropyLoss' returns \(\)"),
    "fails for class 1": (TWO, {"loss": lambda o, y: o[:, 0] / (1.0 - y)}, "not finite"),
    "metric that fails": (TWO, {"metrics": ["never"]}, "'never' fails on predictions .* division by zero"),
    "metric of each sample": (TWO, {"metrics": ["each"]}, "'each' fails on predictions"),
    "import": (TWO, {"loss": "fedkin.nowhere:f"}, "cannot be imported"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_does_not_fit_is_refused_in_one_line(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, asked, says = BAD[what]
    for name, function in {"never": lambda said, true: 1 / 0, "each": lambda said, true: said == true}.items():
        monkeypatch.setitem(METRICS, name, Metric(name, function, "labels", ("classification",), True))
    with pytest.raises(FedkinError, match=says) as refused:
        chosen(task, **asked)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("register", "how", "says"),
    [
        (fedkin.metric, {"needs": "label", "larger_is_better": True}, "did you mean 'labels'"),
        (fedkin.metric, {"needs": "labels", "larger_is_better": True, "kinds": ["clasification"]}, "'classification'"),
        (fedkin.loss, {"kinds": ["clasification"]}, "'classification'"),
        (fedkin.loss, {"link": "softmx"}, "'softmax'"),
    ],
)
def test_a_registration_that_means_nothing_is_refused(register: Any, how: dict[str, Any], says: str) -> None:
    with pytest.raises(FedkinError, match=says):
        register("mine", **how)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"loss": 3}, "loss = 3 is not allowed: give a name"),
        ({"class_weight": 3}, "class_weight = 3 is not allowed: say 'balanced'"),
        ({"class_weight": {"yes": "much"}}, "say 'balanced'"),
    ],
)
def test_an_option_of_another_type_is_refused_in_one_line(options: dict[str, Any], says: str) -> None:
    with pytest.raises(FedkinError, match=says) as refused:
        make_options(**options)
    assert "\n" not in str(refused.value)


def test_rates_of_negative_numbers_are_refused_with_the_client(least_squares: Any) -> None:
    with pytest.raises(FedkinError, match=r"client 'site-0': loss 'poisson' needs counts, 0 or more, but has .* -"):
        fedkin.train(least_squares(0, 2, 20, 0.0), "linear", rounds=1, loss="poisson")


# --- from the user's side ---------------------------------------------------------------------------------------------


def sites(kind: str = "rare") -> Federation:
    rng = np.random.default_rng(0)
    clients = {}
    for k in range(4):
        x = rng.normal(size=(60, 4))
        rare = (x[:, 0] + rng.normal(size=60) > 1.2).astype(int)
        y = {"rare": rare, "columns": (x[:, :3] > 0).astype(int), "counts": rng.poisson(np.exp(x[:, 0]))}[kind]
        clients[f"site-{k}"] = (x, np.zeros_like(y) if kind == "rare" and k == 3 else y)
    return Federation.from_arrays(clients, task="counts" if kind == "counts" else None)


def test_every_table_speaks_of_the_headline_and_a_client_of_one_class_has_no_value() -> None:
    asked: dict[str, Any] = {
        "loss": "focal:1",
        "class_weight": "balanced",
        "metrics": ["f1", "auroc"],
        "headline": "auroc",
    }
    result = fedkin.train(sites(), "mlp:4", FedAvg(lr=0.1), rounds=4, **asked)
    assert result.metric == "test_auroc"
    values = np.array(result.metrics["deployed"]["test_auroc"], dtype=float)
    assert np.isnan(values[3])
    assert np.isfinite(values[:3]).all()
    assert result.summary("deployed")["mean"] == pytest.approx(values[:3].mean())


def test_what_was_asked_is_written_down_and_taken_up(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"class_weight": {0: 1.0, 1: 5.0}, "label_smoothing": 0.1, "metrics": ["brier", "ece"]}
    whole = fedkin.train(sites(), "mlp:4", rounds=4, **asked)
    fedkin.train(sites(), "mlp:4", rounds=2, out=tmp_path / "run", checkpoint_every=1, **asked)
    resumed = fedkin.resume(tmp_path / "run", sites(), rounds=4)
    assert np.array_equal(resumed.rows, whole.rows)
    assert fedkin.load(tmp_path / "run").task == resumed.task == whole.task


def test_a_metric_may_be_one_name_or_a_registered_function() -> None:
    for asked in ("auroc", ["auroc"], [METRICS["auroc"].function]):
        assert make_options(metrics=asked).metrics == ("auroc",)
    with pytest.raises(FedkinError, match="'once' is not registered"):
        make_options(metrics=[once])


def test_a_loss_of_ones_own_must_be_given_again(tmp_path: Path) -> None:
    def own(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none") ** 2

    whole = fedkin.train(sites(), "mlp:4", rounds=3, loss=own)
    fedkin.train(sites(), "mlp:4", rounds=2, out=tmp_path / "run", checkpoint_every=1, loss=own)
    with pytest.raises(FedkinError, match="a loss of your own; pass it"):
        fedkin.resume(tmp_path / "run", sites(), rounds=3)
    assert np.array_equal(fedkin.resume(tmp_path / "run", sites(), rounds=3, loss=own).rows, whole.rows)


def test_columns_of_labels_are_learned() -> None:
    data = sites("columns")
    assert data.task.kind == "multilabel"
    result = fedkin.train(data, "mlr", FedAvg(lr=1.0), rounds=20, metrics=["accuracy", "auroc"])
    assert result.summary("deployed")["mean"] > 0.9


def test_counts_are_predicted_by_their_rate() -> None:
    data = sites("counts")
    assert data.task.loss == "poisson"
    fitted = fedkin.train(data, "linear", FedAvg(lr=0.05), rounds=30, metrics=["mse"])
    blank = fedkin.train(data, "linear", FedAvg(lr=0.05), rounds=0, metrics=["mse"])
    assert fitted.summary("deployed")["mean"] < 0.8 * blank.summary("deployed")["mean"]
    with pytest.raises(FedkinError, match="client 'a': counts must be whole numbers"):
        Federation.from_arrays({"a": (np.zeros((4, 2)), np.array([0.5, 1, 2, 3]))}, task="counts")


def few(positives: int, **about: Any) -> Federation:
    rng = np.random.default_rng(0)
    y = np.arange(100) < positives
    return Federation.from_arrays({f"site-{k}": (rng.normal(size=(100, 2)), y.astype(int)) for k in range(3)}, **about)


def test_a_rare_class_of_ones_own_data_makes_auroc_the_headline() -> None:
    result = fedkin.train(few(4), "mlr", rounds=1)
    assert result.task.metrics == ("auroc", "accuracy")
    assert result.metric == "test_auroc"
    assert any("class 1, so the headline is AUROC" in note for note in result.notes)


@pytest.mark.parametrize(
    ("federation", "options"),
    [
        (few(20), {}),
        (few(4), {"metrics": ["accuracy"]}),
        (few(4), {"headline": "f1"}),
        (few(4, source={"name": "a set of a paper"}), {}),
        (few(4, classes=[0, 1, 2]), {}),
    ],
    ids=["a fifth", "metrics named", "headline named", "a named set", "three classes"],
)
def test_other_data_keep_their_headline(federation: Federation, options: dict[str, Any]) -> None:
    result = fedkin.train(federation, "mlr", rounds=1, **options)
    assert result.task.headline == options.get("headline", "accuracy")
    assert not any("AUROC" in note for note in result.notes)


@pytest.mark.parametrize("kind", ["ordinal", "survival"])
def test_kinds_fedkin_does_not_know_are_refused_with_what_to_do(kind: Any) -> None:
    with pytest.raises(FedkinError, match=f"task '{kind}' is not supported; take task="):
        Federation.from_arrays({"a": (np.zeros((4, 2)), np.arange(4))}, task=kind)


# --- the server's step ------------------------------------------------------------------------------------------------


def test_the_servers_sgd_is_fedavg_and_with_momentum_a_heavy_ball() -> None:
    plain, half = (
        fedkin.train(sites(), "mlp:4", FedAvg(server_lr=rate), rounds=1, dtype="float64") for rate in (1.0, 0.5)
    )
    start = fedkin.train(sites(), "mlp:4", FedAvg(), rounds=0, dtype="float64")
    assert np.allclose(half.rows - start.rows, 0.5 * (plain.rows - start.rows))
    change, mean = torch.ones(1), torch.zeros(1)
    ways = []
    for _ in range(3):
        way, mean, _ = server_step("sgd", change, mean, mean, 1.0, 0.5)
        ways.append(float(way))
    assert ways == [1, 1.5, 1.75]


def test_adaptive_servers_follow_the_paper() -> None:
    """First step from v = 0: v is Δ², (1 − β₂)Δ² and again (1 − β₂)Δ² for adagrad, adam and yogi."""
    change, zero = torch.tensor([0.2], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for how, square in (("adagrad", 0.04), ("adam", 0.0004), ("yogi", 0.0004)):
        way, mean, v = server_step(how, change, zero, zero, 0.1, 0.9)  # type: ignore[arg-type]
        assert float(v) == pytest.approx(square)
        assert float(way) == pytest.approx(0.1 * 0.02 / (square**0.5 + 1e-3))
    _, _, v = server_step("yogi", change, mean, torch.ones(1, dtype=torch.float64), 0.1, 0.9)
    assert float(v) == pytest.approx(1 - 0.01 * 0.04)


def test_the_servers_moments_are_in_the_checkpoint(tmp_path: Path) -> None:
    method = FedAvg(server_optimiser="yogi", server_lr=0.05, server_momentum=0.9)
    whole = fedkin.train(sites(), "bn-mlp:4", method, rounds=4)
    fedkin.train(sites(), "bn-mlp:4", method, rounds=2, out=tmp_path / "run", checkpoint_every=1)
    assert np.array_equal(fedkin.resume(tmp_path / "run", sites(), rounds=4).rows, whole.rows)
