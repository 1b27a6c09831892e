"""UCI HAR: six activities of 30 people with a smartphone at the waist; a client is a person."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from fedkin.data.archive import open_archive, open_inner
from fedkin.data.federate import Recipe, Scaling, pooled
from fedkin.data.registry import dataset
from fedkin.data.source import Arrays, File, Source, check, check_counts
from fedkin.errors import unknown
from fedkin.federation import Federation

ACTIVITIES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
COUNTS = (1722, 1544, 1406, 1777, 1906, 1944)
SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")


def parse_archive(path: Path) -> dict[str, np.ndarray]:
    """The upstream zip (or the zip inside the zip that UCI serves today): whitespace-separated text tables."""
    import pandas as pd

    with ExitStack() as stack:
        archive = stack.enter_context(open_archive(path))
        if "UCI HAR Dataset.zip" in archive.names:
            archive = stack.enter_context(open_inner(archive, "UCI HAR Dataset.zip"))

        def table(name: str, dtype: type) -> np.ndarray:
            text = archive.read(name)
            return pd.read_csv(io.BytesIO(text), sep=r"\s+", header=None, dtype=dtype).to_numpy()

        def both(pattern: str, dtype: type) -> np.ndarray:
            return np.concatenate([table(pattern.format(part), dtype) for part in ("train", "test")])

        signals = [both(f"{{0}}/Inertial Signals/{name}_{{0}}.txt", np.float32) for name in SIGNALS]
        return {
            "features": both("{0}/X_{0}.txt", np.float32),
            "inertial": np.stack(signals, axis=1),
            "y": (both("{0}/y_{0}.txt", np.int64)[:, 0] - 1).astype(np.uint8),
            "subject": both("{0}/subject_{0}.txt", np.int64)[:, 0].astype(np.uint8),
        }


def read_upstream(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """Parse and check the upstream archive."""
    arrays = parse_archive(next(iter(files.values())))
    check(arrays["features"].shape == (10299, 561), f"HAR features have shape {arrays['features'].shape}")
    check(arrays["inertial"].shape == (10299, 9, 128), f"HAR signals have shape {arrays['inertial'].shape}")
    check_counts("HAR", arrays["y"], COUNTS)
    return arrays


def read_arrays(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """The array layout: recomputed features, signals as int16 with a scale per channel."""
    with np.load(files["har_features.npz"], allow_pickle=False) as stored:
        features, y, subject = stored["X"], stored["y"], stored["subject"]
    with np.load(files["har_inertial_int16.npz"], allow_pickle=False) as stored:
        inertial = stored["X"] * stored["scale"][None, :, None]
        check(np.array_equal(stored["y"], y), "HAR features and signals are not in the same order")
    check_counts("HAR", y, COUNTS)
    return {"features": features, "inertial": inertial.astype(np.float32), "y": y, "subject": subject}


def as_stored(train: np.ndarray) -> Scaling:
    """Features are already in [−1, 1], signals in g and rad/s."""
    return lambda raw: np.asarray(raw, dtype=np.float32)


@dataset(
    name="har",
    description="six activities from a smartphone at the waist",
    size="10,299 windows of 30 subjects, 561 features or 9×128 signals, 6 classes, 61 MB",
    clients="subjects",
    licence="CC BY 4.0 (UCI page); the readme of the data prohibits commercial use",
    citation="D. Anguita et al., A Public Domain Dataset for Human Activity Recognition Using Smartphones, ESANN 2013",
    sources=(
        Source(
            "upstream",
            (
                File(
                    "human+activity+recognition+using+smartphones.zip",
                    "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
                    "sha256:c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
                ),
            ),
            read_upstream,
            ("har",),
        ),
        Source(
            "inner",
            (
                File(
                    "UCI HAR Dataset.zip",
                    "https://archive.ics.uci.edu/ml/machine-learning-databases/00240/UCI%20HAR%20Dataset.zip",
                    "sha256:2045e435c955214b38145fb5fa00776c72814f01b203fec405152dac7d5bfeb0",
                ),
            ),
            read_upstream,
            ("har",),
        ),
        Source(
            "arrays",
            (File("har_features.npz"), File("har_inertial_int16.npz")),
            read_arrays,
            ("har",),
            notes=("HAR: the 561 features are recomputed from the signals, not the original numbers",),
        ),
    ),
)
def har(arrays: Arrays, recipe: Recipe, inputs: str = "features", samples: int | None = None) -> Federation:
    """One client per subject. `inputs`: "features" (561,) or "inertial" (9, 128) windows.

    Neighbouring windows of a subject share half of their readings, so the random split inside a subject (that of the
    papers) is optimistic.
    """
    if inputs not in ("features", "inertial"):
        raise unknown("inputs of har", inputs, ["features", "inertial"])
    owner = np.array([f"subject-{number:02d}" for number in range(31)])[arrays["subject"]]
    return pooled(recipe, arrays[inputs], arrays["y"], ACTIVITIES, owner, fit=as_stored, samples=samples)
