"""fedkin deploy check: every fault of every site, told at once, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedkin.deployment import check as deployment_check
from fedkin.deployment.check import Checkup, check_sites
from fedkin.deployment.credentials import make_certificates
from fedkin.engines.flower.settings import FederationSettings
from fedkin.engines.flower.wire import Message

from . import processes, sites

pytest.importorskip("flwr", reason="pip install 'fedkin[flower]'")


def table(n: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(n)
    return pd.DataFrame({"age": rng.normal(size=n), "dose": rng.normal(size=n), "y": rng.integers(0, 2, n)})


def site(folder: Path, name: str, frame: pd.DataFrame | None = None, **fields: str) -> Path:
    own = folder / name
    own.mkdir(parents=True)
    (table() if frame is None else frame).to_csv(own / "data.csv", index=False)
    told = {"name": name, "data": "data.csv", "target": "y", **fields}
    (own / "site.toml").write_text("[[clients]]\n" + "".join(f'{key} = "{value}"\n' for key, value in told.items()))
    return own / "site.toml"


def checked(*paths: Path, **settings: Any) -> Checkup:
    found = check_sites(sites.LoopLine(paths), FederationSettings(**{"sites": len(paths), **settings}), wait=0.1)
    again = Checkup.found_in(f"INFO :      {found.line()}\n")
    assert again == found
    return found


def test_sites_that_fit_have_no_faults(tmp_path: Path) -> None:
    found = checked(site(tmp_path, "north"), site(tmp_path, "south", table(60)))
    assert not found.faults
    assert not found.notes
    assert [(row["client"], row["samples"], row["inputs"], row["target"], row["classes"], row["clock"])
            for row in found.rows] == [("north", 40, [2], "y", ["0", "1"], 0), ("south", 60, [2], "y", ["0", "1"], 0)]  # fmt: skip
    assert all(row["disk"] > 0 and row["versions"]["fedkin"] for row in found.rows)


def test_all_faults_of_all_sites_at_once(tmp_path: Path) -> None:
    frame = table()
    paths = [
        site(tmp_path, "a"),
        site(tmp_path, "b"),
        site(tmp_path, "wrong-target", target="Y"),
        site(tmp_path, "texts", frame.assign(age="old", dose=[np.nan, *frame["dose"][1:]])),
        site(tmp_path, "columns", frame.rename(columns={"age": "alter"})),
        site(tmp_path, "order", frame[["dose", "age", "y"]]),
        site(tmp_path, "numbers", frame.assign(y=frame["dose"])),
        site(tmp_path, "absent", data="nowhere.csv"),
        site(tmp_path, "broken"),
        site(tmp_path, "constant", frame.assign(y=1)),
    ]
    paths[8].write_text("clients = 3\nposture = 1\n")
    found = checked(*paths)
    told = "\n".join(found.faults)
    for line in (
        "client 'wrong-target': data.csv has no column 'Y' (target); did you mean 'y'?",
        "client 'texts': column 'age' is not numeric; encode it or put it in drop",
        "client 'texts': column 'dose' has 1 empty cells; fill them in or put it in drop",
        "client 'columns': lacks columns that most have: 'age'",
        "client 'columns': has columns that most have not: 'alter'; put them in drop",
        "client 'order': has the columns in another order; it must be age, dose",
        "client 'numbers': has real numbers as targets, where most have labels; is it the right target?",
        "client 'absent': nowhere.csv cannot be read: No such file or directory",
        "site 'broken': site.toml, clients: input should be a valid list",
        "site 'broken': site.toml, posture: extra inputs are not permitted",
    ):
        assert line in told, told
    assert found.notes == ["client 'constant' holds one class only: 1"]


def test_who_is_missing_and_classes_that_are_not_known(tmp_path: Path) -> None:
    found = checked(site(tmp_path, "a"), sites=3, classes=[0, 2])
    assert "1 of 3 sites are connected after 0.1 s" in found.faults[0]
    assert "client 'a': holds labels that are not among classes: 1" in found.faults


class Odd(sites.LoopLine):  # type: ignore[misc, name-defined]
    """Sites whose machines are in a bad way."""

    changes: dict[str, Any]

    def tamper(self, node: int, message: Message, answer: Message) -> tuple[Any, Any]:
        return Message({**answer.head, **(self.changes if node else {})}).encode()


@pytest.mark.parametrize(
    ("changes", "fault", "note"),
    [
        ({"clock": 1.0}, "s behind the server's; set it", None),
        ({"clock": 9e9}, "s ahead of the server's; set it", None),
        ({"disk": 5}, "0 MB are free on its disk; make room", None),
        ({"disk": 500 * 2**20}, None, "500 MB are free"),
        ({"certificate_ends": 5.0}, "the certificate has ended", None),
        ({"versions": {"fedkin": "0.0.1"}}, "fedkin 0.0.1, but", "numpy none, but"),
        ({"clock": "noon"}, "no check: head: clock", None),
        ({"secret": 1}, "no check: head: secret", None),
        ({"refused": "the server asks for 'check', which this version of fedkin does not know"}, "does not know", None),
    ],
)
def test_clocks_disks_certificates_and_versions(
    changes: dict[str, Any], fault: str | None, note: str | None, tmp_path: Path
) -> None:
    line = Odd([site(tmp_path, "a"), site(tmp_path, "b")])
    line.changes = changes
    found = check_sites(line, FederationSettings(sites=2), wait=0.1)
    assert (fault is None) == (not found.faults)
    assert fault is None or any(fault in one for one in found.faults), found.faults
    assert note is None or any(note in one for one in found.notes), found.notes


def test_the_servers_own_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_certificates(tmp_path / "certificates", ["127.0.0.1"])
    line, settings = sites.LoopLine([site(tmp_path, "a")]), FederationSettings(sites=1)
    assert not check_sites(line, settings, 0.1, folder).notes
    monkeypatch.setattr(deployment_check, "CERTIFICATE_DAYS", 400)
    assert check_sites(line, settings, 0.1, folder).notes == ["server: the certificate ends in 364 days"]


# --- on real servers --------------------------------------------------------------------------------------------------


@pytest.fixture
def clinics(tmp_path: Path) -> Iterator[processes.Loopback]:
    port = processes.free_port()
    options = ["--sites", "north,south", "--port", str(port), "--target", "outcome"]
    done = processes.run("fedkin", "deploy", "init", str(tmp_path / "built"), *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = (tmp_path / "built").rename(tmp_path / "clinics")  # nothing in it knows where it was made
    federation = processes.Loopback(folder, port)
    try:
        yield federation
    finally:
        federation.end()


@pytest.mark.slow
@pytest.mark.engines
def test_a_real_federation_is_checked_mended_and_trained(clinics: processes.Loopback) -> None:
    """A site with a wrong target and a text column: one command names both; mended, it trains with a telling log."""
    command = ["fedkin", "deploy", "check", ".", "--wait", "900", "--json", "check.json"]
    early = processes.run(*command, cwd=clinics.folder)
    assert early.returncode == 2
    assert "server/start.sh" in early.stderr
    good = table().rename(columns={"y": "outcome"})
    good.to_csv(clinics.folder / "sites" / "north" / "data.csv", index=False)
    good.assign(age="old").rename(columns={"outcome": "result"}).to_csv(
        clinics.folder / "sites" / "south" / "data.csv", index=False
    )
    clinics.start_server()
    taken = processes.run("server/start.sh", cwd=clinics.folder)
    assert taken.returncode != 0
    assert "is taken by another program" in taken.stderr
    for name in ("north", "south"):
        clinics.register(name)
        clinics.start_site(name)
    bad = processes.run(*command, cwd=clinics.folder, timeout=1800)
    assert bad.returncode == 1, bad.stdout + bad.stderr + clinics.logs()
    assert "fault: client 'south': data.csv has no column 'outcome' (target)" in bad.stdout
    good.to_csv(clinics.folder / "sites" / "south" / "data.csv", index=False)
    done = processes.run(*command, cwd=clinics.folder, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no faults" in done.stdout
    assert not (clinics.folder / "server" / "result").exists()
    clinics.train(rounds=2)
    out = clinics.folder / "server" / "result" / "result.safetensors"
    processes.wait_until(out.exists, 1800, "the end of training", clinics.logs)
