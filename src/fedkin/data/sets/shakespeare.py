"""Shakespeare: guess the next character from the 80 before it; a client is a speaking role."""

from __future__ import annotations

import gzip
import re
import string
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from fedkin.data.archive import open_archive
from fedkin.data.federate import Recipe
from fedkin.data.plays import as_arrays, parse_complete, parse_leaf, parse_tiny
from fedkin.data.registry import dataset
from fedkin.data.source import Arrays, File, Source, check
from fedkin.errors import FedkinError
from fedkin.federation import PARTS, Federation, Split
from fedkin.task import Task

CHARACTERS = string.printable
CODE = np.zeros(128, dtype=np.int64)
CODE[[ord(c) for c in CHARACTERS]] = np.arange(len(CHARACTERS))


def _text(path: Path) -> str:
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as stream
        ):
            return stream.read()
    except (EOFError, gzip.BadGzipFile, UnicodeDecodeError) as problem:
        raise FedkinError(f"{path}: truncated or damaged text ({problem}); get it again") from problem


def read_tiny(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    return as_arrays(parse_tiny(_text(next(iter(files.values())))))


def read_complete(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    return as_arrays(parse_complete(_text(next(iter(files.values())))))


def read_leaf(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    with open_archive(next(iter(files.values()))) as archive:
        roles = parse_leaf(archive.read("100.txt").decode("latin-1"))
    plays = {name.split(":")[0] for name in roles}
    check(len(plays) >= 30, f"{archive.path}: {len(plays)} plays found, at least 30 expected")
    return as_arrays(roles)


def text_windows(lines: Iterable[str], length: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes of `length` characters (n, length) and of the one that follows (n,), every `stride` characters."""
    text = re.sub(r"  +", " ", " ".join(lines))
    codes = CODE[np.frombuffer(text.encode("ascii"), dtype=np.uint8)]
    if len(codes) <= length:
        return np.zeros((0, length), dtype=np.int64), np.zeros(0, dtype=np.int64)
    view = np.lib.stride_tricks.sliding_window_view(codes, length + 1)[::stride]
    return view[:, :-1].copy(), view[:, -1].copy()


def _build(arrays: Arrays, recipe: Recipe, length: int, stride: int, minimum: int) -> Federation:
    if recipe.partition not in (None, "natural", "column") or recipe.downsample:
        raise FedkinError("shakespeare has one client per role; drop partition and downsample")
    if length < 1 or stride < 1:
        raise FedkinError(f"length {length} and stride {stride} must be at least 1")
    text, offsets = np.asarray(arrays["text"]), np.asarray(arrays["offsets"])
    sizes = np.diff(offsets)
    eligible = {str(arrays["names"][k]): np.array([k]) for k in np.flatnonzero(sizes >= minimum)}
    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {part: [] for part in PARTS}
    usable: dict[str, np.ndarray] = {}
    drawn: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for name, k in eligible.items():
        lines = text[offsets[k[0]] : offsets[k[0] + 1]].tobytes().decode("ascii").split("\n")
        test = max(1, int(len(lines) * recipe.test_fraction)) if recipe.test_fraction else 0
        validation = int(len(lines) * recipe.validation_fraction)
        cuts = len(lines) - test - validation, len(lines) - test
        pieces = lines[: cuts[0]], lines[cuts[0] : cuts[1]], lines[cuts[1] :]
        drawn[name] = {part: text_windows(piece, length, stride) for part, piece in zip(PARTS, pieces)}
        if len(drawn[name]["train"][0]) and (len(drawn[name]["test"][0]) or not test):
            usable[name] = k
    if not usable:
        raise FedkinError(f"no role has {minimum} characters and enough lines for windows of {length}; lower `minimum`")
    chosen = recipe.choose(usable)
    for name in chosen:
        for part in PARTS:
            parts[part].append(drawn[name][part])
    notes = (
        () if stride == 1 else (f"Shakespeare: every {stride}th window of {length} characters (stride=1 takes all)",)
    )
    task = Task("classification", (length,), classes=tuple(CHARACTERS), tokens=True)
    train, validation_split, test_split = (Split.join(parts[part]) for part in PARTS)
    return Federation(tuple(chosen), task, train, validation_split, test_split, notes=notes)


FACTS = {
    "clients": "speaking roles",
    "split": "lines of a role in order, 80/20",
    "licence": "public domain",
    "citation": "S. Caldas et al., LEAF: A Benchmark for Federated Settings, arXiv:1812.01097, 2018",
    "test_fraction": 0.2,
}


@dataset(
    name="shakespeare",
    description="the plays by speaking role: guess the next character",
    size="about 1,100 roles, 5 million characters",
    sources=(
        Source(
            "upstream",
            (File("1994-01-100.zip", "https://www.gutenberg.org/files/100/old/old/1994-01-100.zip"),),
            read_leaf,
            ("shakespeare",),
        ),
        Source(
            "complete",
            (
                File(
                    "shakespeare_complete_gutenberg.txt.gz",
                    None,
                    "sha256:a4a560c348868257805a6eff082dd1e4f3cbc1363f7f3f3340d3356ae96f8330",
                ),
            ),
            read_complete,
            ("shakespeare",),
            notes=("Shakespeare: Project Gutenberg's separate plays, not the file and the split of LEAF",),
        ),
    ),
    **FACTS,
)
def shakespeare(arrays: Arrays, recipe: Recipe, length: int = 80, stride: int = 20, minimum: int = 2000) -> Federation:
    """Inputs (80,) codes of the 100 printable characters, target the next one; its last 20 % of lines are the test.

    Roles with at least `minimum` characters. LEAF takes every window: `stride=1` (20 times the samples).
    """
    return _build(arrays, recipe, length, stride, minimum)


TINY_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
TINY = "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


@dataset(
    name="tiny-shakespeare",
    description="a million characters of Shakespeare by speaking role: guess the next character",
    size="309 roles, 1,115,394 characters, 1 MB",
    sources=(
        Source(
            "upstream",
            (File("input.txt", TINY_URL, TINY),),
            read_tiny,
            ("tiny-shakespeare", "tinyshakespeare"),
        ),
        Source("gz", (File("tinyshakespeare.txt.gz", None, None, TINY),), read_tiny, ("shakespeare",)),
    ),
    **FACTS,
)
def tiny_shakespeare(
    arrays: Arrays, recipe: Recipe, length: int = 80, stride: int = 20, minimum: int = 2000
) -> Federation:
    """As `shakespeare`; roles of the same name in several plays are one client, for the plays are not marked."""
    return _build(arrays, recipe, length, stride, minimum)
