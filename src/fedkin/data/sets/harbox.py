"""HARBOX: five activities recorded by 121 people on their own phones; a client is a user."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedkin.data.archive import open_archive
from fedkin.data.federate import Recipe, pooled
from fedkin.data.registry import dataset
from fedkin.data.sets.har import as_stored
from fedkin.data.source import Arrays, File, Source, check
from fedkin.federation import Federation

ACTIVITY_OF_FILE = {"Call": "phone call", "Hop": "hopping", "typing": "typing", "Walk": "walking", "Wave": "waving"}
RECORDING = re.compile(r"(?:^|/)(\d+)/(Call|Hop|typing|Walk|Wave)_train\.txt$")


def parse_windows(text: bytes, name: str) -> np.ndarray:
    """Windows (n, 900) from a text table: 100 lines per window, each a time stamp and nine sensor readings."""
    import pandas as pd

    try:
        values = pd.read_csv(io.BytesIO(text), sep=r"\s+", header=None, dtype=np.float32).to_numpy()
    except ValueError as problem:
        check(False, f"{name} is not a table of numbers ({problem})")
    check(values.size % 1000 == 0 and values.size > 0, f"{name}: {values.shape} numbers are no whole windows of 100×10")
    return values.reshape(-1, 100, 10)[:, :, 1:].reshape(-1, 900)


def read_upstream(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """The upstream zip: folders 1, 2, … of users, in each one text file per activity (some are missing)."""
    x, y, user = [], [], []
    with open_archive(next(iter(files.values()))) as archive:
        for name in archive.names:
            match = RECORDING.search(name)
            if match is None or "__MACOSX" in name:
                continue
            windows = parse_windows(archive.read(name), name)
            x.append(windows)
            y.append(np.full(len(windows), list(ACTIVITY_OF_FILE).index(match[2]), dtype=np.uint8))
            user.append(np.full(len(windows), int(match[1]), dtype=np.int16))
        check(bool(x), f"{archive.path} holds no files <user>/<activity>_train.txt")
    owner = np.concatenate(user)
    order = np.argsort(owner, kind="stable")
    return {"x": np.concatenate(x)[order], "y": np.concatenate(y)[order], "user": owner[order]}


@dataset(
    name="harbox",
    description="five activities recorded by people on their own phones",
    size="121 users (folders of the archive), 9 axes × 100 readings = 900 features, 5 classes, 132 MB",
    clients="users",
    licence="see the repository xmouyang/FL-Datasets-for-HAR",
    citation="X. Ouyang et al., ClusterFL: A Similarity-Aware Federated Learning System for HAR, MobiSys 2021",
    sources=(
        Source(
            "upstream",
            (
                File(
                    "large_scale_HARBox.zip",
                    "https://github.com/xmouyang/FL-Datasets-for-HAR/raw/09ec437c9f7c5b3e8257b6d617b82a5b3b3a689e/"
                    "datasets/HARBox/large_scale_HARBox.zip",
                    "sha256:4fdf91e26f698e2b5e349be2af08fb41a5ccd86e2254b4bd3b81eaf77959d12f",
                ),
            ),
            read_upstream,
            ("harbox", "HARBox"),
        ),
    ),
)
def harbox(arrays: Arrays, recipe: Recipe, samples: int | None = None) -> Federation:
    """One client per user, inputs (900,). FedPnP draws 40 users: `load("harbox", clients=40)`."""
    owner = np.array([f"user-{number:03d}" for number in arrays["user"]])
    return pooled(
        recipe, arrays["x"], arrays["y"], tuple(ACTIVITY_OF_FILE.values()), owner, fit=as_stored, samples=samples
    )
