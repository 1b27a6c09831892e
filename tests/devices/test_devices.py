"""Devices: whole runs on a pretended accelerator have the CPU's numbers, no operation mixes devices, nothing reads the host."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pretended import DEVICE, Pretending
from torch import nn

import fedkin
from fedkin import Federation, FedkinError, algorithms, resume, train
from fedkin.algorithms import make
from fedkin.compute.placement import Placement
from fedkin.local.kernels import choose_kernel
from fedkin.models import ModelSpec

SOURCE = Path(fedkin.__file__).parent
GROUPS = {f"c{k}": k % 2 for k in range(4)}
OWN: dict[str, dict[str, Any]] = {"oracle": {"clusters": GROUPS}, "fedcedar": {"groups": GROUPS}}
QUICK = ("fedavg", "fedpnp", "fedu", "dfedu", "fedproto", "kin", "networklasso", "knnper")
LOCAL = {"epochs": 1, "batch_size": 8}


def sites(clients: int = 4, shape: tuple[int, ...] = (6,), **options: Any) -> Federation:
    rng = np.random.default_rng(0)
    own = {}
    for k in range(clients):
        n = 16 + k % 5
        x = rng.integers(0, 256, (n, *shape), dtype=np.uint8) if len(shape) > 1 else rng.normal(size=(n, *shape))
        own[f"c{k}"] = (x if x.dtype == np.uint8 else x.astype(np.float32), rng.integers(0, 3, n))
    return Federation.from_arrays(own, validation_fraction=0.2, **options)


def agree(federation: Federation, model: Any, method: Any, **options: Any) -> Any:
    here = train(federation, model, method, rounds=2, workers=1, **options)
    with Pretending():
        there = train(federation, model, method, rounds=2, workers=1, device="pretend", **options)
    assert type(there.server_rows) is torch.Tensor
    torch.testing.assert_close(there.server_rows, here.server_rows, atol=1e-5, rtol=1e-4)
    for when, found in here.metrics.items():
        np.testing.assert_allclose(there.metrics[when]["test_loss"], found["test_loss"], rtol=1e-3)
    return there


def on_device(name: str) -> None:
    agree(sites(), "mlr" if name == "mocha" else "mlp:5", make(name, {**LOCAL, **OWN.get(name, {})}))


def test_the_pretended_device_refuses_what_a_real_one_refuses() -> None:
    with Pretending():
        there = torch.ones(3, 2, device=DEVICE)
        assert torch.equal((there @ there.T).cpu(), torch.full((3, 3), 2.0))
        with pytest.raises(RuntimeError, match="mixes devices"):
            there + torch.ones(3, 2)
        with pytest.raises(RuntimeError, match="mixes devices"):
            there[torch.tensor([0])] = torch.ones(1, 2)
        with pytest.raises(RuntimeError):
            there.numpy()


@pytest.mark.parametrize("name", QUICK)
def test_a_method_on_a_device(name: str) -> None:
    on_device(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in algorithms.names() if n not in (*QUICK, "fedrelax")])
def test_every_other_method_on_a_device(name: str) -> None:
    on_device(name)


def net(*last: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), *last, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))


KERNELS: dict[str, Any] = {
    "linear": "mlp:5",
    "grouped": lambda: net(nn.BatchNorm2d(4)),
    "vmap": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.LayerNorm(6), nn.Linear(6, 3)),
    "loop": lambda: nn.Sequential(nn.Conv2d(1, 40, 5), nn.BatchNorm2d(40), nn.ReLU(), nn.Flatten(), nn.Linear(640, 3)),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_on_bytes_with_momentum_and_augmentation(kernel: str) -> None:
    federation = sites(shape=(1, 8, 8), scaling=1 / 255)
    spec = ModelSpec.of(KERNELS[kernel], federation.task)
    assert choose_kernel(spec, federation.task).name == kernel
    method = make("fedavg", {**LOCAL, "optimiser": "adam", "lr": 0.01})
    agree(federation, KERNELS[kernel], method, augment="crop:1+flip")


def test_dropout_and_mixup_on_a_device() -> None:
    dropped = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    agree(sites(), dropped, make("ditto", LOCAL), augment="mixup:0.4")


@pytest.mark.parametrize("cache_features", ["auto", "off"])
def test_frozen_and_private_parts_on_a_device(cache_features: str) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))

    there = agree(sites(), model, make("fedavg", LOCAL), frozen="0.*", private="4.bias", cache_features=cache_features)
    assert there.server_rows.shape[1] == 5 * 4 + 4 + 4 * 3 + 3


def test_sparse_couplings_on_a_device() -> None:
    there = agree(sites(80, (3,)), "mlr", make("fedu", {"steps": 2}), graph="knn:3")
    assert there.graph.adjacency.nnz < 0.2 * 80 * 80


def test_a_run_moves_from_device_to_host(tmp_path: Path) -> None:
    federation, method = sites(), make("ditto", {**LOCAL, "optimiser": "adam", "moments": "keep"})
    whole = train(federation, "mlp:5", method, rounds=4, workers=1)
    with Pretending():
        train(federation, "mlp:5", method, rounds=2, workers=1, device="pretend", out=tmp_path / "run")
        again = resume(tmp_path / "run", federation, rounds=3)
    torch.testing.assert_close(again.rows, train(federation, "mlp:5", method, rounds=3).rows, atol=1e-5, rtol=1e-4)
    home = resume(tmp_path / "run", federation, rounds=4, device="cpu")
    torch.testing.assert_close(home.server_rows, whole.server_rows, atol=1e-5, rtol=1e-4)


# --- what a round may ask of the host ---------------------------------------------------------------------------------

HOST_CALLS = ("numpy", "item", "cpu", "tolist")
ROUND = ("local/kernels", "local/sgd.py", "local/terms.py", "local/samples.py", "local/changes.py", "local/noise.py",
         "compute/steps.py", "couplings")  # fmt: skip
SEAMS = {
    "local/samples.py": {"numpy", "cpu", "tolist"},  # rows that are read from a file or a data set; steps of a plan
    "local/changes.py": {"tolist"},  # how many samples of each client are real
    "local/noise.py": {"tolist"},
    "local/kernels/linear.py": {
        "tolist"
    },  # how many samples of each client were drawn, in private training, which is of the processor
    "local/kernels/grouped.py": {"tolist"},  # which clients have a short batch
    "couplings/aggregation.py": {"numpy"},  # medians of rows that are on the processor
    "couplings/clustering.py": {"numpy", "cpu", "tolist"},  # clusters are found by SciPy on K×K numbers
    "couplings/clusters.py": {"numpy", "cpu"},
    "couplings/coupling.py": {"numpy", "cpu"},  # the matrix as a user sees it
    "couplings/filters.py": {"numpy", "cpu"},  # K numbers, once per graph
    "couplings/graph_total_variation.py": {"numpy", "cpu"},
    "couplings/mixing.py": {"numpy", "cpu"},  # K×K weights that a method computed
    "couplings/robust.py": {"numpy", "cpu", "tolist"},  # shares of K clients
    "couplings/trust.py": {"numpy", "cpu"},
}
"""Where a round may come to the host, for a few numbers per client and never for rows or inputs in memory."""


def test_a_round_comes_to_the_host_only_at_the_seams() -> None:
    found: dict[str, set[str]] = {}
    for place in ROUND:
        path = SOURCE / place
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            calls = {
                node.func.attr
                for node in ast.walk(ast.parse(file.read_text()))
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args
            }
            if used := calls & set(HOST_CALLS):
                found[file.relative_to(SOURCE).as_posix()] = used
    for name, used in found.items():
        assert used <= SEAMS.get(name, set()), f"{name} calls {sorted(used)}: a device would wait for the host"


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
def test_mixed_precision_is_near_float32_and_not_the_same(kernel: str) -> None:
    federation = sites(shape=(1, 8, 8), scaling=1 / 255)
    method = make("fedavg", {**LOCAL, "lr": 0.05})
    exact, mixed = (
        train(federation, KERNELS[kernel], method, rounds=3, precision=p) for p in ("float32", "bfloat16-mixed")
    )
    start = train(federation, KERNELS[kernel], method, rounds=0).server_rows
    way = (exact.server_rows - start).norm()
    apart = (exact.server_rows - mixed.server_rows).norm()
    assert mixed.server_rows.dtype == torch.float32
    assert 0 < apart < 0.1 * way


def test_mixed_precision_is_the_plain_loop_in_autocast() -> None:
    federation = sites()
    done = train(
        federation,
        "mlp:5",
        make("local", {"steps": 1, "batch_size": 99, "lr": 0.1}),
        rounds=1,
        precision="bfloat16-mixed",
    )
    module = train(federation, "mlp:5", "local", rounds=0).models["c0"].train()
    x, y = (torch.from_numpy(value) for value in federation.train[0])
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(module(x), y)
    loss.backward()
    wanted = torch.cat([(p - 0.1 * p.grad).detach().flatten() for p in module.parameters() if p.grad is not None])
    torch.testing.assert_close(done.server_rows[0], wanted, atol=2e-3, rtol=1e-2)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"device": "cuda"}, "device 'cuda' is not there"),
        ({"device": "cuda:7"}, "device 'cuda:7' is not there"),
        ({"device": "mps"}, "device 'mps' is not there"),
        ({"device": "gpu"}, "device 'gpu' is none"),
        ({"precision": "float16"}, "precision"),
        ({"precision": "bfloat16-mixed", "dtype": "float64"}, "keeps rows in float32"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(options: dict[str, Any], why: str) -> None:
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("there is an accelerator")
    with pytest.raises(FedkinError, match=why) as refused:
        train(sites(), "mlr", rounds=1, **options)
    assert "\n" not in str(refused.value)


def test_auto_is_the_cpu_here_and_other_refusals(tmp_path: Path) -> None:
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        assert Placement.chosen("auto", "float32", "float32") == Placement("cpu")
    with pytest.raises(FedkinError, match="no float64"):
        Placement.chosen("mps", "float32", "float64", elsewhere=True)
    with pytest.raises(FedkinError, match="leave out device"):
        fedkin.auto(sites(), "mlr", rounds=1, precision="bfloat16-mixed")
    with Pretending(), pytest.raises(FedkinError, match="leave out rows_file"):
        train(sites(), "mlr", "fedu", rounds=1, device="pretend", rows_file=str(tmp_path / "rows"))
    with Pretending(), pytest.raises(FedkinError, match="needs rows"):
        train(sites(), "tree", "fedrelax", rounds=1, device="pretend")


@pytest.mark.slow
def test_ray_without_gpus_says_so() -> None:
    with pytest.raises(FedkinError, match="the Ray cluster has no GPUs"):
        train(sites(), "mlr", rounds=1, engine="ray", workers=2, device="cuda")
