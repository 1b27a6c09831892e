"""Parkinson's telemonitoring: the severity of the disease from recordings of the voice; a client is a patient."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedkin.data.federate import Recipe
from fedkin.data.natural import clients_of, regression, split_in_order
from fedkin.data.registry import dataset
from fedkin.data.source import Arrays, File, Source, check
from fedkin.data.tabular import read_table
from fedkin.errors import unknown
from fedkin.federation import Federation

HASH = "sha256:f2c7d5025dec4e92e7feae367a5f7ccf58789a10ac6b54bdf15976c599f9dd39"
TARGETS = {"motor": "motor_UPDRS", "total": "total_UPDRS"}
APART = 0.5  # days: recordings of a session lie minutes apart, sessions about a week


def read_recordings(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """UCI's table: subject#, age, sex, test_time (days), both scores, then 16 measures of the voice.

    Jitter, shimmer and the noise ratio are taken as logarithms, as Tsanas et al. do: they have long tails.
    """
    path = next(iter(files.values()))
    table = read_table(path)
    known = ["subject#", "age", "sex", "test_time", *TARGETS.values()]
    check(list(table.columns[:6]) == known and table.shape[1] == 22, f"{path}: columns {list(table.columns)[:6]} …")
    check(not table.isna().to_numpy().any(), f"{path} has empty cells")
    inputs = table.drop(columns=["subject#", "test_time", *TARGETS.values()])
    skewed = [name for name in inputs.columns if name.startswith(("Jitter", "Shimmer", "NHR"))]
    check((inputs[skewed] > 0).to_numpy().all(), f"{path}: a jitter, shimmer or noise ratio is not positive")
    inputs[skewed] = np.log(inputs[skewed])
    return {
        "x": inputs.to_numpy(np.float64),
        "day": table["test_time"].to_numpy(np.float64),
        "patient": table["subject#"].to_numpy(np.int16),
        **{name: table[column].to_numpy(np.float64) for name, column in TARGETS.items()},
    }


@dataset(
    name="parkinsons",
    description="severity of Parkinson's disease (UPDRS) from voice recordings made at home over half a year",
    size="42 patients, 5,875 recordings (101 to 168 each), 18 features, 0.9 MB",
    clients="patients",
    split="by time in each patient: the last 25 % of the recordings test, whole sessions",
    metric="MSE of z-scored UPDRS; its root times truth['std'] is an error in points",
    licence="CC BY 4.0 (UCI)",
    citation="A. Tsanas, M. A. Little, P. E. McSharry, L. O. Ramig, Accurate Telemonitoring of Parkinson's Disease "
    "Progression by Noninvasive Speech Tests, IEEE Trans. Biomedical Engineering 57(4), 2010",
    sources=(
        Source(
            "upstream",
            (
                File(
                    "parkinsons_updrs.data",
                    "https://archive.ics.uci.edu/ml/machine-learning-databases/parkinsons/telemonitoring/"
                    "parkinsons_updrs.data",
                    HASH,
                    HASH,
                ),
            ),
            read_recordings,
            ("parkinsons",),
        ),
    ),
)
def parkinsons(arrays: Arrays, recipe: Recipe, target: str = "motor") -> Federation:
    """One client per patient: age, sex and 16 measures of the voice → the `target` score, "motor" or "total".

    A doctor took the scores three times and the set interpolates them in time, so a random split would have the test's
    neighbours on the same line in training. The day itself is no input, for the same reason.
    """
    if target not in TARGETS:
        raise unknown("target of parkinsons", target, TARGETS)
    groups = clients_of(recipe, np.array([f"patient-{number:02d}" for number in arrays["patient"]]), "patient")
    parts = {}
    for name, own in groups.items():
        own = own[np.argsort(arrays["day"][own], kind="stable")]
        session = np.cumsum(np.diff(arrays["day"][own], prepend=-np.inf) > APART)
        parts[name] = split_in_order(recipe, own, session)
    return regression(recipe, parts, arrays["x"], arrays[target], f"{TARGETS[target]}")
