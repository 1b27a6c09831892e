"""What docs/privacy.md says that other clients and outsiders can learn, learned: from what one client is sent, and from bytes.

Two clients. The first has one training sample, the second is curious: it knows its own data, what it sent and what it received.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from torch import Tensor, nn

import fedkin
from fedkin import Federation, algorithms
from fedkin.deployment.server import FederationFile, train_sites
from fedkin.engines.flower.wire import Message
from fedkin.engines.host import Answer, Host
from fedkin.local.tasks import Request
from fedkin.run import Run, make_options, make_run
from fedkin.testing import uneven_federation

from ..engines import sites

PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
VICTIM, CURIOUS = 0, 1
OWN: dict[str, dict[str, Any]] = {
    "oracle": {"clusters": [0, 0]},
    "fedsem": {"clusters": 1},
    "fedcedar": {"clusters": 1},
    "ifca": {"clusters": 1},
    "pfedbayes": {"optimiser": "sgd", "inner_steps": 1},
    "pfedgraph": {"alpha": 10.0},
    "fedrod": {"balanced": False},
}
"""Both in one cluster; pFedBayes by plain steps; pFedGraph that mixes; FedRoD whose client of one class learns."""
MIXTURES = (
    "afl", "apfl", "cfl", "ditto", "fedala", "fedamp", "fedavg", "fedavgft", "fedbn", "fedcedar", "fedpnp", "fedprox",
    "fedrod", "fedsem", "fedu", "ifca", "lgfedavg", "mrmtl", "networklasso", "oracle", "perfedavg", "pfedbayes",
    "pfedgraph", "pfedme", "scaffold", "sfl",
)  # fmt: skip
MIXED_BODIES = ("fedbabu", "feddbe", "fedper", "fedrep", "fedska", "knnper")
AS_THEY_ARE = {"dfedu": "letters", "fedfomo": "models", "kin": "models", "mocha": "anchor"}
"""Under which name; MOCHA's is the mean of all others."""
ELSEWHERE = ("fedproto", "fedrelax", "global", "local")
"""Each has a test of its own, below or in test_what_leaks.py."""


@pytest.fixture(scope="module")
def pair() -> Federation:
    rng = np.random.default_rng(3)
    test = rng.normal(size=(3, 5)), np.arange(3)
    train = [(rng.normal(size=(1, 5)), np.array([2])), (rng.normal(size=(12, 5)), np.arange(12) % 2)]
    return Federation.from_arrays(
        {f"c{k}": {"train": own, "test": test} for k, own in enumerate(train)}, classes=[0, 1, 2]
    )


Heard = tuple[dict[str, Any], dict[str, Tensor]]


@contextmanager
def listening() -> Iterator[list[Heard]]:
    """Everything that the curious client is sent, and what it answers; never what others send or get."""
    heard: list[Heard] = []
    honest = Host.answer

    def answer(host: Host, task: str, request: Request) -> Answer:
        told = honest(host, task, request)
        if CURIOUS in request.ids:
            place = request.ids.tolist().index(CURIOUS)
            mine = request.only(place)
            got = {
                "task": task.rpartition(":")[2],
                **mine.shared,
                **{k: v[0].clone() for k, v in mine.per_client.items()},
            }
            if mine.mail is not None:
                got["letters"] = mine.mail.letters
            heard.append((got, {k: v[place].clone() for k, v in told.arrays.items()}))
        return told

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Host, "answer", answer)
        yield heard


def trained(federation: Federation, name: str, model: str = "mlr") -> tuple[Run, list[Heard]]:
    given = {"lr": 0.1, "epochs": 1, "batch_size": 20, **OWN.get(name, {})}
    method = algorithms.make(name, {k: v for k, v in given.items() if k in algorithms.get(name).model_fields})
    graph = "complete" if method.default_graph() else None
    with listening() as heard:
        run = make_run(federation, model, method, make_options(rounds=2, dtype="float64"), graph)
        run.run()
    return run, heard


def layers(run: Run, row: Tensor) -> list[Tensor]:
    """The linear layers [W, b] of a row, (outputs, inputs + 1)."""
    row = nn.functional.pad(row, (0, run.setting.spec.layout.width - len(row)))  # what is only deployed does not travel
    found = [m for m in run.setting.spec.module(row).modules() if isinstance(m, nn.Linear)]
    return [torch.cat([m.weight, m.bias[:, None]], dim=1).detach() for m in found]


def sample_in(change: Tensor) -> np.ndarray:
    """x of a layer's change g·[x, 1]ᵀ."""
    line = change[int(change[:, -1].abs().argmax())]
    return np.asarray(line[:-1] / line[-1])


def without_mine(mixture: Tensor, mine: Tensor) -> Tensor:
    """mixture = a·mine + g·[x, 1]ᵀ: the share a is the one that leaves a matrix of rank one.

    mine⁺·mixture = a·(a projection) + (rank one), so that a is among its eigenvalues.
    """

    def second(a: float) -> float:
        values = torch.linalg.svdvals(mixture - a * mine)
        return float(values[1] / values[0])

    shares = torch.linalg.eigvals(torch.linalg.pinv(mine, rtol=1e-9) @ mixture).real.tolist()
    return mixture - min(shares, key=second) * mine


def received(got: dict[str, Any]) -> Tensor | None:
    """The model that came with a question."""
    if got["task"].startswith("ifca"):
        return torch.as_tensor(got["models"][0])
    row = got.get("rows")
    return row if row is not None and row.numel() else None


def mixture_and_mine(run: Run, heard: list[Heard], layer: int) -> tuple[Tensor, Tensor]:
    """How far what the curious client is sent next lies from what it was sent first, and its own part of the way."""
    first = next(i for i, (got, told) in enumerate(heard) if received(got) is not None and "rows" in told)
    start, mine = received(heard[first][0]), heard[first][1]["rows"]
    later = next(
        row for got, _ in heard[first + 1 :] if (row := received(got)) is not None and not torch.equal(row, start)
    )
    a, b, c = (layers(run, row)[layer] for row in (start, mine, later))
    return c - a, b - a


@pytest.mark.parametrize("name", MIXTURES)
def test_the_only_neighbour_solves_a_mixture_for_the_other_ones_sample(name: str, pair: Federation) -> None:
    """r = θ + a·Δ_own + c·Δ_other, and Δ_other = g[x, 1]ᵀ has rank one: that tells a, and x."""
    run, heard = trained(pair, name)
    assert np.allclose(sample_in(without_mine(*mixture_and_mine(run, heard, -1))), pair.train[VICTIM][0][0], atol=1e-4)


@pytest.mark.parametrize("name", MIXED_BODIES)
def test_the_only_neighbour_solves_mixed_bodies_for_the_other_ones_sample(name: str, pair: Federation) -> None:
    run, heard = trained(pair, name, "mlp:8")
    assert np.allclose(sample_in(without_mine(*mixture_and_mine(run, heard, 0))), pair.train[VICTIM][0][0], atol=1e-4)


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_models_that_come_as_they_are_need_no_solving(name: str, pair: Federation) -> None:
    run, heard = trained(pair, name)
    key, first = AS_THEY_ARE[name], run.setting.spec.initial_row(run.setting.streams)
    rows = [got[key].reshape(-1, len(first))[0] for got, _ in heard if got.get(key) is not None and got[key].numel()]
    other = next(row for row in rows if not torch.equal(row, first))
    change = layers(run, other)[-1] - layers(run, first)[-1]
    assert np.allclose(sample_in(change), pair.train[VICTIM][0][0], atol=1e-6)


def test_the_model_of_global_tells_who_has_the_rest_of_the_samples(pair: Federation) -> None:
    """One step on all samples: the curious client computes its own part of the gradient, and a sample is left."""
    run, heard = trained(pair, "global")
    rows = [row for got, _ in heard if (row := received(got)) is not None]
    start, later = rows[0], next(row for row in rows if not torch.equal(row, rows[0]))
    module = run.setting.spec.module(start)
    x, y = (torch.from_numpy(np.asarray(part)) for part in pair.train[CURIOUS])
    nn.functional.cross_entropy(module(x.double()), y).backward()
    (layer,) = (m for m in module.modules() if isinstance(m, nn.Linear))
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    mine = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], dim=1)
    change = layers(run, later)[-1] - layers(run, start)[-1]
    assert np.allclose(sample_in(without_mine(change, mine)), pair.train[VICTIM][0][0], atol=1e-4)


def test_local_tells_neighbours_nothing(pair: Federation) -> None:
    """Other samples at the victim's: the curious client is sent the same, bit by bit."""
    moved = {name: {"train": pair.train[k], "test": pair.test[k]} for k, name in enumerate(pair.names)}
    x, y = pair.train[VICTIM]
    moved[pair.names[VICTIM]]["train"] = (x + 1, (y + 1) % 3)
    heard = [trained(one, "local")[1] for one in (pair, Federation.from_arrays(moved, classes=[0, 1, 2]))]
    assert len(heard[0]) == len(heard[1]) > 0
    for (one, _), (other, _) in zip(*heard):
        assert one.keys() == other.keys()
        assert all(torch.equal(v, other[k]) if isinstance(v, Tensor) else v == other[k] for k, v in one.items())


def test_a_class_that_one_client_alone_holds_shows_its_mean_feature_to_all(pair: Federation) -> None:
    """FedProto hands out the means of all: of class 2, which is the victim's alone, that is its sample's feature."""
    _, heard = trained(pair, "fedproto", "mlp:8")
    handed = next(got["prototypes"][2] for got, _ in heard if "known" in got and bool(got["known"][2]))
    counts = next(told["class_counts"] for _, told in heard if "class_counts" in told)
    assert counts[2] == 0  # the curious client has none of them
    with listening_to_everyone() as told:
        trained(pair, "fedproto", "mlp:8")
    assert torch.equal(handed, next(means[VICTIM, 2] for means in told))


@contextmanager
def listening_to_everyone() -> Iterator[list[Tensor]]:
    """The class means that all clients tell: what the curious client must not hear as such."""
    told: list[Tensor] = []
    honest = Host.answer

    def answer(host: Host, task: str, request: Request) -> Answer:
        found = honest(host, task, request)
        told.extend(value.clone() for name, value in found.arrays.items() if name == "class_means")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Host, "answer", answer)
        yield told


# --- outsiders --------------------------------------------------------------------------------------------------------


def test_who_counts_bytes_learns_how_large_the_model_is_and_no_value(tmp_path: Path) -> None:
    """Two lengths of training messages, for one client and for three, tell the numbers of a row; other data, the same lengths."""
    lengths = []
    for number, shift in enumerate((0.0, 1.0)):
        federation = uneven_federation()
        folder = tmp_path / str(number)
        paths = sites.write_sites(federation, folder, ((0,), (1, 2, 3)))
        for path in folder.glob("site-*/*.npz"):
            with np.load(path) as file:
                arrays = dict(file)
            np.savez(path, **{key: value + shift if key[0] == "x" else value for key, value in arrays.items()})
        line = Weighing(paths)
        sections = {
            "federation": {"sites": 2, "wait": 1, "classes": [0, 1, 2]},
            "model": {"name": "mlp:6"},
            "run": {"rounds": 1, "seed": 1, "dtype": "float64"},
        }
        (folder / "federation.toml").write_text(tomli_w.dumps(sections))
        result = train_sites(line, FederationFile.read(folder / "federation.toml"), folder / "result")
        lengths.append(line.weights)
    assert lengths[0] == lengths[1]
    one, three = lengths[0]
    assert round((three - one) / 2 / 8) == pytest.approx(result.rows.shape[1], abs=4)  # loss and norm come with a row


class Weighing(sites.LoopLine):
    """An outsider at the line: how many bytes of tensors each site sends when it has trained."""

    weights: tuple[int, ...] = ()

    def tamper(self, node: int, message: Message, answer: Message) -> tuple[Any, Any]:
        head, body = answer.encode()
        if message.head.get("task") == "train" and len(self.weights) < 2:
            self.weights = (*self.weights, len(body))
        return head, body


@pytest.mark.parametrize("name", algorithms.names())
def test_who_gets_a_result_directory_finds_no_input_in_it(name: str, pair: Federation, tmp_path: Path) -> None:
    given = OWN.get(name, {})
    method = algorithms.make(name, {k: v for k, v in given.items() if k in algorithms.get(name).model_fields})
    model = "mlp:8" if name in (*MIXED_BODIES, "fedproto") else "mlr"
    graph = "complete" if method.default_graph() else None
    fedkin.train(pair, model, method, graph, rounds=2, dtype="float64", out=tmp_path / "run", checkpoint_every=1)
    content = b"".join(path.read_bytes() for path in sorted((tmp_path / "run").rglob("*")) if path.is_file())
    for k in range(len(pair)):
        for x in np.asarray(pair.train[k][0], dtype=np.float64):
            assert x.tobytes() not in content
            assert x.astype(np.float32).tobytes() not in content


def test_the_page_says_what_is_shown_of_neighbours() -> None:
    assert sorted((*MIXTURES, *MIXED_BODIES, *AS_THEY_ARE, *ELSEWHERE)) == sorted(algorithms.names())
    table = [line.split("|")[1:6] for line in PAGE.splitlines() if line.startswith("| `") and line.count("|") == 6]
    assert {cells[4].strip() for cells in table} == {"test"}
    assert len(table) > 10
