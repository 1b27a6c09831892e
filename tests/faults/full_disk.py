"""Every writer of fedkin's on a disk that is really full (a small tmpfs in a mount namespace), and under `ulimit -f`.

A writer has written before. Then there is room for a part of what it needs, and it writes again: one line says what happened,
what was there before can be read, nothing is left over; with room, it goes on.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from safetensors.numpy import load_file

import fedkin
from fedkin import ClientGraph, data
from fedkin.data import store
from fedkin.deployment.membership import Membership
from fedkin.deployment.new_app import Deployment
from fedkin.deployment.server import FederationFile, train_sites
from fedkin.errors import FedkinError
from fedkin.files import read_json, write_json
from fedkin.privacy.ledger import Charge, Ledger
from fedkin.result import Result
from fedkin.run.callbacks import CsvHistory
from fedkin.testing import uneven_federation

from ..engines import sites
from .accidents import OPTIONS, stopped
from .campaign import Outcome

# --- the writers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Writer:
    """Writes into a folder, as often as it is asked; `read` fails if what it wrote is not sound."""

    write: Callable[[Path], object]
    read: Callable[[Path], object]
    first: Callable[[Path], object] | None = None
    """What is written before the disk is full, if it is something else."""


@cache
def federation() -> Any:
    return data.load("digits", clients=4, seed=0)


@cache
def trained() -> Result:
    return fedkin.train(federation(), "mlp:64", "fedu", "knn:1", **OPTIONS)


@cache
def expected() -> np.ndarray:
    return fedkin.train(federation(), "mlr", "fedu", "knn:1", **OPTIONS).rows


@cache
def other() -> Result:
    return fedkin.train(federation(), "mlp:64", "fedu", "knn:2", **OPTIONS)


def saved_over_another(folder: Path) -> None:
    """In turn, so that the tensors of one never fit the JSON file of the other."""
    there = (folder / "run").exists() and np.array_equal(fedkin.load(folder / "run").rows, trained().rows)
    (other() if there else trained()).save(folder / "run")


def graph(ending: str) -> Writer:
    def write(folder: Path) -> None:
        ClientGraph(np.ones((90, 90)) - np.eye(90)).save(folder / f"graph.{ending}")

    return Writer(write, lambda folder: ClientGraph.load(folder / f"graph.{ending}"))


def same_bits(rows: np.ndarray) -> None:
    assert np.array_equal(rows, expected()), "other numbers"


def goes_on(folder: Path) -> None:
    same_bits(fedkin.resume(folder / "run", federation(), rows_file=folder / "rows").rows)


def begins(folder: Path) -> None:
    stopped(federation(), folder / "run", rows_file=str(folder / "rows"))


def exported(folder: Path) -> None:
    index = read_json(folder / "models" / "index.json")
    for names in index.values():
        load_file(folder / "models" / names[0])
        read_json(folder / "models" / names[1])


def with_history(folder: Path) -> None:
    fedkin.train(federation(), "mlr", "local", callbacks=[CsvHistory(folder / "history.csv")], **OPTIONS)


def compared(folder: Path) -> None:
    fedkin.compare(federation(), "mlr", ["fedavg"], seeds=(0,), out=folder / "all", **OPTIONS)


def portfolio(folder: Path) -> Result:
    if (folder / "auto" / "result.safetensors").exists():  # stopped after all was written
        return fedkin.load(folder / "auto")
    small = data.load("clusters", clients=6, samples=20, seed=0)
    return fedkin.auto(small, "linear", effort="quick", rounds=3, out=folder / "auto")


def begins_auto(folder: Path) -> None:
    def watch(name: str, round: int, rounds: int) -> None:
        if name == "kin":
            raise KeyboardInterrupt

    small = data.load("clusters", clients=6, samples=20, seed=0)
    try:
        fedkin.auto(small, "linear", effort="quick", rounds=3, out=folder / "auto", watch=watch)
    except KeyboardInterrupt:
        return


def pays(folder: Path) -> None:
    charges = [Charge(f"client-{k}", 0.01, 1.0, 1) for k in range(100)]
    Ledger(folder / "ledger.jsonl").charge(charges, "sample", 1e6, 1e-5)


def deploys(folder: Path) -> None:
    name = f"app-{len([*folder.glob('app-*')])}"
    Deployment(folder / name, ["north", "south"]).write()


def joins(folder: Path) -> None:
    membership = Membership(folder / "app-0")
    membership.add(f"site-{len(membership.sites)}")
    assert f"sites = {len(membership.sites)}" in (folder / "app-0" / "server" / "federation.toml").read_text()


def whole_apps(folder: Path) -> None:
    for app in folder.glob("app-*"):
        for site in (app / "sites").iterdir():
            assert {path.name for path in site.iterdir()} >= {"site.toml", "start.sh", "ca.pem", "key", "key.pub"}


GROUPS = ((0, 1), (2,), (3, 4, 5))


def over_sites(folder: Path, out: Path) -> Result:
    """Three sites; the first one's folder and the server's are where it is said."""
    told = {"sites": 2, "wait": 0.2, "timeout": 5, "classes": [0, 1, 2]}
    run = {"rounds": 2, "seed": 1, "dtype": "float64", "eval_every": 2, "checkpoint_every": 1}
    sections = {"federation": told, "model": {"name": "mlp:6"}, "algorithm": {"name": "fedper"}, "run": run}
    plan, beside = folder.parent / "federation.toml", folder.parent / "sites"
    plan.write_text(tomli_w.dumps(sections))
    paths = sites.write_sites(uneven_federation(), beside, GROUPS) if not beside.exists() else []
    paths = paths or [beside / f"site-{s}" / "site.toml" for s in range(len(GROUPS))]
    if (folder / "site-0").exists():
        paths[0] = folder / "site-0" / "site.toml"
    return train_sites(sites.LoopLine(paths), FederationFile.read(plan), out)


def at_a_site(folder: Path) -> None:
    """The disk of one site is full: it is set aside with the reason, the others' run goes on."""
    number = len([*folder.parent.glob("result-*")])
    result = over_sites(folder, folder.parent / f"result-{number}")
    own = {uneven_federation().names[k] for k in GROUPS[0]}
    assert set(uneven_federation().names) - set(result.names) <= own
    failed = {name: why for record in result.history for name, why in record["log"].get("failed", {}).items()}
    assert failed.keys() <= own
    assert all("the disk is full" in why or "file sizes" in why for why in failed.values()), failed
    if failed or len(result.names) < 6:
        raise FedkinError("the disk is full, as the others see it")


def at_the_server(folder: Path) -> Result:
    return over_sites(folder, folder / "result")


WRITERS: dict[str, Writer] = {
    "graph.npz": graph("npz"),
    "graph.csv": graph("csv"),
    "graph.parquet": graph("parquet"),
    "json": Writer(lambda f: write_json(f / "a.json", {"a": list(range(9999))}), lambda f: read_json(f / "a.json")),
    "report": Writer(
        lambda f: trained().report(f / "page.html"),
        lambda f: (f / "page.html").read_text().rstrip().endswith("</html>") or 1 / 0,
    ),
    "result": Writer(lambda f: trained().save(f / "run"), lambda f: fedkin.load(f / "run")),
    "result over another": Writer(saved_over_another, lambda f: fedkin.load(f / "run")),
    "export": Writer(lambda f: trained().export(f / "models"), exported),
    "run with a rows file": Writer(goes_on, lambda f: None, begins),
    "history.csv": Writer(with_history, lambda f: (f / "history.csv").read_text().startswith("round,") or 1 / 0),
    "comparison": Writer(compared, lambda f: None, lambda f: None),
    "auto": Writer(portfolio, lambda f: None, begins_auto),
    "ledger": Writer(pays, lambda f: Ledger(f / "ledger.jsonl")),
    "data cache": Writer(
        lambda f: store.write_cache(f / "set", {"x": np.zeros((500, 50))}, {}),
        lambda f: store.read_cache(f / "set", ["x"]),
    ),
    "deploy init": Writer(deploys, whole_apps),
    "deploy add": Writer(joins, whole_apps, deploys),
    "a site": Writer(
        at_a_site, lambda f: None, lambda f: sites.write_sites(uneven_federation(), f, GROUPS[:1]) and at_a_site(f)
    ),
    "a server": Writer(at_the_server, lambda f: None, lambda f: None),
}

# --- a full disk ------------------------------------------------------------------------------------------------------

ROOM = 2**26
NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000


def own_disk(folder: Path) -> None:
    """From here on this process sees a file system of its own in the folder."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(NEW_MOUNTS):
        if libc.unshare(NEW_MOUNTS | NEW_USER):
            raise OSError(ctypes.get_errno(), "no mount namespace")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    private = 1 << 18 | 1 << 14  # MS_PRIVATE | MS_REC: nobody else sees it
    told = f"size={ROOM}".encode()
    if libc.mount(b"none", b"/", None, private, None) or libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, told):
        raise OSError(ctypes.get_errno(), "cannot mount a disk")


def may_mount(folder: Path) -> bool:
    """Whether a child of this process can have a disk of its own."""
    child = os.fork()
    if not child:
        try:
            own_disk(folder)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def used(folder: Path) -> int:
    told = os.statvfs(folder)
    return (told.f_blocks - told.f_bfree) * told.f_frsize


class Full:
    """The disk has room for so many bytes more."""

    def __init__(self, folder: Path, room: int) -> None:
        self.filler = folder / "filler"
        with open(self.filler, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, ROOM - used(folder) - room)

    def end(self) -> None:
        self.filler.unlink()


class Limited:
    """No file may become longer than so many bytes."""

    def __init__(self, folder: Path, room: int) -> None:
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, self.before[1]))

    def end(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


HOW: dict[str, tuple[Callable[[Path, int], Any], str]] = {
    "full": (Full, "full"),
    "limit": (Limited, "the limit on file sizes"),
}


def tried(folder: Path, writer: Writer, how: str, share: float) -> str | None:
    """What is wrong when the writer has room for a share of what it needs, or None."""
    disk, scratch = folder / "disk", folder / "scratch"
    for place in (disk, scratch):
        place.mkdir()
    if how == "full":
        own_disk(disk)
    (writer.first or writer.write)(disk)
    need = max(4096, used(disk) if how == "full" else max(path.stat().st_size for path in [disk, *disk.rglob("*")]))
    hindrance, reason = HOW[how]
    hindered, said = hindrance(disk, int(need * share) // 4096 * 4096), ""
    try:
        writer.write(disk)
    except FedkinError as problem:
        said = str(problem)
    finally:
        hindered.end()
    if (
        (not share and not said)
        or (said and (reason not in said and "the disk is full, as" not in said))
        or "\n" in said
    ):
        return f"said {said!r}"
    if left := [str(path.relative_to(disk)) for path in [*disk.rglob(".*.part"), *disk.rglob("*.part")]]:
        return f"left over: {left}"
    if writer.first is None:
        writer.read(disk)
    writer.write(disk)
    writer.read(disk)
    return None


def writers(folder: Path, name: str, how: str, shares: tuple[float, ...] = (0.0, 0.3, 0.7)) -> Outcome:
    """One writer, with room for nothing and for a part of what it needs; each in a process of its own.

    Where nobody may mount a disk nothing is tried.
    """
    if how == "full" and not may_mount(folder):
        return 0, []
    trained(), other(), expected()
    failed = []
    for share in shares:
        place = folder / f"{name}-{how}-{share}".replace(" ", "-")
        place.mkdir(parents=True)
        reader, told = os.pipe()
        child = os.fork()
        if not child:
            os.environ["FEDKIN_CACHE"] = str(place / "cache")
            try:
                fault = tried(place, WRITERS[name], how, share)
            except BaseException as problem:
                lines = traceback.format_exc().splitlines()
                fault = f"{type(problem).__name__}: {problem} ({'; '.join(line.strip() for line in lines[-9:-1])})"
            os.write(told, json.dumps(fault).encode())
            os._exit(0)
        os.close(told)
        with open(reader, "rb") as pipe:
            fault = json.loads(pipe.read() or b'"died"')
        os.waitpid(child, 0)
        failed += [f"{name}, {how}, room for {share:.0%}: {fault}"] if fault else []
    return len(shares), failed


def all_writers(folder: Path, how: str) -> Outcome:
    """Every writer; a limit is the process's, and would bind all sites and the server at once, so these are left out."""
    names = [name for name in WRITERS if how == "full" or name not in ("a site", "a server")]
    found = [writers(folder, name, how) for name in names]
    return sum(tried for tried, _ in found), [fault for _, faults in found for fault in faults]
