from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedkin.data.sets import har
from fedkin.errors import FedkinError


def text(table: np.ndarray) -> str:
    """Upstream's number format: two blanks or a blank and a sign before each number in scientific notation."""
    return "\n".join("".join(f" {value: .7e}" for value in row) for row in table) + "\n"


def upstream(rng: np.random.Generator, train: int, test: int) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    members, arrays = {}, {}
    for part, n in (("train", train), ("test", test)):
        features, labels, subjects = rng.normal(size=(n, 561)), rng.integers(1, 7, n), rng.integers(1, 31, n)
        signals = rng.normal(size=(n, 9, 128))
        members[f"UCI HAR Dataset/{part}/X_{part}.txt"] = text(features)
        members[f"UCI HAR Dataset/{part}/y_{part}.txt"] = "".join(f"{v}\n" for v in labels)
        members[f"UCI HAR Dataset/{part}/subject_{part}.txt"] = "".join(f"{v}\n" for v in subjects)
        for i, name in enumerate(har.SIGNALS):
            members[f"UCI HAR Dataset/{part}/Inertial Signals/{name}_{part}.txt"] = text(signals[:, i])
        arrays[part] = {"features": features, "y": labels - 1, "subject": subjects, "inertial": signals}
    return members, {key: np.concatenate([arrays["train"][key], arrays["test"][key]]) for key in arrays["train"]}


@pytest.mark.parametrize("nested", [False, True])
def test_the_upstream_archive_is_parsed(tmp_path: Path, nested: bool) -> None:
    members, expected = upstream(np.random.default_rng(0), 6, 3)
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    path = tmp_path / "har.zip"
    if nested:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("UCI HAR Dataset.names", "text")
            archive.writestr("UCI HAR Dataset.zip", inner.getvalue())
    else:
        path.write_bytes(inner.getvalue())
    arrays = har.parse_archive(path)
    for key, value in expected.items():
        assert np.allclose(arrays[key], value, atol=1e-6)
    with pytest.raises(FedkinError, match="HAR features have shape"):
        har.read_upstream({"a": path})
