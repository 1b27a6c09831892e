"""School: exam scores of pupils of the Inner London Education Authority, 1985 to 1987; a client is a school."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedkin.data.federate import Recipe
from fedkin.data.matlab import read_matlab
from fedkin.data.natural import at_random, clients_of, regression
from fedkin.data.registry import dataset
from fedkin.data.source import Arrays, File, Source, check
from fedkin.federation import Federation


def read_cells(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """MALSAR's layout: cells X and Y, one per school: X{k} (pupils, 28), the last column all ones, Y{k} (pupils, 1)."""
    path = next(iter(files.values()))
    cells = list(zip(*(cell.ravel() for cell in read_matlab(path, "X", "Y"))))
    for k, (x, y) in enumerate(cells):
        check(x.ndim == 2 and x.shape[1] == 28 and len(x) == y.size, f"{path}: cell {k + 1} has shape {x.shape}")
        check((x[:, -1] == 1).all(), f"{path}: the last column of cell {k + 1} is not all ones")
    return {
        "x": np.concatenate([x[:, :-1] for x, _ in cells]).astype(np.float32),
        "y": np.concatenate([y.ravel() for _, y in cells]).astype(np.float32),
        "school": np.repeat(np.arange(1, len(cells) + 1), [len(x) for x, _ in cells]).astype(np.int16),
    }


@dataset(
    name="school",
    description="exam scores of London pupils from their year, intake group, gender, background and kind of school",
    size="139 schools, 15,362 pupils (22 to 251 each), 27 features, exam score 1 to 70, 45 kB",
    clients="schools",
    split="pupils of a school at random by seed, 75/25",
    metric="MSE of z-scored exam scores (R² is about 1 − MSE)",
    licence="none stated for the data; MALSAR is GPL",
    citation="H. Goldstein, Multilevel Modelling of Survey Data, The Statistician 40(2), 1991; as in MALSAR, "
    "J. Zhou, J. Chen, J. Ye, Arizona State University, 2011",
    sources=(
        Source(
            "malsar",
            (
                File(
                    "school.mat",
                    "https://raw.githubusercontent.com/jiayuzhou/MALSAR/master/data/school.mat",
                    "sha256:57fb3238fdd03a9aa17276e2ce18d9bbb5d128c3261e794fe6233b58b6909068",
                ),
            ),
            read_cells,
            ("school",),
        ),
    ),
)
def school(arrays: Arrays, recipe: Recipe) -> Federation:
    """One client per school; inputs (27,) standardised, exam scores z-scored over all training pupils.

    The column of ones that the file ends with is left out: models have a bias of their own.
    """
    groups = clients_of(recipe, np.array([f"school-{number:03d}" for number in arrays["school"]]), "school")
    parts = {name: at_random(recipe, name, own) for name, own in groups.items()}
    return regression(recipe, parts, arrays["x"], arrays["y"], "exam score")
