"""How far it is from one end of fedkin to the other: calls counted by tracing (sys.setprofile), nothing is timed.

    python benchmarks/walks.py [--quick] [--json FILE]

* From a row of a CSV file to the printed number: `fedkin run --csv`, three clients, one round of FedAvg.
* One round of FedPnP, the second of a run, without its evaluation; and the frames of fedkin on the stack from the loop of
  `Run` to the kernel that takes the SGD steps, both ends counted.
* `fedkin compare` of four methods and two seeds: runs built and graphs built for these eight trainings.

A call is one of a function written in a file of fedkin while the walk lasts, comprehensions and lambdas included; a file
counts if a call was in it. Every walk is done twice and the second counted, when all is imported. All of it is held to one core, so that
training has one worker, in this thread: what is counted does not depend on the machine.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import timing

import fedkin

SOURCE = Path(fedkin.__file__).parent
LOOP, ROUND = "Run.run", "Algorithm.round"
BEFORE = {"csv": (1338, 64), "round": (139, 23), "frames": 15, "runs": 12, "graphs": 6}
"""Before the rooms were rebuilt, as traced then."""


class Walk:
    """The calls within fedkin while it is entered, in this thread; `inside` a function only if one is named."""

    def __init__(self, inside: str | None = None) -> None:
        self.inside, self.within = inside, 0
        self.calls: Counter[CodeType] = Counter()
        self.frames = 0
        """On the stack between the loop and a kernel's step."""

    def __enter__(self) -> Walk:
        self.calls.clear()
        sys.setprofile(self._see)
        return self

    def __exit__(self, *problem: object) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not ours(code):
            return
        if code.co_qualname == self.inside:
            self.within += 1 if event == "call" else -1
            if event == "call" and self.within == 1:
                self.calls.clear()  # the last time it was entered is what is reported
        if event == "call" and (self.inside is None or self.within):
            self.calls[code] += 1
            if is_step(code):
                self.frames = frames_to_loop(frame)

    @property
    def files(self) -> int:
        return len({code.co_filename for code in self.calls})

    def count(self, name: str, file: str = "") -> int:
        """Calls of the function of this qualified name, in files whose path ends so."""
        found = (code for code in self.calls if code.co_qualname == name and code.co_filename.endswith(file))
        return sum(self.calls[code] for code in found)

    def record(self, title: str, **more: Any) -> dict[str, Any]:
        return {"walk": title, "calls": self.calls.total(), "files": self.files, **more}


def ours(code: CodeType) -> bool:
    return code.co_filename.startswith(str(SOURCE)) and code.co_name != "<module>"


def is_step(code: CodeType) -> bool:
    """Whether this is a kernel's own function that computes the steps or their gradients."""
    return "kernels" in Path(code.co_filename).parts and code.co_name in ("descend", "descend_chain", "gradient")


def frames_to_loop(frame: FrameType | None) -> int:
    count = 0
    while frame is not None:
        count += ours(frame.f_code)
        if frame.f_code.co_qualname == LOOP:
            return count
        frame = frame.f_back
    return 0


def write_table(path: Path, clients: int = 3, samples: int = 20) -> None:
    rng = random.Random(0)
    lines = ["site,height,weight,ill"]
    for k in range(clients):
        values = [(rng.gauss(k, 1), rng.gauss(0, 1)) for _ in range(samples)]
        lines += [f"site-{k},{a:.3f},{b:.3f},{'yes' if a + b > k else 'no'}" for a, b in values]
    path.write_text("\n".join(lines) + "\n")


def command(*arguments: str) -> None:
    """A command of fedkin in this process; what it prints must not be empty."""
    from fedkin.cli import app

    printed = io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(SystemExit),
    ):
        app(list(arguments))
    assert printed.getvalue(), f"fedkin {' '.join(arguments)} printed nothing"


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def from_csv_to_number() -> dict[str, Any]:
    with folder() as place, Walk() as walk:
        table = place / "visits.csv"
        write_table(table)
        flags = ("--csv", str(table), "--client", "site", "--target", "ill")
        command("run", *flags, "--model", "mlr", "--rounds", "1", "--out", str(place / "run"))
    return walk.record("a CSV row to the printed number")


def one_round() -> dict[str, Any]:
    with folder() as place:
        table = place / "visits.csv"
        write_table(table)
        federation = fedkin.data.from_csv(table, client="site", target="ill")
        with Walk(inside=ROUND) as walk:
            fedkin.train(federation, "mlr", "fedpnp", "complete", rounds=2, eval_every=3, workers=1, validation="given")
    return walk.record("one FedPnP round", frames=walk.frames)


def comparison() -> dict[str, Any]:
    methods = ("local", "fedavg", "fedu", "fedpnp")
    with folder() as place, Walk() as walk:
        data = ("--data", "digits", "--clients", "5", "--graph", "knn:2", "--model", "mlr", "--rounds", "1")
        once = place / "once.toml"  # FedPnP and FedU are not judged on a fold: a training each
        once.write_text('[run]\nvalidation = "given"\n')
        command(
            "compare", str(once), *data, "--algorithms", ",".join(methods), "--seeds", "2", "--out", str(place / "all")
        )
    runs, graphs = walk.count("Run.__init__"), walk.count("build", "graphs/build.py")
    return walk.record("compare, 4 methods × 2 seeds", runs=runs, graphs=graphs)


def measure(quick: bool) -> list[dict[str, Any]]:
    """Each walk twice: the first has the imports, and what is only made once."""
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    walks = (from_csv_to_number, one_round) if quick else (from_csv_to_number, one_round, comparison)
    return [[walk() for _ in range(2)][-1] for walk in walks]


def main() -> None:
    options = timing.parsed(timing.parser("walks", __doc__, quick="no comparison"))
    records = timing.case("walks", options.limit, measure, options.quick) or []
    for record in records:
        more = "".join(f", {record[name]} {name}" for name in ("frames", "runs", "graphs") if name in record)
        print(f"{record['walk']:34}{record['calls']:>8,} calls in {record['files']} files{more}")
    timing.write(options.json, records, before=BEFORE)


if __name__ == "__main__":
    main()
