from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.data.federate import Recipe
from fedkin.data.sets import heart
from fedkin.errors import FedkinError


def line(rng: np.random.Generator, gap: str) -> str:
    """A patient as UCI writes it, with cholesterol 0 or a gap now and then."""
    values = [
        *(str(rng.integers(30, 75)), str(rng.integers(2)), str(rng.integers(1, 5)), str(rng.integers(95, 180))),
        *(rng.choice(["0", gap, "233.0", "261"]), rng.choice(["0", "1", gap]), str(rng.integers(3))),
        *(str(rng.integers(90, 190)), str(rng.integers(2)), f"{rng.random():.1f}", rng.choice(["1", "2", gap])),
        *(rng.choice([gap, "0"]), rng.choice(["3", "7", gap]), str(rng.integers(5))),
    ]
    return ",".join(values)


def made(folder: Path, per_hospital: int = 24) -> dict[str, Path]:
    """Four tables of the same form, two with a line of names and empty gaps, two as UCI has them."""
    rng = np.random.default_rng(3)
    files = {}
    for k, name in enumerate(heart.HOSPITALS):
        gap = "" if k % 2 else "?"
        lines = [",".join(heart.COLUMNS)] if k % 2 else []
        lines += [line(rng, gap) for _ in range(per_hospital)]
        files[f"processed.{name}.data"] = folder / f"processed.{name}.data"
        files[f"processed.{name}.data"].write_text("\n".join(lines) + "\n")
    return files


def test_four_tables_become_four_hospitals(tmp_path: Path) -> None:
    arrays = heart.read_hospitals(made(tmp_path))
    federation = heart.heart(arrays, Recipe())
    assert federation.names == tuple(heart.HOSPITALS)
    assert (federation.train.sizes + federation.test.sizes).tolist() == [24] * 4
    assert federation.task.input_shape == (22,)
    ill = federation.label_counts("train")[:, 1] + federation.label_counts("test")[:, 1]
    assert ill.tolist() == [int(arrays["y"][arrays["hospital"] == k].sum()) for k in range(4)]
    assert "missing and filled from training patients" in federation.notes[0]


def test_gaps_and_scales_come_from_training_patients_alone() -> None:
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.integers(1, 4, 40) * 1.0 for _ in heart.COLUMNS[:-1]])
    x[::5, heart.COLUMNS.index("chol")] = np.nan
    scale = heart.encoding(x[:30])
    test = x[30:].copy()
    test[:, heart.COLUMNS.index("thalach")] += 1000
    chol = 1 + 1 + 4 + 1  # age, sex, four kinds of chest pain, blood pressure
    known = x[:30, heart.COLUMNS.index("chol")]
    filled = np.where(np.isnan(known), np.nanmedian(known), known)
    assert scale(test)[0, chol] == pytest.approx((np.nanmedian(known) - filled.mean()) / filled.std(), abs=1e-5)
    assert np.array_equal(scale(x[:30]), heart.encoding(x[:30])(x[:30]))
    assert np.isfinite(scale(test)).all()


def test_a_patient_who_stands_there_twice_counts_once(tmp_path: Path) -> None:
    files = made(tmp_path)
    path = files["processed.va.data"]
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")
    federation = heart.heart(heart.read_hospitals(files), Recipe())
    assert (federation.train.sizes + federation.test.sizes).tolist() == [24] * 4
    assert "1 patients stand in the files twice" in federation.notes[1]


def test_wrong_files_are_refused(tmp_path: Path, cache: Path) -> None:
    files = made(tmp_path)
    with pytest.raises(FedkinError, match="expected \\[303, 294, 123, 200\\]"):
        fedkin.data.load("heart", directory=tmp_path)
    files["processed.va.data"].write_text("a,b,c\n1,2,x\n")
    with pytest.raises(FedkinError, match=r"processed.va.data is not a table"):
        heart.read_hospitals(files)


@pytest.mark.real_data
def test_the_real_files(real_data: Path) -> None:
    federation = fedkin.data.load("heart")
    sizes = federation.train.sizes + federation.test.sizes
    assert dict(zip(federation.names, sizes.tolist())) == {**heart.HOSPITALS, "hungarian": 293, "va": 199}
    ill = federation.label_counts("train") + federation.label_counts("test")
    assert ill[2].tolist() == [8, 115]
    for (x, _), (z, _) in zip(federation.train, federation.test):
        assert not {row.tobytes() for row in x} & {row.tobytes() for row in z}
    assert fedkin.data.load("heart").fingerprint() == federation.fingerprint()
    assert (federation.label_counts("test") > 0).all()  # stratified: both classes in every hospital


@pytest.mark.real_data
def test_the_hashes_are_those_of_ucis_files(real_data: Path) -> None:
    for name in heart.HOSPITALS:
        path = next(path for path in real_data.rglob(f"processed.{name}.data"))
        lines = [entry for entry in path.read_text().splitlines() if entry and not entry.startswith("age")]
        as_published = "".join(",".join(cell or "?" for cell in entry.split(",")) + "\n" for entry in lines)
        assert heart.HASHES[name] == "sha256:" + hashlib.sha256(as_published.encode()).hexdigest()


def test_a_download_of_another_version_is_refused(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mirror" / "heart").mkdir(parents=True)
    made(tmp_path / "mirror" / "heart")
    monkeypatch.setenv("FEDKIN_MIRROR", (tmp_path / "mirror").as_uri())
    with pytest.raises(FedkinError, match="checksum mismatch"):
        fedkin.data.prepare("heart")
