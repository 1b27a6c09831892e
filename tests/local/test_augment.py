"""Augmented batches: formulas, independence of chunks and workers, the plain loop, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkin import Federation, FedkinError, augment, resume, train
from fedkin.algorithms import make
from fedkin.augment import Drawn
from fedkin.config import settle
from fedkin.local.batches import plan_batches
from fedkin.streams import Streams, client_keys


def images(sizes: tuple[int, ...] = (18, 25, 11)) -> Federation:
    rng = np.random.default_rng(3)
    clients = {f"c{k}": (rng.integers(0, 256, (n, 2, 6, 5), dtype=np.uint8), rng.integers(0, 3, n))
               for k, n in enumerate(sizes)}  # fmt: skip
    return Federation.from_arrays(clients, scaling=1 / 255)


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))


def noisy(batch: Drawn, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    return batch.x + torch.from_numpy(rng.normal(0, 0.1, batch.x.shape)).to(batch.x.dtype), batch.y


LOCAL = {"epochs": 2, "batch_size": 7, "lr": 0.1}


def test_crop_cuts_a_window_out_of_the_padded_image() -> None:
    x = torch.rand(9, 2, 6, 5)
    found, _ = augment.crop(2)(Drawn(x, torch.zeros(9)), np.random.default_rng(5))
    corners = np.random.default_rng(5).integers(0, 5, (2, 9))
    for image, cut, (top, left) in zip(x, found, corners.T):
        padded = torch.zeros(2, 10, 9)
        padded[:, 2:8, 2:7] = image
        assert torch.equal(cut, padded[:, top : top + 6, left : left + 5])


def test_flip_mirrors_a_share_of_the_images() -> None:
    x = torch.rand(2000, 1, 1, 2)
    found, _ = augment.flip(0.3)(Drawn(x, torch.zeros(2000)), np.random.default_rng(0))
    mirrored = (found == x.flip(3)).all(dim=3).flatten()
    assert ((found == x).all(dim=3).flatten() | mirrored).all()
    assert 0.25 < float(mirrored.double().mean()) < 0.35


def test_mixup_costs_what_both_labels_cost() -> None:
    rng, x, y = np.random.default_rng(1), torch.rand(8, 4, dtype=torch.float64), torch.arange(8) % 3
    mixed, soft = augment.mixup(0.4)(Drawn(x, y, 3), rng)
    again = np.random.default_rng(1)
    share, other = again.beta(0.4, 0.4), torch.from_numpy(again.permutation(8))
    assert torch.allclose(mixed, share * x + (1 - share) * x[other])
    outputs = torch.randn(8, 3, dtype=torch.float64)
    cost = nn.functional.cross_entropy
    wanted = share * cost(outputs, y) + (1 - share) * cost(outputs, y[other])
    assert float(cost(outputs, soft)) == pytest.approx(float(wanted), rel=1e-12)
    numbers, half = torch.rand(8, 1), augment.mixup(0.4)(Drawn(x, torch.rand(8, 1)), np.random.default_rng(1))
    assert half[1].shape == numbers.shape


@pytest.mark.parametrize("model", ["mlp:6", net])
@pytest.mark.parametrize("how", ["crop:1+flip", "mixup:0.3", noisy])
def test_it_is_the_plain_loop_on_changed_batches(model: Any, how: Any) -> None:
    federation = images()
    done = train(federation, model, make("local", LOCAL), rounds=2, seed=4, dtype="float64", augment=how)
    function, streams, keys = augment.augmentation(how), Streams(4), client_keys(federation.names)
    for k, name in enumerate(federation.names):
        x, y = (torch.from_numpy(value) for value in federation.train[k])
        module = done.models[name]
        start = train(federation, model, make("local", LOCAL), rounds=0, seed=4, dtype="float64").models[name]
        start.train()
        optimiser = torch.optim.SGD(start.parameters(), lr=0.1)
        for t in (1, 2, 3):  # the model after local training has seen the batches of round 3
            word = streams.words("batches augment", t, keys)[k]
            rng = np.random.Generator(np.random.SFC64(int(word)))
            one = slice(k, k + 1)
            drawn = streams.words("batches", t, keys)[one]
            plan = plan_batches(drawn, np.array([len(y)]), np.zeros(1, dtype=int), 7, 2, None, torch.float64)
            for _, index, weight in plan.each():
                chosen = index[0][weight[0] > 0]
                inputs, targets = function(Drawn(x[chosen].double(), y[chosen], 3), rng)
                optimiser.zero_grad()
                nn.functional.cross_entropy(start(inputs), targets).backward()
                optimiser.step()
        wanted = start if done.choice[k] == "trained" else None
        if wanted is not None:
            for found, value in zip(module.parameters(), wanted.parameters()):
                torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-11)
    assert "trained" in done.choice or done.choice == ("received",) * 3


def test_workers_chunks_and_company_do_not_matter() -> None:
    federation, method = images((20, 9, 31, 14)), make("local", LOCAL)
    how: dict[str, Any] = {"rounds": 2, "augment": "crop:2+flip", "dtype": "float64"}
    rows = {w: train(federation, net, method, **how, workers=w).server_rows for w in (1, 3)}
    torch.testing.assert_close(rows[1], rows[3])
    alone = train(federation.take([2]), net, method, **how).server_rows
    torch.testing.assert_close(alone[0], rows[1][2])
    plain = train(federation, net, method, rounds=2, dtype="float64").server_rows
    assert not torch.allclose(plain, rows[1])


def test_resume_is_bitwise_and_wants_a_function_again(tmp_path: Path) -> None:
    federation, method = images(), make("fedavg", LOCAL)
    for how, again in (("crop:1+flip", None), (lambda batch, rng: (batch.x * rng.random(), batch.y), "it")):
        out = tmp_path / f"run-{again}"
        whole = train(federation, net, method, rounds=4, augment=how)
        train(federation, net, method, rounds=2, augment=how, out=out)
        if again:
            with pytest.raises(FedkinError, match="augment=…"):
                resume(out, federation, net, rounds=4)
        done = resume(out, federation, net, rounds=4, augment=how if again else None)
        assert torch.equal(done.server_rows, whole.server_rows)


def test_settings_name_it() -> None:
    settings = settle([{"data": {"name": "digits"}, "run": {"rounds": 1, "augment": "mixup:0.3"}}])
    assert settings.options[0].augment == "mixup:0.3"
    federation = settings.federation(0)
    done = train(federation, "mlr", rounds=1, augment="mixup:0.3")
    assert done.task.augment == "mixup:0.3"
    assert done.config["run"]["augment"] == "mixup:0.3"


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("turn", "unknown augmentation 'turn'"),
        ("crop:0", "at least 1"),
        ("crop:1x", "option"),
        ("mixup:-1", "above 0"),
        ("flip:2", "at most 1"),
        (7, "augment is 7"),
        (lambda batch, rng: (batch.x[:, :1], batch.y), "must keep the shape"),
        (lambda batch, rng: batch.z, "fails on a batch"),
    ],
)
def test_what_cannot_be_done_is_refused_before_training(how: Any, why: str) -> None:
    with pytest.raises(FedkinError, match=why):
        train(images(), net, rounds=1, augment=how)


def test_methods_and_inputs_that_it_does_not_fit() -> None:
    rng = np.random.default_rng(0)
    flat = Federation.from_arrays({name: (rng.random((9, 4)), [0, 1, 2] * 3) for name in "ab"})
    with pytest.raises(FedkinError, match="needs images"):
        train(flat, "mlr", rounds=1, augment="flip")
    with pytest.raises(FedkinError, match="leave out augment"):
        train(flat, "mlr", "fedrelax", rounds=1, augment="mixup:1")
    with pytest.raises(FedkinError, match="each sample's own"):
        train(flat, "mlp:4", "fedproto", rounds=2, augment="mixup:1")
    train(images(), net, make("fedproto", {"features": "1"}), rounds=2, augment="crop:1")
