"""make test-faults: everything in this folder, many times; prints what was tried and what survived as one table.

python -m tests.faults.run                          all of it
python -m tests.faults.run --only kills,lies        parts of it
python -m tests.faults.run --share 20               a twentieth of the kills, damages, inputs and lies
python -m tests.faults.run --only inputs --seed 7   other draws; a fault is told with its number, which the seed repeats
python -m tests.faults.run --kept FILE              finished pieces are noted; stopped and started again, it goes on with the others
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import fedkin

from . import accidents, campaign, full_disk, killed_writers, lies

KILLED = ("fedu", "fedavg", "scaffold", "ditto", "fedcedar", "fedrelax")
LIES: dict[str, tuple[int, dict[str, str]]] = {
    "fedavg": (6, {}),
    "scaffold": (12, {}),
    "dfedu": (12, {"graph": "complete"}),
    "fedpnp": (12, {"graph": "statistics"}),
    "sfl": (12, {"graph": "labels"}),
    "ifca": (12, {}),
    "kin": (16, {}),
    "fedproto": (16, {"model": "mlp:6"}),
    "fedrelax": (16, {"graph": "complete", "model": "sites"}),
}
"""Method → each how many-th of its lies is told, and what it needs."""
WRITERS = {"full": "each writer on a full disk", "limit": "each writer, file size limited (ulimit -f)"}
REAL = {
    "site killed and back (real SuperLink)": "test_a_killed_site_is_named_and_rejoins_with_its_model",
    "server killed and back (real SuperLink), resumed to 1e-9": "test_a_killed_server_goes_on_after",
    "slow site (real SuperLink)": "test_a_slow_site_is_named_and_takes_part_again",
    "lying site (real SuperLink), five lies in a run": "test_a_site_that_lies_is_set_aside",
}


class Piece(NamedTuple):
    """What came of a job; `seconds` are the processors', `waited` the clock's."""

    tried: int
    faults: list[str]
    waited: float
    seconds: float


@dataclass(frozen=True)
class Job:
    """A piece of the campaign; pieces of one title are one line of the table."""

    part: str
    title: str
    work: Callable[..., campaign.Outcome]
    arguments: tuple[Any, ...] = ()

    def __call__(self) -> Piece:
        started = time.monotonic()
        with (
            tempfile.TemporaryDirectory() as folder,
            redirect_stdout(io.StringIO()),
        ):  # a server says whom it leaves out
            os.environ.setdefault("FEDKIN_CACHE", folder)
            try:
                outcome = self.work(Path(folder), *self.arguments)
            except Exception as problem:
                outcome = 1, [f"{self.title} {self.arguments}: {type(problem).__name__}: {problem}"]
        spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        seconds = sum(one.ru_utime + one.ru_stime for one in spent)
        return Piece(*outcome, time.monotonic() - started, seconds)

    @property
    def key(self) -> str:
        return json.dumps([self.part, self.title, self.arguments])


def real(folder: Path, name: str) -> campaign.Outcome:
    """A test of tests/engines with servers of its own."""
    where = Path(__file__).parents[1] / "engines" / "test_flower_federation.py"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "engines",
        "-k",
        name,
        f"--basetemp={folder / 'test'}",
        where,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    passed = re.search(r"^1 passed", done.stdout, re.MULTILINE)
    return 1, [] if passed else [f"{name}:\n{done.stdout[-3000:]}"]


def jobs(share: int, seed: int) -> list[Job]:
    """Everything, the longest pieces first."""
    found = [Job("real", title, real, (name,)) for title, name in REAL.items()]
    kept = None if share == 1 else max(2, 100 // share)
    for method in KILLED:
        found.append(Job("kills", "killed while writing, resumed bitwise", campaign.kills, (method, kept, seed)))
    found.append(Job("kills", "each writer killed, goes on", killed_writers.killed_writers, (24 // share or 1, seed)))
    for method, (every, options) in LIES.items():
        told = (method, every * share, seed % every, options.get("graph"), options.get("model", "mlr"))
        found.append(Job("lies", "a lie of a site, over message bytes", lies.lies, told))
    for piece in range(4):  # few pieces: each starts a process of its own
        many = 250 // share
        found.append(Job("damages", "a file of a run directory damaged", campaign.damages, (many, seed, piece * many)))
        many = 750 // share
        found.append(Job("inputs", "odd inputs", campaign.inputs, (many, seed, piece * many)))
        found.append(Job("inputs", "odd inputs", campaign.fuzzed, (many, seed + piece)))
    for how, told in WRITERS.items():
        found.append(Job("disk", told, full_disk.all_writers, (how,)))
    for method in ("fedu", "scaffold"):
        found.append(Job("disk", "disk full, resumed bitwise", campaign.kills, (method, kept, seed, "full")))
        told = "file size limited (ulimit -f), resumed bitwise"
        found.append(Job("disk", told, campaign.kills, (method, max(2, 20 // share), seed, "limit")))
    found.append(Job("owners", "two owners at once, bitwise", accidents.two_owners, (max(2, 40 // share), seed)))
    title = "resumed by another version: told, and bitwise if accepted"
    found.append(Job("versions", title, accidents.other_versions, (max(2, 20 // share), seed)))
    for method in list(accidents.METHODS)[: 5 if share == 1 else 1]:
        found.append(Job("slow", "an answer that comes too late", accidents.slow_sites, (method,)))
        found.append(Job("replay", "a message replayed to its site", accidents.replays, (method,)))
    return found


def row(title: str, pieces: list[Piece]) -> str:
    tried = sum(piece.tried for piece in pieces)
    failed = sum(len(piece.faults) for piece in pieces)
    return f"| {title} | {tried:,} | {tried - failed:,} | {sum(piece.seconds for piece in pieces):.0f} | {sum(piece.waited for piece in pieces):.0f} |"


def noted(path: Path | None) -> dict[str, Piece]:
    """The pieces that are finished, as a file keeps them."""
    if path is None or not path.exists():
        return {}
    return {key: Piece(*told) for key, told in map(json.loads, path.read_text().splitlines())}


def machine() -> str:
    """Day, processor and versions."""
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    known = f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"
    return f"{datetime.now(UTC):%d %B %Y}, {known}, Python {platform.python_version()}, fedkin {fedkin.__version__}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    everything = jobs(1, 0)
    parts = list(dict.fromkeys(job.part for job in everything))
    parser.add_argument("--only", default=",".join(parts), help=f"parts, with commas between them: {', '.join(parts)}")
    parser.add_argument("--share", type=int, default=1, help="do only one of so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--kept", type=Path, help="a file of finished pieces: they are not done again")
    asked = parser.parse_args()
    only = asked.only.split(",")
    if strange := set(only) - set(parts):
        parser.error(f"there is no part {', '.join(sorted(strange))}; there are {', '.join(parts)}")
    chosen, started = [job for job in jobs(asked.share, asked.seed) if job.part in only], time.monotonic()
    found = noted(asked.kept)
    with ProcessPoolExecutor(asked.jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        waiting = {pool.submit(job): job for job in chosen if job.key not in found}
        for number, done in enumerate(as_completed(waiting), 1):
            job, piece = waiting[done], done.result()
            found[job.key] = piece
            if asked.kept is not None:
                with open(asked.kept, "a") as file:
                    file.write(f"{json.dumps([job.key, piece])}\n")
            said = f"[{number}/{len(waiting)}] {job.title} {job.arguments}: {piece.tried} tried, {len(piece.faults)} failed, "
            print("\n".join([f"{said}{piece.waited:.0f} s", *piece.faults]), file=sys.stderr, flush=True)
    pieces = [(job.title, found[job.key]) for job in chosen]
    print("| fault | tried | survived | CPU seconds | seconds by the clock |\n|---|--:|--:|--:|--:|")
    for title in dict.fromkeys(job.title for job in chosen):
        print(row(title, [piece for own, piece in pieces if own == title]))
    minutes, spent = (time.monotonic() - started) / 60, sum(piece.seconds for _, piece in pieces) / 60
    print(
        f"\n{machine()}; seed {asked.seed}, {asked.jobs} processes; {spent:.1f} minutes of CPU, {minutes:.1f} by the clock."
    )
    return 1 if any(piece.faults for _, piece in pieces) else 0


if __name__ == "__main__":
    sys.exit(main())
