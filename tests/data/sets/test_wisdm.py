from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.data.federate import Recipe
from fedkin.data.sets import wisdm
from fedkin.errors import FedkinError

HEADER = '@relation person_activity_recognition\n@attribute "UNIQUE_ID" numeric\n\n@data\n'


def made(people: int = 3, windows: int = 8, quote: str = "") -> str:
    """Lines of the same form: id, person, 43 features with some "?", activity; bouts in turn."""
    rng = np.random.default_rng(0)
    lines = []
    for person in range(1, people + 1):
        for activity in wisdm.ACTIVITIES[: 3 + person]:
            for _ in range(windows):
                features = [f"{value:.2f}" for value in rng.normal(size=43)]
                features[34] = "?" if rng.random() < 0.2 else features[34]
                lines.append(",".join([str(len(lines) + 1), str(person), *features, f"{quote}{activity}{quote}"]))
    return "\n".join(lines) + "\n"


def test_the_header_and_quotes_of_the_original_may_be_there_or_not() -> None:
    plain = wisdm.parse_arff(made().encode(), "plain")
    full = wisdm.parse_arff((HEADER + made(quote='"')).encode(), "full")
    for key, value in plain.items():
        assert np.array_equal(value, full[key], equal_nan=value.dtype.kind == "f")
    assert plain["x"].shape == ((4 + 5 + 6) * 8, 43)
    assert np.isnan(plain["x"][:, 34]).any()


def test_the_last_windows_of_each_activity_test() -> None:
    arrays = wisdm.parse_arff(made().encode(), "made")
    arrays["x"][:, 0] = np.arange(len(arrays["y"]))  # where a window stands in the file
    federation = wisdm.wisdm(arrays, Recipe())
    assert federation.names == ("person-01", "person-02", "person-03")
    assert federation.label_counts("train")[1].tolist() == [6] * 5 + [0]
    assert federation.label_counts("test")[1].tolist() == [2] * 5 + [0]
    for (past, before), (later, after) in zip(federation.train, federation.test):
        for code in np.unique(after):
            assert past[before == code, 0].max() < later[after == code, 0].min()
    assert np.isfinite(federation.test.x).all()


def test_a_window_that_stands_there_twice_counts_once() -> None:
    arrays = wisdm.parse_arff((made() + made().splitlines()[0]).encode(), "made")
    federation = wisdm.wisdm(arrays, Recipe())
    assert len(federation.train.x) + len(federation.test.x) == len(arrays["y"]) - 1
    assert federation.notes == (wisdm.REPEATED,)


def test_wrong_files_are_refused(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(FedkinError, match="46 expected"):
        wisdm.parse_arff(b"1,2,3\n", "short")
    with pytest.raises(FedkinError, match="unknown activity"):
        wisdm.parse_arff(made().replace("Jogging", "Swimming").encode(), "made")
    (tmp_path / wisdm.TABLE).write_text(made())
    with pytest.raises(FedkinError, match="samples per class"):
        fedkin.data.load("wisdm", directory=tmp_path)
    (tmp_path / wisdm.TABLE).rename(tmp_path / "plain")
    (tmp_path / f"{wisdm.TABLE}.gz").write_bytes(gzip.compress(made().encode()))
    with pytest.raises(FedkinError, match="checksum mismatch"):
        fedkin.data.load("wisdm", directory=tmp_path)


def test_the_archive_of_the_laboratory(tmp_path: Path) -> None:
    text = (HEADER + made()).encode()
    with tarfile.open(tmp_path / "WISDM_ar_latest.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo(f"WISDM_ar_v1.1/{wisdm.TABLE}")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    with pytest.raises(FedkinError, match="samples per class are \\[24, 24, 24"):
        wisdm.from_archive({"a": tmp_path / "WISDM_ar_latest.tar.gz"})


@pytest.mark.real_data
def test_the_real_file(real_data: Path) -> None:
    federation = fedkin.data.load("wisdm")
    sizes = federation.train.sizes + federation.test.sizes
    assert (len(federation), sizes.sum(), len(federation.task.classes)) == (36, 5418 - 61, 6)
    counts = federation.label_counts("train") + federation.label_counts("test")
    assert counts.sum(axis=0).tolist() == [2081 - 29, 1625 - 32, 632, 528, 306, 246]
    for (x, _), (z, _) in zip(federation.train, federation.test):
        assert not {row.tobytes() for row in x} & {row.tobytes() for row in z}
    assert fedkin.data.load("wisdm").fingerprint() == federation.fingerprint()
