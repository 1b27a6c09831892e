"""Who may speak for whom: clients belong to the node (and key) they registered with, and come back with the same data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from fedkin.deployment.server import FederationFile, train_sites
from fedkin.engines.flower.wire import Message
from fedkin.errors import FedkinError
from fedkin.testing import uneven_federation

from . import sites

GROUPS = ((0, 3), (1,), (2, 4, 5))


def plan(folder: Path, rounds: int = 3, least: int = 2, **federation: Any) -> FederationFile:
    sections = {
        "federation": {"sites": least, "wait": 1, "classes": [0, 1, 2], **federation},
        "model": {"name": "mlr"},
        "run": {"rounds": rounds, "seed": 1, "dtype": "float64", "checkpoint_every": 1},
    }
    path = folder / "federation.toml"
    path.write_text(tomli_w.dumps(sections))
    return FederationFile.read(path)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return sites.write_sites(uneven_federation(), tmp_path, GROUPS)


def failed(result: Any) -> list[dict[str, str]]:
    return [record["log"].get("failed", {}) for record in result.history]


def test_the_register_is_written_at_the_first_join(paths: list[Path], tmp_path: Path) -> None:
    train_sites(sites.LoopLine(paths), plan(tmp_path, rounds=1), tmp_path / "result")
    told = json.loads((tmp_path / "result" / "sites.json").read_text())["sites"]
    assert {node: sorted(own) for node, own in told.items()} == {
        "0": ["site-a", "site-d"], "1": ["site-b"], "2": ["site-c", "site-e", "site-f"],
    }  # fmt: skip
    assert all(len(fingerprint) == 24 for own in told.values() for fingerprint in own.values())


class Tells(sites.LoopLine):
    """The site at node 1 changes what it tells in answers of one kind."""

    def __init__(self, paths: list[Path], kind: str, change: Any) -> None:
        super().__init__(paths)
        self.kind, self.change = kind, change

    def tamper(self, node: int, message: Message, answer: Message) -> tuple[Any, Any]:
        if node == 1 and message.head["kind"] == self.kind:
            return Message({"clients": self.change(answer.head["clients"])}, answer.tensors).encode()
        return answer.encode()


def test_a_site_cannot_describe_clients_of_another(paths: list[Path], tmp_path: Path) -> None:
    """Size 1 for another site's client would have taken away its weight."""
    line = Tells(paths, "join", lambda own: [*own, {**own[0], "name": "site-c", "train": 1}])
    result = train_sites(line, plan(tmp_path), tmp_path / "result")
    assert set(result.names) == {"site-a", "site-c", "site-d", "site-e", "site-f"}
    line = sites.LoopLine([paths[0], paths[2]])
    without = train_sites(line, plan(tmp_path), tmp_path / "without")
    assert np.array_equal(result.rows, without.rows)


def test_a_name_claimed_twice_is_its_owners_or_nobodys(paths: list[Path], tmp_path: Path) -> None:
    line = Tells(paths, "hello", lambda own: [{**own[0], "name": "site-a"}])
    with pytest.raises(FedkinError, match="client 'site-a' is at two sites"):
        train_sites(line, plan(tmp_path), tmp_path / "result")
    owned = plan(tmp_path, owners={"0": ["site-a", "site-d"]})
    result = train_sites(line, owned, tmp_path / "owned")
    assert set(result.names) == {"site-a", "site-c", "site-d", "site-e", "site-f"}


def test_a_claim_of_more_samples_than_allowed_excludes_the_site(paths: list[Path], tmp_path: Path) -> None:
    line = Tells(paths, "join", lambda own: [{**own[0], "train": 10**8}])
    assert "site-b" not in train_sites(line, plan(tmp_path), tmp_path / "result").names


class Replaced(sites.LoopLine):
    """Before round 2 the site at node 1 goes away; from round 3 on another one is there, under `node`."""

    def __init__(self, paths: list[Path], other: Path, node: int) -> None:
        super().__init__(paths)
        self.other, self.at, self.gone = other, node, False

    def send(self, messages: Any, limits: Any, timeout: float) -> Any:
        asked = [m.head["shared"] for m in messages.values() if m.head.get("task") == "train"]
        if not self.gone and any(shared["round"] == 2 and shared.get("commit", True) for shared in asked):
            self.gone = True
            self.paths.pop(1)
            self.paths[self.at] = self.other
            rest = {n: m for n, m in messages.items() if n != 1}
            return {**super().send(rest, limits, timeout), 1: "was killed"}
        return super().send(messages, limits, timeout)


def changed_site(tmp_path: Path) -> Path:
    """A site with the same client names and as many samples, but other data."""
    federation = uneven_federation()
    (path,) = sites.write_sites(federation, tmp_path / "other", (GROUPS[1],))
    with np.load(path.parent / "site-b.npz") as file:
        found = dict(file)
    np.savez(path.parent / "site-b.npz", **{**found, "x": found["x"] + 1})
    return path


def test_a_stranger_cannot_take_over_the_names_of_a_lost_site(paths: list[Path], tmp_path: Path) -> None:
    """Not even with the same data: its key is another."""
    for number, other in enumerate((paths[1], changed_site(tmp_path))):
        line = Replaced(paths, other, node=9)
        result = train_sites(line, plan(tmp_path, rounds=4), tmp_path / f"result-{number}")
        assert [set(names) for names in failed(result)] == [set(), {"site-b"}, {"site-b"}, {"site-b"}]
        assert (9, "answer") not in line.sent


def test_a_returning_site_must_show_the_data_it_registered_with(paths: list[Path], tmp_path: Path) -> None:
    other = changed_site(tmp_path)
    result = train_sites(Replaced(paths, other, node=1), plan(tmp_path, rounds=4), tmp_path / "result")
    assert [set(names) for names in failed(result)] == [set(), {"site-b"}, {"site-b"}, {"site-b"}]
    assert "are not those it was registered with" in failed(result)[2]["site-b"]
    accepted = plan(tmp_path, rounds=4, accept=["site-b"])
    result = train_sites(Replaced(paths, other, node=1), accepted, tmp_path / "accepted")
    assert [set(names) for names in failed(result)] == [set(), {"site-b"}, set(), set()]


def test_a_run_goes_on_while_a_site_is_away_or_talks_nonsense(paths: list[Path], tmp_path: Path) -> None:
    for number, kind in enumerate(("hello", "join", "nothing")):
        out = tmp_path / f"result-{number}"
        train_sites(sites.LoopLine(paths), plan(tmp_path, rounds=1), out)
        line = Tells(paths, kind, lambda own: "nonsense")
        line.away = {1} if kind == "nothing" else set()
        result = train_sites(line, plan(tmp_path, rounds=2), out)
        assert len(result.names) == 6
        assert [set(names) for names in failed(result)] == [set(), {"site-b"} if kind != "hello" else set()]


def test_the_register_holds_when_the_run_is_taken_up_again(paths: list[Path], tmp_path: Path) -> None:
    train_sites(sites.LoopLine(paths), plan(tmp_path, rounds=1), tmp_path / "result")
    swapped = sites.LoopLine([paths[1], paths[0], paths[2]])
    with pytest.raises(FedkinError, match=r"is registered with another site's key.*accept = \['site-"):
        train_sites(swapped, plan(tmp_path, rounds=2), tmp_path / "result")
    again = plan(tmp_path, rounds=2, accept=["*"])
    assert len(train_sites(swapped, again, tmp_path / "result").history) == 2
    (tmp_path / "result" / "sites.json").write_text('{"sites": [')
    with pytest.raises(FedkinError, match=r"sites\.json cannot be read"):
        train_sites(swapped, again, tmp_path / "result")
