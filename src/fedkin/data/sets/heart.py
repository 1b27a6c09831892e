"""UCI heart disease: is a coronary artery narrowed? A client is a hospital, and each left other fields empty."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedkin.data.federate import Recipe, Scaling, pooled
from fedkin.data.registry import dataset
from fedkin.data.source import Arrays, File, Source, check
from fedkin.errors import FedkinError
from fedkin.federation import Federation

HOSPITALS = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
HASHES = {
    "cleveland": "sha256:a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "hungarian": "sha256:d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "switzerland": "sha256:834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    "va": "sha256:e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
}
"""Of UCI's files, which have no line of names and write gaps as "?"."""
CATEGORIES: dict[str, tuple[int, ...]] = {
    "cp": (1, 2, 3, 4),
    "restecg": (0, 1, 2),
    "slope": (1, 2, 3),
    "thal": (3, 6, 7),
}
FLAGS = ("sex", "fbs", "exang")
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal"),
    "target",
)
NEVER_ZERO = ("trestbps", "chol")  # a blood pressure or a cholesterol of 0 is a gap


def read_hospitals(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """UCI's four tables of 14 columns; a gap is "?" or empty, a line of names may head them."""
    import pandas as pd

    tables = []
    for code, name in enumerate(HOSPITALS):
        path = files[f"processed.{name}.data"]
        try:
            table = pd.read_csv(path, header=None, names=list(COLUMNS), na_values="?", dtype=str)
            table = table.iloc[int(table["age"].iloc[0] == "age") :].astype(np.float64)
        except (ValueError, IndexError) as problem:
            raise FedkinError(f"{path} is not a table of 14 numbers a line ({problem}); get it again") from problem
        check(table["target"].isin(range(5)).all(), f"{path}: target is not 0 to 4 in every line")
        tables.append(table.assign(hospital=code))
    frame = pd.concat(tables)
    return {
        "x": frame[list(COLUMNS[:-1])].to_numpy(),
        "y": (frame["target"] > 0).to_numpy(np.uint8),
        "hospital": frame["hospital"].to_numpy(np.uint8),
    }


def read_upstream(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    arrays = read_hospitals(files)
    counts = np.bincount(arrays["hospital"], minlength=len(HOSPITALS)).tolist()
    check(counts == list(HOSPITALS.values()), f"heart: {counts} patients, expected {list(HOSPITALS.values())}")
    return arrays


def encoding(train: np.ndarray) -> Scaling:
    """Inputs (n, 22) from raw rows (n, 13): gaps filled and numbers standardised by what training rows say.

    A gap takes the training median, for flags and categories the most frequent value; a category becomes one input per
    value it may have.
    """
    fill, centre, scale = {}, {}, {}
    for name, values in zip(COLUMNS, train.T):
        known = values[~np.isnan(values)]
        if name in CATEGORIES or name in FLAGS:
            found, counts = np.unique(known, return_counts=True)
            fill[name] = float(found[np.argmax(counts)]) if len(found) else 0.0
        else:
            fill[name] = float(np.median(known)) if len(known) else 0.0
            filled = np.where(np.isnan(values), fill[name], values)
            centre[name], scale[name] = filled.mean(), filled.std() or 1.0

    def apply(raw: np.ndarray) -> np.ndarray:
        inputs = []
        for name, values in zip(COLUMNS, raw.T):
            filled = np.where(np.isnan(values), fill[name], values)
            if name in CATEGORIES:
                inputs += [filled == value for value in CATEGORIES[name]]
            else:
                inputs.append(filled if name in FLAGS else (filled - centre[name]) / scale[name])
        return np.column_stack(inputs).astype(np.float32)

    return apply


@dataset(
    name="heart",
    description="coronary disease from 13 findings, many of them missing in some hospitals",
    size="4 hospitals, 920 patients (123 to 303 each, 2 of them twice), 13 findings as 22 inputs, 2 classes, 39 kB",
    clients="hospitals",
    split="patients of a hospital at random by seed, stratified by class, 75/25; gaps filled from training patients",
    metric="AUROC (--headline auroc), since 93 % are ill in Switzerland and 36 % in Hungary; accuracy unless asked",
    licence="CC BY 4.0 (UCI)",
    citation="R. Detrano et al., International Application of a New Probability Algorithm for the Diagnosis of Coronary "
    "Artery Disease, American Journal of Cardiology 64, 1989. The set asks to name who collected it: A. Janosi (Budapest), "
    "W. Steinbrunn (Zurich), M. Pfisterer (Basel), R. Detrano (Long Beach and Cleveland)",
    sources=(
        Source(
            "upstream",
            tuple(
                File(
                    f"processed.{name}.data",
                    f"https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/processed.{name}.data",
                    HASHES[name],
                    rewritten=True,
                )
                for name in HOSPITALS
            ),
            read_upstream,
            ("heart",),
        ),
    ),
)
def heart(arrays: Arrays, recipe: Recipe) -> Federation:
    """One client per hospital; class 1 is any narrowing above 50 % (target 1 to 4 in the files).

    A cholesterol or a blood pressure of 0 is a gap. Two patients stand in their file twice; the copy is left out.
    """
    x, hospital = np.array(arrays["x"]), np.array(list(HOSPITALS))[arrays["hospital"]]
    for name in NEVER_ZERO:
        column = x[:, COLUMNS.index(name)]
        column[column == 0] = np.nan
    key = np.column_stack([arrays["hospital"], arrays["y"], np.nan_to_num(x, nan=-1e9)])
    rows = np.sort(np.unique(key, axis=0, return_index=True)[1])
    gaps = np.isnan(x[rows]).mean()
    notes = [f"heart: {gaps:.0%} of the findings are missing and filled from training patients (median, most frequent)"]
    if len(rows) < len(x):
        notes.append(f"heart: {len(x) - len(rows)} patients stand in the files twice; the copy is left out")
    return pooled(recipe, x[rows], arrays["y"][rows], ("healthy", "ill"), hospital[rows], encoding, notes=notes)
