from __future__ import annotations

import string
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedkin.data.federate import Recipe
from fedkin.data.plays import as_arrays
from fedkin.data.sets import shakespeare
from fedkin.errors import FedkinError

ROLES = {
    "a: HAMLET": [f"to be or not to be, number {i:03d}" for i in range(100)],
    "a: GHOST": [f"mark me, I say to thee {i:03d}" for i in range(100)],
    "a: PAGE": ["Ay."],
}


def decode(codes: np.ndarray) -> str:
    return "".join(string.printable[c] for c in codes)


def test_windows_predict_the_next_character() -> None:
    x, y = shakespeare.text_windows(["abcde", "fgh"], 4, 1)
    assert [decode(row) for row in x] == ["abcd", "bcde", "cde ", "de f", "e fg"]
    assert decode(y) == "e fgh"
    assert shakespeare.text_windows(["abc"], 4, 1)[0].shape == (0, 4)
    assert len(shakespeare.text_windows(["abcdefghij"], 4, 3)[0]) == 2


def test_roles_are_split_by_lines_in_order() -> None:
    federation = shakespeare.shakespeare(
        as_arrays(ROLES), Recipe(test_fraction=0.2, validation_fraction=0.1), stride=1, minimum=500
    )
    assert federation.names == ("a: GHOST", "a: HAMLET")
    assert federation.task.input_shape == (80,)
    assert len(federation.task.classes) == 100
    hamlet = {part: "".join(decode(row) for row in getattr(federation, part)[1][0]) for part in ("train", "test")}
    assert hamlet["train"].endswith("number 06")  # the last 9 is the last target
    assert "number 070" not in hamlet["train"]
    assert "number 080" in hamlet["test"]
    assert "number 079" not in hamlet["test"]
    assert federation.notes == ()


def test_stride_is_noted_and_roles_can_be_drawn() -> None:
    federation = shakespeare.shakespeare(as_arrays(ROLES), Recipe(clients=1, test_fraction=0.2), minimum=500)
    assert len(federation) == 1
    assert "every 20th window" in federation.notes[0]


def test_bad_arguments() -> None:
    with pytest.raises(FedkinError, match="lower `minimum`"):
        shakespeare.shakespeare(as_arrays(ROLES), Recipe(), minimum=10**6)
    with pytest.raises(FedkinError, match="one client per role"):
        shakespeare.shakespeare(as_arrays(ROLES), Recipe(partition="iid"))
    with pytest.raises(FedkinError, match="at least 1"):
        shakespeare.shakespeare(as_arrays(ROLES), Recipe(), stride=0)


def test_another_text_than_leaf_s_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "1994-01-100.zip", "w") as archive:
        archive.writestr("100.txt", "Not the plays.")
    with pytest.raises(FedkinError, match="0 plays found"):
        shakespeare.read_leaf({"a": tmp_path / "1994-01-100.zip"})
