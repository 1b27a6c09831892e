"""What leaves a site is the site's own word: [policy] in site.toml, whatever the server asks."""

from __future__ import annotations

import dataclasses
import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

import fedkin
from fedkin.algorithms import FedAvg
from fedkin.deployment.server import FederationFile, train_sites
from fedkin.engines.flower.site import answer_at
from fedkin.engines.flower.wire import Message
from fedkin.errors import FedkinError
from fedkin.testing import uneven_federation

from . import sites

GROUPS = ((0, 3), (1,), (2, 4, 5))


def plan(folder: Path, method: str, model: str = "mlp:6", graph: str | None = None, **options: Any) -> FederationFile:
    sections = {
        "federation": {"sites": 3, "wait": 1, "classes": [0, 1, 2]},
        "model": {"name": model},
        "algorithm": {"name": method, **options},
        "run": {"rounds": 2, "seed": 1, "dtype": "float64"},
        **({"graph": {"name": graph}} if graph else {}),
    }
    path = folder / "federation.toml"
    path.write_text(tomli_w.dumps(sections))
    return FederationFile.read(path)


class Kept(sites.LoopLine):
    """Keeps every message, to ask the same again in other words."""

    def tamper(self, node: int, message: Message, answer: Message) -> tuple[Any, Any]:
        self.messages = [*getattr(self, "messages", []), (node, message, answer)]
        return answer.encode()

    def last(self, task: str) -> Message:
        return next(m for node, m, _ in reversed(self.messages) if node == 1 and m.head.get("task") == task)


def later(message: Message, number: int) -> Message:
    """The same question after everything that the server asked so far."""
    return Message({**message.head, "number": 10**6 + number}, message.tensors)


def trained(folder: Path, method: str, policy: str, **options: Any) -> tuple[Kept, Any]:
    line = Kept(sites.write_sites(uneven_federation(), folder, GROUPS, disclose=False, policy=policy))
    return line, train_sites(line, plan(folder, method, **options), folder / "result")


def test_private_heads_do_not_leave_as_letters(tmp_path: Path) -> None:
    """The attack: after FedPer the server asks for the letter "private"."""
    line, _ = trained(tmp_path, "fedper", "")
    asked = line.last("train")
    for letter in ("private", "counters", "nothing"):
        told = answer_at(line.paths[1], Message({**asked.head, "kind": "post", "letter": letter}))
        assert "policy does not let letters" in told.head["refused"]
        assert not told.tensors


def test_models_that_travel_along_edges_need_the_sites_word(tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match=r"letters = \['private'\] under \[policy\]"):
        trained(tmp_path / "no", "dfedu", "", graph="complete")
    _, result = trained(tmp_path / "yes", "dfedu", 'letters = ["private"]', graph="complete")
    assert not result.history[-1]["log"].get("failed")


@pytest.mark.parametrize("method", ["ditto", "apfl", "pfedme", "fedrelax"])
def test_a_personal_model_is_not_disclosed(method: str, tmp_path: Path) -> None:
    """The server names no private tensor and asks to disclose: it gets the shared row, or initial values."""
    letters = 'statistics = "exact"\nletters = ["predictions", "public"]'
    line, _ = trained(tmp_path, method, letters if method == "fedrelax" else "")
    shown = [(a.tensors, m) for node, m, a in line.messages if node == 1 and "array/model" in a.tensors]
    assert shown
    secret = [load for path in tmp_path.glob("site-1/state/*/trained.safetensors") for load in [tensors(path)["model"]]]
    for arrays, message in shown:
        if message.head["task"] != "evaluate":
            assert not any(torch.equal(arrays["array/model"], own) for own in secret)


def tensors(path: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(path)


def test_tensors_that_a_site_keeps_private_do_not_leave_whatever_the_method(tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match=r"tensor 'classifier\.bias' is private at this site"):
        trained(tmp_path / "no", "fedavg", 'private = ["classifier.*"]')
    _, result = trained(tmp_path / "yes", "fedper", 'private = ["classifier.*"]')
    assert not result.history[-1]["log"].get("failed")


def test_statistics_leave_with_noise_while_the_budget_lasts(tmp_path: Path) -> None:
    noisy, exact = "statistics:noise=1,1e-5,-5,5", "statistics"
    with pytest.raises(FedkinError, match="policy does not let statistics of the inputs leave"):
        trained(tmp_path / "none", "fedpnp", "", graph=noisy)
    policy = 'statistics = "noisy"\nepsilon = 2.0\ndelta = 1e-4'
    with pytest.raises(FedkinError, match="policy does not let statistics without noise leave"):
        trained(tmp_path / "exact", "fedpnp", policy, graph=exact)
    line, _ = trained(tmp_path / "noisy", "fedpnp", policy, graph=noisy)
    asked = line.last("statistics")
    assert "refused" not in answer_at(line.paths[1], later(asked, 1)).head
    assert "has spent ε = 2" in answer_at(line.paths[1], later(asked, 2)).head["refused"]
    spent = tmp_path / "noisy" / "site-1" / "spent.json"
    assert json.loads(spent.read_text())["site-b"] == [2.0, pytest.approx(2e-5)]
    assert stat.S_IMODE(spent.stat().st_mode) == 0o600


def test_label_counts_leave_only_with_consent(tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match="label_counts = true under"):
        trained(tmp_path / "no", "fedu", "", graph="labels")
    trained(tmp_path / "yes", "fedu", "label_counts = true", graph="labels")


def test_balanced_classes_take_the_counts_of_sites_that_consent(tmp_path: Path) -> None:
    """The weights are those of every other engine; a run that goes on keeps them, whoever is there."""
    (tmp_path / "no").mkdir()
    with pytest.raises(FedkinError, match=r"3 sites were there .*label counts leave; .*label_counts = true under"):
        balanced(tmp_path / "no", "")
    (tmp_path / "yes").mkdir()
    there = balanced(tmp_path / "yes", "label_counts = true")
    order = [k for group in GROUPS for k in group]
    whole = uneven_federation().take(order)
    mine = fedkin.train(whole, "mlp:6", FedAvg(), rounds=2, seed=1, dtype="float64", class_weight="balanced")
    assert there.task == mine.task
    assert there.task.class_weight is not None
    assert np.allclose(there.rows, mine.rows, atol=1e-9)
    assert there.label_counts is None, "the server keeps the weights, not the counts"
    again = balanced(tmp_path / "yes", "")
    assert again.task == mine.task


def balanced(folder: Path, policy: str) -> Any:
    paths = sites.write_sites(uneven_federation(), folder, GROUPS, disclose=False, policy=policy)
    found = plan(folder, "fedavg")
    asked = found.options.model_copy(update={"class_weight": "balanced", "checkpoint_every": 1})
    return train_sites(sites.LoopLine(paths), dataclasses.replace(found, options=asked), folder / "result")


@pytest.mark.parametrize(
    ("policy", "fix"), [("shared = false", "shared = true"), ("metrics = false", "metrics = true")]
)
def test_a_site_may_keep_everything_to_itself(policy: str, fix: str, tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match=fix):
        trained(tmp_path, "fedavg", policy)


def test_every_array_that_leaves_is_written_down(tmp_path: Path) -> None:
    line, _ = trained(tmp_path, "fedavg", "")
    audit = tmp_path / "site-1" / "audit.jsonl"
    lines = [json.loads(text) for text in audit.read_text().splitlines()]
    told = [entry for entry in lines if entry["name"] != "head"]
    left = [
        (name.removeprefix("array/"), list(value.shape), value.numel() * value.element_size())
        for node, _, answer in line.messages
        if node == 1
        for name, value in answer.tensors.items()
    ]
    assert sorted((e["name"], e["shape"], e["bytes"]) for e in told) == sorted(left)
    assert {"time", "run", "kind", "name", "shape", "dtype", "bytes"} == set(told[0])
    assert {"hello", "join", "answer train", "answer evaluate", "deploy"} == {entry["kind"] for entry in lines}
    assert stat.S_IMODE(audit.stat().st_mode) == 0o600


def test_what_cannot_be_written_down_does_not_leave(tmp_path: Path) -> None:
    path = sites.write_sites(uneven_federation(), tmp_path, GROUPS)[0]
    (path.parent / "audit.jsonl").mkdir()
    assert set(answer_at(path, Message({"kind": "hello"})).head) == {"refused"}


def test_private_state_is_its_owners_alone(tmp_path: Path) -> None:
    (tmp_path / "site-1" / "state").mkdir(parents=True, mode=0o755)
    trained(tmp_path, "fedper", "")
    state = tmp_path / "site-1" / "state"
    found = [state, *state.rglob("*")]
    assert len(found) > 3
    assert all(stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600) for path in found)


def test_an_unknown_word_in_a_policy_is_refused(tmp_path: Path) -> None:
    path = sites.write_sites(uneven_federation(), tmp_path, GROUPS, policy="statistic = true")[0]
    assert "policy.statistic" in answer_at(path, Message({"kind": "hello"})).head["refused"]
