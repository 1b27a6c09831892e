"""What is tried against fedkin, each as a function (how many, seed) → (tried, those that failed).

Kills at enumerated points of every writer, damage to every file of a run directory, inputs of all kinds. `make test-faults`
runs them in full, `make test` a few of each.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pandas as pd
import tomli_w
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from safetensors.torch import save

import fedkin
from fedkin import data
from fedkin.algorithms import FedU
from fedkin.data.tabular import from_csv, from_table
from fedkin.deployment.server import FederationFile
from fedkin.engines.flower.messages import Answered, Hello, Join, Posted, read_head
from fedkin.engines.flower.wire import Message
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.graphs import ClientGraph
from fedkin.run import make_options

CRASH = Path(__file__).with_name("crash.py")
Outcome = tuple[int, list[str]]


def crash(folder: Path, method: str, how: str, *points: int) -> list[list[int]]:
    """Of every point: itself, the exit codes of the stopped run and of the one that went on, the points passed."""
    told = subprocess.run(
        [sys.executable, str(CRASH), str(folder), method, how, *map(str, points)],
        capture_output=True,
        text=True,
        check=True,
    )
    return [[int(number) for number in line.split()] for line in told.stdout.splitlines()]


def kills(folder: Path, method: str, most: int | None, seed: int = 0, how: str = "kill") -> Outcome:
    """Stop a run at each of its crash points (or at `most` of them), let it go on, compare every bit of the result."""
    ((_, code, _, points),) = crash(folder, method, how, 0)
    assert code == 0
    expected = load_file(folder / "0" / "result.safetensors")
    chosen = list(range(1, points + 1))
    if how == "limit":
        largest = max(path.stat().st_size for path in (folder / "0").rglob("*"))
        chosen = sorted({largest * part // (most or 20) for part in range(most or 20)} - {0})
    elif most is not None and most < points:
        chosen = sorted(random.Random(seed).sample(chosen, most))
    failed = []
    for at, first, second, _ in crash(folder, method, how, *chosen):
        out = folder / str(at)
        said = out.with_suffix(".log").read_text().strip()
        harmless = how == "full" and first == 0 and not said  # full when only the folder was still to be synced
        if not harmless and ((first, second) != (137 if how == "kill" else 1, 0) or not SAID[how](said)):
            failed.append(f"{method}, {how} {at}: exit {first}, then {second}: {said}")
            continue
        found = load_file(out / "result.safetensors")
        same = found.keys() == expected.keys() and all(np.array_equal(found[n], expected[n]) for n in expected)
        left = [*out.rglob(".*.part"), *out.rglob(".lock")]
        if not same or left:
            failed.append(f"{method}, {how} {at}: {'files left over' if same else 'other numbers'}")
        shutil.rmtree(out)
    return len(chosen), failed


SAID: dict[str, Callable[[str], bool]] = {
    "kill": lambda said: not said,
    "full": lambda said: "\n" not in said and said.startswith("FedkinError the disk is full"),
    "limit": lambda said: "\n" not in said and said.startswith("FedkinError the limit on file sizes is reached"),
}
"""What must be in the log of a stopped run: the exception, in one line."""


# --- damage -----------------------------------------------------------------------------------------------------------


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Some bytes flipped, cut off, doubled, replaced by text or removed."""
    kind = draw.randrange(6)
    if kind == 0 and content:
        spoiled = bytearray(content)
        for _ in range(draw.randint(1, 4)):
            spoiled[draw.randrange(len(spoiled))] ^= 1 << draw.randrange(8)
        return bytes(spoiled)
    if kind == 1:
        return content[: draw.randrange(len(content) + 1)]
    if kind == 2:
        return content + content[: draw.randrange(len(content) + 1)]
    if kind == 3:
        return draw.choice([b"", b"{}", b"[]", b"null", b"\n", b"PK\x03\x04", b"\xff" * 40, b"[data]\nname = [1]\n"])
    if kind == 4:  # a number or word becomes another one
        words = [b"0", b"-1", b"1e999", b"null", b"true", b'"x"', b"[]", b"{}", b"99999999999999999999"]
        places = [i for i, byte in enumerate(content) if byte in b"0123456789"]
        if places:
            at = draw.choice(places)
            return content[:at] + draw.choice(words) + content[at + 1 :]
    return os.urandom(0) + bytes(draw.randrange(256) for _ in range(draw.randrange(200)))


def _after_damage(verb: str, out: Path, federation: Federation, accept: bool, expected: np.ndarray) -> str | None:
    """What is wrong with the outcome of loading or resuming a directory that is damaged, or None."""
    try:
        if verb == "load":
            result = fedkin.load(out, accept_changes=accept)
        else:
            result = fedkin.resume(out, federation, rounds=3, accept_changes=accept)
    except FedkinError as problem:
        return f"{verb}: several lines" if "\n" in str(problem).strip() else None
    except Exception as problem:
        return f"{verb}: {type(problem).__name__}: {problem}"
    return None if accept or np.array_equal(result.rows, expected) else f"{verb}: other numbers in silence"


def damages(folder: Path, many: int, seed: int = 0, first: int = 0) -> Outcome:
    """Damage one file of a finished run, then load and resume it: good numbers, or one line that says what is wrong."""
    federation, original = data.load("digits", clients=3, seed=0), folder / "original"
    if not original.exists():
        options: dict[str, Any] = {"rounds": 3, "checkpoint_every": 1, "out": original}
        fedkin.train(federation, "mlr", FedU(lr=0.1), "knn:1", **options)
    expected = fedkin.load(original).rows
    files = sorted(path.relative_to(original) for path in original.rglob("*") if path.is_file())
    failed = []
    for number in range(first, first + many):
        draw = random.Random(seed * 1_000_003 + number)
        out, file, accept = folder / "damaged", draw.choice(files), draw.random() < 0.5
        shutil.copytree(original, out)
        (out / file).write_bytes(damaged((out / file).read_bytes(), draw))
        told = (_after_damage(verb, out, federation, accept, expected) for verb in ("load", "resume"))
        fault = next((one for one in told if one), None)
        failed += [f"damage {number} to {file}, accept={accept}: {fault}"] if fault else []
        shutil.rmtree(out)
    return many, failed


# --- inputs -----------------------------------------------------------------------------------------------------------

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2, 10**25, 0.5, float("nan"), float("inf"), "", "a", "1", "01", b"x", [], [1], [[1], [2, 3]],
    {}, {"a": 1}, (), np.nan, np.array([]), np.array(3), np.array([None, "a"]), np.float32(0.1), "é\n", 1e308, -0.0,
]  # fmt: skip


def odd_array(draw: random.Random) -> Any:
    """Something a user might give as samples or targets."""
    n = draw.randrange(12)
    made: list[Any] = [
        np.random.default_rng(draw.randrange(99)).normal(size=(n, draw.randrange(4))),
        np.arange(n),
        np.arange(n) % 2,
        np.array([draw.choice("ab") for _ in range(n)]),
        np.array([draw.choice(ODD[:14]) for _ in range(n)], dtype=object),
        [[1.0] * draw.randrange(3) for _ in range(n)],
        [draw.choice([0, 1, "a", None]) for _ in range(n)],
        np.full((n, 2), np.nan),
        draw.choice(ODD),
    ]
    return draw.choice(made)


def odd_table(draw: random.Random) -> str:
    """The text of a CSV file with client, x and y columns that may hold anything."""
    cells = ["1", "01", "a", "", "0.5", "nan", "1e999", '"', "2024-01-01", "true", "b,c", "-1"]
    header = draw.choice(["client,x,y", "client,x,y", "client,x,x,y", "client,y", "client", "", "client,x,y,client"])
    width = max(1, header.count(",") + 1)
    good = draw.random() < 0.5
    lines = []
    for k in range(draw.choice([0, 0, 1, 3, 12])):
        lines.append(f"{k % 2},{k},{k % 2}" if good else ",".join(draw.choice(cells) for _ in range(width)))
    return "\n".join([header, *lines])


def one_input(folder: Path, draw: random.Random) -> None:
    """Give one odd input to one of the doors of fedkin."""
    door = draw.randrange(9)
    fractions = {"test_fraction": draw.choice([0.25, 0.25, *ODD]), "validation_fraction": draw.choice([0.0, 0.0, *ODD])}
    classes = draw.choice([None, None, None, ["a", "b"], [0, 1], *ODD])
    if door == 0:
        sites = {str(k): (odd_array(draw), odd_array(draw)) for k in range(draw.randint(1, 3))}
        Federation.from_arrays(sites, classes=classes, **fractions)
    elif door == 1:
        (folder / "t.csv").write_text(odd_table(draw))
        from_csv(folder / "t.csv", "client", "y", **(fractions if draw.random() < 0.3 else {}), classes=classes)
    elif door == 2:
        content = bytes(draw.randrange(256) for _ in range(draw.randrange(300)))
        path = folder / draw.choice(["t.parquet", "t.csv", "t.csv.gz", "t.npz"])
        if path.suffix == ".parquet" and draw.random() < 0.7:
            pd.DataFrame({"client": ["a", "b"] * 4, "x": range(8), "y": [0, 0, 1, 1] * 2}).to_parquet(path)
            content = damaged(path.read_bytes(), draw)
        path.write_bytes(content)
        ClientGraph.load(path) if path.suffix == ".npz" else from_csv(path, "client", "y")
    elif door == 3:
        names = ["rounds", "seed", "fraction", "cohort", "eval_every", "dtype", "engine", "workers", "post"]
        make_options(**{draw.choice(names): draw.choice(ODD)})
    elif door == 4:
        method = draw.choice(fedkin.algorithms.names())
        fields = list(fedkin.algorithms.get(method).model_fields)
        fedkin.algorithms.make(method, {draw.choice(fields): draw.choice(ODD)})
    elif door == 5:
        parts = {
            "names": odd_array(draw),
            "data": odd_array(draw),
            "indices": odd_array(draw),
            "indptr": odd_array(draw),
        }
        with suppress(TypeError, ValueError), open(folder / "g.npz", "wb") as file:  # what numpy itself cannot store
            np.savez(file, **{name: np.asarray(value) for name, value in parts.items() if draw.random() < 0.9})
        ClientGraph.load(folder / "g.npz")
    elif door == 6:
        section = draw.choice(["federation", "model", "algorithm", "graph", "run"])
        key = draw.choice(
            ["sites", "wait", "classes", "owners", "accept", "name", "allowed", "file", "rounds", "dtype", "x"]
        )
        value = draw.choice([value for value in ODD if isinstance(value, str | int | float | bool | list | dict)])
        with suppress(TypeError, ValueError, OverflowError):  # what TOML cannot hold
            (folder / "federation.toml").write_text(tomli_w.dumps({"federation": {"sites": 1}, section: {key: value}}))
        FederationFile.read(folder / "federation.toml")
    elif door == 7:
        head = draw.choice(["{}", "[]", "{", '{"clients": []}', '{"answered": NaN}', "[" * 9000, None, b"", "\ud800"])
        body = draw.choice(
            [b"", save({"array/rows": torch.ones(1)}), bytes(draw.randrange(256) for _ in range(40)), None]
        )
        body = damaged(body, draw) if body and draw.random() < 0.5 else body
        read_head(draw.choice([Hello, Join, Answered, Posted]), Message.decode(head, body, 2**20))
    else:
        from fedkin.config import settle

        key = draw.choice(["name", "clients", "partition", "seed", "test_fraction", "directory", "official"])
        settle([{"data": {"name": "digits", key: draw.choice(ODD)}, "model": {"name": draw.choice(["mlr", *ODD])}}])
        frame = pd.DataFrame({"client": [draw.choice(ODD[:14]) for _ in range(6)], "x": range(6), "y": [0, 1] * 3})
        from_table(frame, "client", "y")


def refused_or_taken(folder: Path, draw: random.Random) -> str | None:
    """What went wrong with one odd input, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one_input(folder, draw)
    except FedkinError:
        return None
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return None


def inputs(folder: Path, many: int, seed: int = 0, first: int = 0) -> Outcome:
    """Odd inputs: taken, or refused in one line."""
    numbers = range(first, first + many)
    told = {number: refused_or_taken(folder, random.Random(seed * 1_000_003 + number)) for number in numbers}
    return many, [f"input {number}: {fault}" for number, fault in told.items() if fault]


def fuzzed(folder: Path, many: int, seed: int = 0) -> Outcome:
    """The same with the draws of hypothesis, which likes the edges."""
    told: list[str | None] = []

    @hypothesis.seed(seed)
    @settings(
        max_examples=many,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(draw=st.randoms(use_true_random=False))
    def one(draw: random.Random) -> None:
        told.append(refused_or_taken(folder, draw))

    one()
    return len(told), [
        f"hypothesis, seed {seed}, example {number}: {fault}" for number, fault in enumerate(told) if fault
    ]
