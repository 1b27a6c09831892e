"""WISDM: six activities of 36 people with a phone in the pocket; a client is a person."""

from __future__ import annotations

import gzip
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedkin.data.archive import open_archive
from fedkin.data.federate import Recipe
from fedkin.data.natural import classification, clients_of, split_in_order
from fedkin.data.registry import dataset
from fedkin.data.source import Arrays, File, Source, check, check_counts
from fedkin.errors import FedkinError
from fedkin.federation import PARTS, Federation

ACTIVITIES = ("Walking", "Jogging", "Upstairs", "Downstairs", "Sitting", "Standing")
COUNTS = (2081, 1625, 632, 528, 306, 246)
TABLE = "WISDM_ar_v1.1_transformed.arff"
HASH = (
    "sha256:0cba57836da30d4142c574881f4dc64b93f351cdbe47057abb13e0e73e5ea4ab"  # of the unpacked table without a header
)
ARCHIVE = "sha256:e573791269aab4a629721cf04b6031b7cbf8e14261cd2bc86e65887a2bc592d7"
REPEATED = "WISDM: 61 windows of person 19 stand in the file twice; the second copy is left out"


def parse_arff(text: bytes, name: str) -> dict[str, np.ndarray]:
    """Lines of id, user, 43 features ("?" where no peak was found) and activity, in order of recording.

    An ARFF header (lines that begin with @) and quotes around activities may be there or not.
    """
    import pandas as pd

    lines = [line for line in text.decode().replace('"', "").splitlines() if line.strip() and line[0] not in "@%"]
    try:
        table = pd.read_csv(io.StringIO("\n".join(lines)), header=None, na_values="?")
        check(table.shape[1] == 46, f"{name}: {table.shape[1]} columns, 46 expected")
        features, user = table.iloc[:, 2:45].to_numpy(np.float64), table[1].to_numpy(np.int16)
    except ValueError as problem:
        raise FedkinError(f"{name} is not the table of windows ({problem}); get the file again") from problem
    activity = table[45].str.strip()
    foreign = sorted(set(activity) - set(ACTIVITIES))
    check(not foreign, f"{name}: unknown activity {foreign[:1]}")
    return {"x": features, "y": activity.map(ACTIVITIES.index).to_numpy(np.uint8), "person": user}


def from_lines(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """The table alone, plain or gzipped."""
    path = next(iter(files.values()))
    try:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile) as problem:
        raise FedkinError(f"{path}: truncated or damaged archive ({problem}); get it again") from problem
    return checked(parse_arff(text, path.name))


def from_archive(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """The laboratory's archive, which holds the table beside the raw readings."""
    with open_archive(next(iter(files.values()))) as archive:
        return checked(parse_arff(archive.read(TABLE), TABLE))


def checked(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    check_counts("WISDM", arrays["y"], COUNTS)
    return arrays


def first_copies(arrays: Arrays) -> np.ndarray:
    """The windows that are not an exact copy of an earlier one of the same person, as rows in order."""
    key = np.column_stack([arrays["person"], arrays["y"], np.nan_to_num(arrays["x"], nan=-1e9)])
    return np.sort(np.unique(key, axis=0, return_index=True)[1])


@dataset(
    name="wisdm",
    description="six activities from a phone in the front trouser pocket",
    size="36 people, 5,418 windows of 10 s (61 of them twice), 43 features, 6 classes, 1.2 MB",
    clients="people",
    split="by time in each person and activity: the last 25 % of the windows test; windows share no reading",
    metric="accuracy",
    licence="none stated; the WISDM laboratory (Fordham University) asks to be cited",
    citation="J. R. Kwapisz, G. M. Weiss, S. A. Moore, Activity Recognition using Cell Phone Accelerometers, "
    "SensorKDD 2010",
    sources=(
        Source(
            "upstream",
            (
                File(
                    "WISDM_ar_latest.tar.gz",
                    "https://www.cis.fordham.edu/wisdm/includes/datasets/latest/WISDM_ar_latest.tar.gz",
                    ARCHIVE,
                ),
            ),
            from_archive,
            ("wisdm",),
        ),
        Source("table", (File(TABLE),), from_lines, ("wisdm",)),
        Source("gzipped", (File(f"{TABLE}.gz", content=HASH),), from_lines, ("wisdm",)),
    ),
)
def wisdm(arrays: Arrays, recipe: Recipe) -> Federation:
    """One client per person, inputs (43,), standardised; a gap (no peak in the window) takes the training mean.

    Windows of ten seconds follow each other without overlap. The split is in the order of the file inside each activity,
    so that test windows come from later bouts than most training windows, and every activity of a person is in both.
    """
    rows = first_copies(arrays)
    x, y = np.array(arrays["x"][rows]), arrays["y"][rows]
    groups = clients_of(recipe, np.array([f"person-{number:02d}" for number in arrays["person"][rows]]), "person")
    parts = {}
    for name, own in groups.items():
        cut = [split_in_order(recipe, own[y[own] == code]) for code in np.unique(y[own])]
        parts[name] = {part: np.sort(np.concatenate([c[part] for c in cut])) for part in PARTS}
    train = np.concatenate([own["train"] for own in parts.values()])
    x = np.where(np.isnan(x), np.nanmean(x[train], axis=0), x)
    notes = (REPEATED,) if len(rows) < len(arrays["y"]) else ()
    return classification(recipe, parts, x, y, ACTIVITIES, notes=notes)
