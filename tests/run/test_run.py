"""The loop: evaluation, checkpoints, callbacks, failures, influence."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedkin
from fedkin import ClientGraph, Federation, FedkinError
from fedkin.algorithm import State
from fedkin.algorithms import FedAvg, FedBN, FedProx, Local
from fedkin.local.tasks import TASKS
from fedkin.run import Run, checkpoint
from fedkin.run.cadence import rounds_between_tests
from fedkin.run.callbacks import Callback, CsvHistory, EarlyStop
from fedkin.run.trackers import TensorBoard


@pytest.fixture
def federation() -> Federation:
    rng = np.random.default_rng(0)
    clients = {}
    for k in range(5):
        y = rng.integers(0, 3, 30 + 5 * k)
        clients[f"site-{k}"] = (np.eye(3, 4)[y] * 3 + rng.normal(size=(len(y), 4)), y)
    return Federation.from_arrays(clients, validation_fraction=0.2)


def test_fedavg_equals_its_formula(federation: Federation) -> None:
    """One round of FedAvg is the size-weighted mean of what the clients train to alone."""
    alone = fedkin.train(federation, "mlr", Local(lr=0.1), rounds=1, dtype="float64")
    together = fedkin.train(federation, "mlr", FedAvg(lr=0.1), rounds=1, dtype="float64")
    zeta = federation.train.sizes / federation.train.sizes.sum()
    assert np.allclose(together.rows, zeta @ alone.rows)


def test_fedprox_without_pull_is_fedavg_and_with_it_moves_less(federation: Federation) -> None:
    settings = {"lr": 0.1, "batch_size": 8}  # several steps a round: the first one starts at the anchor
    plain = fedkin.train(federation, "mlp", FedAvg(**settings), rounds=2, dtype="float64")
    zero = fedkin.train(federation, "mlp", FedProx(**settings, mu=0), rounds=2, dtype="float64")
    strong = fedkin.train(federation, "mlp", FedProx(**settings, mu=5), rounds=2, dtype="float64")
    first = fedkin.train(federation, "mlp", FedAvg(**settings), rounds=0, dtype="float64")
    assert np.array_equal(plain.rows, zero.rows)
    assert np.linalg.norm(strong.rows - first.rows) < np.linalg.norm(plain.rows - first.rows)


def test_fedbn_is_fedavg_without_batch_norm_and_keeps_it_private_with(federation: Federation) -> None:
    same = [fedkin.train(federation, "mlp", m(lr=0.1), rounds=2, dtype="float64").rows for m in (FedAvg, FedBN)]
    assert np.array_equal(*same)
    result = fedkin.train(federation, "bn-mlp:6", FedBN(lr=0.1), rounds=2, dtype="float64")
    average = fedkin.train(federation, "bn-mlp:6", FedAvg(lr=0.1), rounds=2, dtype="float64")
    layout = fedkin.models.Layout.of(result.models["site-0"])
    norms = layout.mask(layout.norms).numpy()
    assert norms.sum() == 4 * 6
    assert (np.ptp(result.rows[:, ~norms], axis=0) == 0).all()
    assert (np.ptp(result.rows[:, norms], axis=0) > 0).all()
    assert result.facts["bytes"] < average.facts["bytes"]


def test_local_exchanges_nothing_and_fedavg_what_it_must(federation: Federation) -> None:
    assert fedkin.train(federation, "mlr", Local(), rounds=3).facts["bytes"] == 0
    result = fedkin.train(federation, "mlr", FedAvg(), rounds=3)
    rows = 5 * result.rows.shape[1] * 4
    assert result.facts["bytes"] == 3 * (2 * rows + 5 * (4 + 8))  # rows down and up; loss and ‖Δ‖ up


def test_influence_of_fedavg_is_everyones_share_and_of_local_its_own(federation: Federation) -> None:
    local = fedkin.train(federation, "mlr", Local(), rounds=2)
    assert np.array_equal(local.influence, np.eye(5))
    one = fedkin.train(federation, "mlr", FedAvg(steps=1, batch_size=500), rounds=1, dtype="float64")
    start = fedkin.train(federation, "mlr", FedAvg(), rounds=0, dtype="float64").rows[0]
    trained = fedkin.train(federation, "mlr", Local(steps=1, batch_size=500), rounds=1, dtype="float64").rows
    zeta = federation.train.sizes / federation.train.sizes.sum()
    share = zeta * np.linalg.norm(trained - start, axis=1)
    assert np.allclose(one.influence, share / share.sum())


def test_influence_explains_the_rows(federation: Federation) -> None:
    """w_i(T) = w_0 + Σ_t Σ_j [M_T … M_t]_ij Δ_j(t): with one-dimensional updates of one sign the matrix is exact."""
    from fedkin.algorithm import State, mix
    from fedkin.clients import Replies
    from fedkin.couplings import LaplacianStep

    graph = ClientGraph(np.array([[0, 1, 0], [1, 0, 2], [0, 2, 0.0]]))
    state = State(
        0, {"rows": torch.zeros((3, 1), dtype=torch.float64), "influence": torch.zeros((3, 3), dtype=torch.float64)}
    )
    rng = np.random.default_rng(0)
    for _ in range(4):
        moved = torch.from_numpy(rng.random(3))
        replies = Replies(np.arange(3), {"rows": state.rows + moved[:, None], "moved": moved})
        state = mix(state, replies, LaplacianStep(graph, 0.1))
    assert torch.allclose(state.arrays["influence"].sum(dim=1), state.rows[:, 0])


def test_pre_and_post_are_what_they_say(federation: Federation) -> None:
    """*post* after t rounds of FedAvg is what the clients' local training makes of the global model."""
    result = fedkin.train(federation, "mlr", FedAvg(lr=0.1), rounds=2, dtype="float64")
    frame = result.history.to_pandas()
    assert set(frame["when"]) == {"pre", "post"}
    assert len(frame) == 2 * 2 * 5 * 4  # rounds × pre/post × clients × (loss, accuracy) of (test, validation)
    post = np.array(result.metrics["post"]["test_loss"])
    pre = np.array(result.metrics["pre"]["test_loss"])
    assert (post != pre).all()


def test_validation_decides_what_is_deployed_never_test(federation: Federation) -> None:
    class Careful(FedAvg):
        deploys = "validated"

    result = fedkin.train(federation, "mlr", Careful(lr=0.5), rounds=2)
    before, after = (np.array(result.metrics[w]["validation_loss"]) for w in ("pre", "post"))
    assert result.choice == tuple("received" if b < a else "trained" for b, a in zip(before, after))


def test_global_test_is_every_model_on_all_test_samples(federation: Federation) -> None:
    result = fedkin.train(federation, "mlr", Local(lr=0.1), rounds=2, global_test=True)
    x, y = torch.as_tensor(federation.test.x, dtype=torch.float32), federation.test.y
    for k, name in enumerate(federation.names):
        guess = result.models[name](x).argmax(dim=1).numpy()
        assert result.facts["global"]["pre"][k] == pytest.approx((guess == y).mean())


def test_own_module_and_regression() -> None:
    rng = np.random.default_rng(0)
    weights = rng.normal(size=3)
    clients = {f"c{k}": (x := rng.normal(size=(60, 3)), x @ weights) for k in range(3)}
    federation = Federation.from_arrays(clients)
    result = fedkin.train(federation, lambda: nn.Linear(3, 1), FedAvg(lr=0.1, epochs=5), rounds=10)
    assert result.summary()["mean"] < 1e-3
    learned = result.models["c1"].weight.detach().numpy()[0]
    assert np.allclose(learned, weights, atol=0.05)


def test_save_load_and_own_architecture(federation: Federation, tmp_path: Path) -> None:
    factory = lambda: nn.Sequential(nn.Linear(4, 3))  # noqa: E731
    fedkin.train(federation, factory, FedAvg(), rounds=1).save(tmp_path / "run")
    loaded = fedkin.load(tmp_path / "run")
    with pytest.raises(FedkinError, match=r"fedkin.load\(dir, model"):
        loaded.models["site-0"]
    assert isinstance(fedkin.load(tmp_path / "run", model=factory).models["site-0"], nn.Sequential)
    assert isinstance(loaded.table(), pd.DataFrame)
    with pytest.raises(FedkinError, match="did you mean 'site-0'"):
        loaded.models["site0"]


def test_a_damaged_checkpoint_is_passed_over(federation: Federation, tmp_path: Path) -> None:
    whole = fedkin.train(federation, "mlr", FedAvg(), rounds=4, checkpoint_every=1, out=tmp_path / "a")
    newest = checkpoint.latest(tmp_path / "a")
    assert newest is not None
    assert newest.name == "round-000004.safetensors"
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    assert checkpoint.latest(tmp_path / "a") == newest.with_name("round-000003.safetensors")
    again = fedkin.resume(tmp_path / "a", federation)
    assert np.array_equal(again.rows, whole.rows)
    newest.with_suffix(".json").write_text("{")
    assert len(list((tmp_path / "a" / "checkpoints").glob("*.safetensors"))) == 2


def test_resume_refuses_other_data_and_missing_parts(federation: Federation, tmp_path: Path) -> None:
    fedkin.train(federation, "mlr", FedAvg(), rounds=1, out=tmp_path / "a")
    with pytest.raises(FedkinError, match="federation of your own; pass it"):
        fedkin.resume(tmp_path / "a")
    with pytest.raises(FedkinError, match="other data"):
        fedkin.resume(tmp_path / "a", federation.take([1, 0, 2, 3, 4]))
    with pytest.raises(FedkinError, match="already holds a run"):
        fedkin.train(federation, "mlr", FedAvg(), rounds=1, out=tmp_path / "a")
    with pytest.raises(FedkinError, match="not a run directory"):
        fedkin.resume(tmp_path / "nothing")
    with pytest.raises(FedkinError, match="no finished result"):
        fedkin.load(tmp_path / "nothing")


def test_a_full_disk_loses_nothing(federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fedkin.train(federation, "mlr", FedAvg(), rounds=2, checkpoint_every=1, out=tmp_path / "a")
    kept = checkpoint.latest(tmp_path / "a")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(FedkinError, match="the disk is full"):
        fedkin.resume(tmp_path / "a", federation, rounds=4)
    monkeypatch.undo()
    assert checkpoint.latest(tmp_path / "a") == kept
    assert not list((tmp_path / "a").rglob("*.part"))


def test_interrupt_finishes_the_round_saves_and_says_how_to_resume(
    federation: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class PressCtrlC(Callback):
        def on_round(self, run: Run, record: dict[str, Any]) -> None:
            if record["round"] == 2:
                os.kill(os.getpid(), signal.SIGINT)

    whole = fedkin.train(federation, "mlr", FedAvg(), rounds=5)
    partial = fedkin.train(federation, "mlr", FedAvg(), rounds=5, out=tmp_path / "a", callbacks=[PressCtrlC()])
    assert not partial.facts["finished"]
    assert partial.history[-1]["round"] == 2
    assert f"fedkin resume {tmp_path / 'a'}" in capsys.readouterr().err
    resumed = fedkin.resume(tmp_path / "a", federation)
    assert np.array_equal(resumed.rows, whole.rows)
    assert [r["round"] for r in resumed.history] == [1, 2, 3, 4, 5]


def test_callbacks_write_what_they_promise(federation: Federation, tmp_path: Path) -> None:
    callbacks: list[Callback] = [CsvHistory(tmp_path / "h.csv"), TensorBoard(tmp_path / "tb")]
    result = fedkin.train(federation, "mlr", FedAvg(), rounds=3, callbacks=callbacks)
    frame = pd.read_csv(tmp_path / "h.csv")
    last = frame[(frame["round"] == 3) & (frame["when"] == "pre") & (frame["metric"] == "test_accuracy")]
    assert last["mean"].item() == pytest.approx(result.summary("pre")["mean"])
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    assert events.Scalars("pre/test_accuracy")[-1].value == pytest.approx(result.summary("pre")["mean"], rel=1e-5)


def test_early_stop_watches_validation_loss() -> None:
    rng = np.random.default_rng(0)
    noise = {f"c{k}": (rng.normal(size=(40, 9)), rng.integers(0, 3, 40)) for k in range(3)}  # nothing but overfitting
    federation = Federation.from_arrays(noise, validation_fraction=0.3)
    stop = EarlyStop(patience=3)
    result = fedkin.train(federation, "mlr", Local(lr=0.5), rounds=60, eval_every=1, callbacks=[stop])
    losses = [np.mean(r["post"]["validation_loss"]) for r in result.history]
    assert len(losses) < 60
    assert int(np.argmin(losses)) == len(losses) - 4
    with pytest.raises(FedkinError, match="patience is 0"):
        EarlyStop(patience=0)


def test_a_client_that_diverges_is_set_aside_and_named(federation: Federation) -> None:
    x = federation.train.x.copy()
    x[federation.train.offsets[2] : federation.train.offsets[3]] *= 1e30
    from dataclasses import replace

    sick = replace(federation, train=replace(federation.train, stored=x))
    result = fedkin.train(sick, "mlp", FedAvg(lr=1.0), rounds=2)
    assert set(result.history[0]["log"]["failed"]) == {"site-2"}
    assert "diverged" in result.history[0]["log"]["failed"]["site-2"]
    assert np.isfinite(result.rows).all()


def test_if_everyone_diverges_the_run_stops_and_the_last_checkpoint_is_kept(
    federation: Federation, tmp_path: Path
) -> None:
    with pytest.raises(FedkinError, match="every client failed, first 'site-"):
        fedkin.train(federation, "mlp", FedAvg(lr=1e30), rounds=3, out=tmp_path / "a", checkpoint_every=1)
    fedkin.train(federation, "mlp", FedAvg(lr=0.1), rounds=1, out=tmp_path / "b")
    with pytest.raises(FedkinError, match=r"last good checkpoint, .*round-000001\.safetensors, is kept"):
        fedkin.resume(tmp_path / "b", federation, algorithm=FedAvg(lr=1e30), rounds=3)


def test_a_task_that_breaks_on_one_client_names_it(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TASKS["train"]

    def breaks(shard: Any, request: Any) -> Any:
        if 3 in request.ids:
            raise RuntimeError("sensor on fire")
        return honest(shard, request)

    monkeypatch.setitem(TASKS, "train", breaks)
    result = fedkin.train(federation, "mlr", FedAvg(), rounds=1)
    assert result.history[0]["log"]["failed"] == {"site-3": "task 'train' failed: sensor on fire"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": -1}, "run: rounds = -1 is not allowed"),
        ({"fraction": 1.5}, "run: fraction = 1.5"),
        ({"fracton": 0.5}, "unknown run option 'fracton'; did you mean 'fraction'"),
        ({"engine": "rai"}, "unknown engine 'rai'"),
        ({"algorithm": "fedagv"}, "unknown algorithm 'fedagv'; did you mean 'fedavg'"),
        ({"model": "mpl"}, "unknown model 'mpl'; did you mean .*'mlp'"),
        ({"model": "mlp:0"}, "layer widths must be at least 1"),
        ({"model": "fedpnp-mnist"}, r"takes inputs of shape \(1, 28, 28\)"),
        ({"model": lambda: nn.Linear(4, 7)}, "puts out 7 numbers per input, but the task has 3 classes"),
        ({"model": lambda: nn.Linear(9, 3)}, "does not take inputs of shape"),
        ({"model": 5}, "must be the name of a built-in network or a callable"),
        ({"graph": "knnn:3"}, "did you mean 'knn'"),
        ({"graph": ClientGraph(np.zeros((2, 2)), names=["site-0", "x"])}, "site-1"),
    ],
)
def test_bad_settings_are_refused_before_training(federation: Federation, options: Any, message: str) -> None:
    settings = {"model": "mlr", "algorithm": "fedavg", "rounds": 1, **options}
    with pytest.raises(FedkinError, match=message) as problem:
        fedkin.train(federation, **settings)
    assert "\n" not in str(problem.value)


def rounds_tested(federation: Federation, **options: Any) -> list[int]:
    history = fedkin.train(federation, "mlr", FedAvg(), **options).history
    return [record["round"] for record in history if "pre" in record]


def test_evaluation_cadence(federation: Federation) -> None:
    assert rounds_tested(federation, rounds=25) == [3, 6, 9, 12, 15, 18, 21, 24, 25]
    assert rounds_tested(federation, rounds=3, eval_every=2) == [2, 3]


def test_few_who_train_are_tested_less_often(federation: Federation) -> None:
    clients, trained = len(federation), federation.train.sizes.sum()
    tested = federation.test.sizes.sum() + federation.validation.sizes.sum()
    rounds = rounds_tested(federation, rounds=60, cohort=1)
    assert rounds[-1] == 60
    assert rounds[0] == rounds_between_tests(60, 1 / clients, tested, trained) > 6
    assert (60 // rounds[0]) * tested <= 0.05 * 3 * 60 * trained / clients


def test_a_checkpoint_waits_until_the_last_one_is_paid_for(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that moves 2 s per round, and a disk that takes 0.25 s: 25 s apart, after 5 s to begin with."""
    now, saved = [0.0], []
    monkeypatch.setattr("fedkin.run.cadence.time", SimpleNamespace(monotonic=lambda: now[0]))
    save = checkpoint.save

    def slow(directory: Path, state: State, *rest: Any) -> Path:
        now[0] += 0.25
        saved.append(state.round)
        return save(directory, state, *rest)

    monkeypatch.setattr("fedkin.run.checkpoint.save", slow)

    class Clock(Callback):
        def on_round(self, run: Run, record: Any) -> None:
            now[0] += 2

    fedkin.train(federation, "mlr", FedAvg(), rounds=20, out=tmp_path / "a", callbacks=[Clock()])
    assert saved == [4, 17, 20]


def test_history_file_is_one_json_object_per_line(federation: Federation, tmp_path: Path) -> None:
    fedkin.train(federation, "mlr", FedAvg(), rounds=3, out=tmp_path / "a")
    lines = (tmp_path / "a" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]
    assert {"config.toml", "checkpoints", "history.jsonl", "result.safetensors"} <= {
        path.name for path in (tmp_path / "a").iterdir()
    }
