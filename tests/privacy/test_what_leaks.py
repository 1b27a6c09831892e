"""What docs/privacy.md says can be learned is learned here, and what it says is not sent is not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedkin import Federation, algorithms, data
from fedkin.algorithms import FedRelax, FedSKA
from fedkin.run import make_options, make_run


def overheard(federation: Federation, model: str, method: Any, rounds: int = 1) -> tuple[Any, list[Any]]:
    """A run, and everything the server side asked and heard in it."""
    run = make_run(federation, model, method, make_options(rounds=rounds, dtype="float64"))
    heard: list[Any] = []
    ask = run.clients.ask

    def listening(task: str, ids: Any, per_client: Any = None, shared: Any = None, **more: Any) -> Any:
        told = {key: value.clone() for key, value in (per_client or {}).items()}  # a run may write over its rows
        replies = ask(task, ids, per_client, shared, **more)
        heard.append((task.rpartition(":")[2], {**(shared or {}), **told}, replies))
        return replies

    run.clients.ask = listening  # type: ignore[method-assign]
    run.run()
    return run, heard


def test_the_server_of_fedska_solves_for_every_clients_label_shares() -> None:
    """∂l_k/∂h = Wᵀ(softmax(Wh + b) − p): the server knows W, b and h, hence the shares p of the labels."""
    federation = data.load("digits", clients=5, partition="dirichlet:0.3", seed=0)
    run, heard = overheard(federation, "mlp:16", FedSKA(encoder_steps=1, granularity="client"))
    rows = next(replies["rows"] for task, _, replies in heard if task == "fedska")
    guides, gradient = next((q["guides"], r["gradient"]) for task, q, r in heard if task == "fedska gradient")
    counts = federation.label_counts()
    for k in range(len(federation)):
        layers = [m for m in run.setting.spec.module(rows[k]).modules() if isinstance(m, nn.Linear)]
        weight, bias = layers[-1].weight.detach(), layers[-1].bias.detach()
        chance = torch.softmax(weight @ guides[k, 0] + bias, dim=0)
        shares = chance - torch.linalg.lstsq(weight.T, gradient[k, 0][:, None]).solution.ravel()
        assert np.allclose(shares.numpy(), counts[k] / counts[k].sum(), atol=1e-9)


def test_the_server_of_aligned_fedska_solves_for_every_single_label() -> None:
    rng = np.random.default_rng(0)
    sites = {
        f"c{k}": {part: (rng.normal(size=(16, 6)), rng.integers(0, 4, 16)) for part in ("train", "test")}
        for k in range(3)
    }
    federation = Federation.from_arrays(sites, classes=[0, 1, 2, 3])
    run, heard = overheard(federation, "mlp:16", FedSKA(encoder_steps=1, granularity="aligned"))
    rows = next(replies["rows"] for task, _, replies in heard if task == "fedska")
    guides, gradient = next((q["guides"], r["gradient"]) for task, q, r in heard if task == "fedska gradient")
    right = 0
    for k in range(len(federation)):
        layer = [m for m in run.setting.spec.module(rows[k]).modules() if isinstance(m, nn.Linear)][-1]
        chances = torch.softmax(guides[k] @ layer.weight.detach().T + layer.bias.detach(), dim=1)
        wrong = torch.linalg.lstsq(layer.weight.detach().T, gradient[k].T * len(chances)).solution.T
        right += int(((chances - wrong).argmax(dim=1).numpy() == federation.train[k][1]).sum())
    assert right == 3 * 16


# --- every method -----------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
SEES_ALL = (
    "afl", "apfl", "cfl", "ditto", "fedala", "fedamp", "fedavg", "fedavgft", "fedbn", "fedcedar", "fedfomo", "fedpnp",
    "fedprox", "fedrod", "fedsem", "fedu", "kin", "lgfedavg", "mocha", "mrmtl", "networklasso", "oracle", "perfedavg",
    "pfedbayes", "pfedgraph", "pfedme", "scaffold", "sfl",
)  # fmt: skip
SEES_THE_BODY = ("fedbabu", "feddbe", "fedper", "fedrep", "fedska", "knnper")
SEES_NO_WEIGHT = ("dfedu", "local")
ELSEWHERE = ("fedrelax", "fedproto", "global", "ifca")
"""Other attacks, below; Global has all samples by definition."""
OWN: dict[str, dict[str, Any]] = {
    "oracle": {"clusters": [0, 0, 1, 1]},
    "pfedbayes": {"optimiser": "sgd", "inner_steps": 1},
    "ifca": {"clusters": 2},
}


@pytest.fixture(scope="module")
def clinics() -> Federation:
    """Four clients; the first has a single training sample."""
    rng = np.random.default_rng(0)
    test = rng.normal(size=(3, 5)), np.arange(3)
    train = [(rng.normal(size=(n, 5)), rng.integers(0, 3, n)) for n in (1, 12, 12, 12)]
    return Federation.from_arrays(
        {f"c{k}": {"train": own, "test": test} for k, own in enumerate(train)}, classes=[0, 1, 2]
    )


def moved(federation: Federation, name: str, model: str) -> tuple[list[nn.Linear], torch.Tensor]:
    """How far the first client's layers moved in a step of training, as the server sees it: what is private is 0."""
    given = {"lr": 0.1, "epochs": 1, **OWN.get(name, {})}
    known = {key: value for key, value in given.items() if key in algorithms.get(name).model_fields}
    run, heard = overheard(federation, model, algorithms.make(name, known))
    asked, replies = next((q, r) for _, q, r in heard if "rows" in q and "rows" in r.arrays)
    place, layout = replies.ids.tolist().index(0), run.setting.spec.layout
    shared = ~layout.mask(tuple(asked.get("private", ())))
    row = torch.zeros(layout.width, dtype=torch.float64)
    row[shared] = (replies["rows"][place] - asked["rows"][place]).double()
    layers = [layer for layer in run.setting.spec.module(row).modules() if isinstance(layer, nn.Linear)]
    return layers, row


@pytest.mark.parametrize("name", SEES_ALL)
def test_the_server_reads_a_lone_sample_and_its_label_from_the_row(name: str, clinics: Federation) -> None:
    """ΔW = −γ(p − e_y)xᵀ and Δb = −γ(p − e_y): the label has the only positive Δb, and x is ΔW_y/Δb_y."""
    (layer,), _ = moved(clinics, name, "mlr")
    label = int(layer.bias.argmax())
    assert label == clinics.train[0][1][0]
    assert np.allclose((layer.weight[label] / layer.bias[label]).detach(), clinics.train[0][0][0], atol=1e-6)


def test_the_server_of_ifca_reads_a_lone_sample_from_the_row_and_the_choice(clinics: Federation) -> None:
    """It knows from which of its models the client began, for the client says so."""
    run, heard = overheard(clinics, "mlr", algorithms.make("ifca", {"lr": 0.1, "epochs": 1, **OWN["ifca"]}))
    asked, replies = next((q, r) for task, q, r in heard if task == "ifca")
    place = replies.ids.tolist().index(0)
    change = replies["rows"][place] - asked["models"][int(replies["choice"][place])]
    (layer,) = (m for m in run.setting.spec.module(change).modules() if isinstance(m, nn.Linear))
    label = int(layer.bias.argmax())
    assert label == clinics.train[0][1][0]
    assert np.allclose((layer.weight[label] / layer.bias[label]).detach(), clinics.train[0][0][0], atol=1e-6)


@pytest.mark.parametrize("name", SEES_THE_BODY)
def test_the_server_reads_a_lone_sample_from_the_first_layer(name: str, clinics: Federation) -> None:
    """ΔW_u = Δb_u·xᵀ for every unit u of the first layer, whatever comes after it and stays private."""
    (first, *_), _ = moved(clinics, name, "mlp:8")
    unit = int(first.bias.abs().argmax())
    assert np.allclose((first.weight[unit] / first.bias[unit]).detach(), clinics.train[0][0][0], atol=1e-6)


@pytest.mark.parametrize("name", SEES_NO_WEIGHT)
def test_the_server_sees_no_weight(name: str, clinics: Federation) -> None:
    assert not moved(clinics, name, "mlp:8")[1].any()


def test_the_server_of_fedproto_hears_label_counts(clinics: Federation) -> None:
    _, heard = overheard(clinics, "mlp:8", algorithms.make("fedproto"))
    told = next(replies["class_counts"] for _, _, replies in heard if "class_counts" in replies.arrays)
    assert np.array_equal(told.numpy(), clinics.label_counts())


def test_statistics_of_one_sample_are_the_sample(clinics: Federation) -> None:
    run, _ = overheard(clinics, "mlr", algorithms.make("fedavg"))
    told = run.clients.ask("statistics", np.arange(4))["statistics"]
    assert np.allclose(told[0, 0], clinics.train[0][0][0])


def test_the_page_speaks_of_every_method_and_says_what_is_shown() -> None:
    assert sorted((*SEES_ALL, *SEES_THE_BODY, *SEES_NO_WEIGHT, *ELSEWHERE)) == sorted(algorithms.names())
    table = [line.split("|")[1:6] for line in PAGE.splitlines() if line.startswith("| `") and line.count("|") == 6]
    listed = [name for cells in table for name in re.findall(r"`(\w+)`", cells[0])]
    assert sorted(set(listed)) == sorted(algorithms.names())
    shown = {cells[3].strip() for cells in table if "`global`" not in cells[0]}
    assert shown == {"test"}


def test_a_neighbour_copies_a_linear_model_of_fedrelax_from_its_predictions() -> None:
    """Points P_j and predictions ŷ_j = P_j w_j are in the letters: least squares gives w_j."""
    rng = np.random.default_rng(0)
    sites = {f"c{k}": (rng.normal(size=(30, 4)), rng.normal(size=30)) for k in range(3)}
    federation = Federation.from_arrays(sites, task="regression")
    run = make_run(federation, "linear", FedRelax(), make_options(rounds=2, dtype="float64"), "complete")
    result = run.run()
    letters = run.clients.snapshot()
    for k, name in enumerate(federation.names):
        points, said = letters["public"][k].flatten(1), letters["predictions"][k]
        layer = next(m for m in result.models[name].modules() if isinstance(m, nn.Linear))
        assert torch.allclose(torch.linalg.lstsq(points, said).solution.T, layer.weight, atol=1e-9)


def public_points(federation: Federation, **parameters: Any) -> torch.Tensor:
    run, _ = overheard(federation, "mlr", FedRelax(**parameters))
    return run.clients.snapshot()["public"].double()


def test_fedrelax_shows_no_real_input_to_neighbours_unless_told() -> None:
    federation = data.load("digits", clients=4, seed=0)
    real = torch.from_numpy(np.asarray(federation.train.x)).double().flatten(1)

    def shown(points: torch.Tensor) -> int:
        return sum(bool((real == point).all(dim=1).any()) for point in points.flatten(0, 1).flatten(1))

    assert shown(public_points(federation)) == 0
    assert shown(public_points(federation, public="drawn", public_size=5)) == 20
