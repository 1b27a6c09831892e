from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.data.federate import Recipe
from fedkin.data.sets import parkinsons
from fedkin.errors import FedkinError

VOICE = (
    "Jitter(%),Jitter(Abs),Jitter:RAP,Jitter:PPQ5,Jitter:DDP,Shimmer,Shimmer(dB),Shimmer:APQ3,Shimmer:APQ5,"
    "Shimmer:APQ11,Shimmer:DDA,NHR,HNR,RPDE,DFA,PPE"
)


def made(path: Path, patients: int = 3, sessions: int = 10) -> None:
    """A table of the same form: six recordings a session, a session a week, one run of sessions after the other."""
    rng = np.random.default_rng(0)
    lines = [f"subject#,age,sex,test_time,motor_UPDRS,total_UPDRS,{VOICE}"]
    for patient in range(1, patients + 1):
        for recording in range(6):
            for session in range(sessions):
                day = 7 * session + 0.001 * recording
                head = f"{patient},{50 + patient},{patient % 2},{day:.4f},{10 + day / 7:.3f},{20 + day / 7:.3f}"
                lines.append(head + "," + ",".join(f"{v:.5f}" for v in rng.random(16) + 0.01))
    path.write_text("\n".join(lines) + "\n")


def test_sessions_after_the_cut_test_and_none_is_parted(tmp_path: Path) -> None:
    made(tmp_path / "parkinsons_updrs.data")
    arrays = parkinsons.read_recordings({"a": tmp_path / "parkinsons_updrs.data"})
    federation = parkinsons.parkinsons(arrays, Recipe())
    assert federation.names == ("patient-01", "patient-02", "patient-03")
    assert federation.train.sizes.tolist() == [7 * 6] * 3  # 75 % of ten sessions falls into the eighth
    assert federation.test.sizes.tolist() == [3 * 6] * 3
    mean, std = federation.truth["mean"], federation.truth["std"]
    for (_, before), (_, after) in zip(federation.train, federation.test):  # the score rises by one a week
        assert (before * std + mean).max() == pytest.approx(16, abs=0.01)
        assert (after * std + mean).min() == pytest.approx(17, abs=0.01)
    total = parkinsons.parkinsons(arrays, Recipe(), target="total")
    assert total.truth["mean"] == pytest.approx(mean + 10)


def test_long_tails_are_taken_as_logarithms(tmp_path: Path) -> None:
    path = tmp_path / "parkinsons_updrs.data"
    made(path)
    first = [float(v) for v in path.read_text().splitlines()[1].split(",")]
    row = parkinsons.read_recordings({"a": path})["x"][0]
    assert np.allclose(row, [*first[1:3], *np.log(first[6:18]), *first[18:]])


def test_what_does_not_belong_is_refused(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "parkinsons_updrs.data"
    made(path)
    arrays = parkinsons.read_recordings({"a": path})
    with pytest.raises(FedkinError, match="target of parkinsons"):
        parkinsons.parkinsons(arrays, Recipe(), target="speech")
    with pytest.raises(FedkinError, match="a client of this set is a patient"):
        parkinsons.parkinsons(arrays, replace(Recipe(), partition="iid"))
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "parkinsons_updrs.data.gz").write_bytes(gzip.compress(path.read_bytes()))
    for folder in (tmp_path, packed):
        with pytest.raises(FedkinError, match="checksum mismatch"):
            fedkin.data.load("parkinsons", directory=folder)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(FedkinError, match="columns"):
        parkinsons.read_recordings({"a": path})


@pytest.mark.real_data
def test_the_real_file(real_data: Path) -> None:
    federation = fedkin.data.load("parkinsons")
    sizes = federation.train.sizes + federation.test.sizes
    assert (len(federation), sizes.sum(), sizes.min(), sizes.max()) == (42, 5875, 101, 168)
    assert 0.25 <= federation.test.sizes.sum() / sizes.sum() < 0.28
    assert fedkin.data.load("parkinsons").fingerprint() == federation.fingerprint()


@pytest.mark.real_data
def test_no_test_recording_of_the_real_file_is_older_than_a_training_one(real_data: Path) -> None:
    arrays = dict(parkinsons.read_recordings({"a": real_data / "parkinsons/parkinsons_updrs.data.gz"}))
    arrays["motor"] = arrays["day"]  # the day as the target shows when each recording was made
    federation = parkinsons.parkinsons(arrays, Recipe())
    mean, std = federation.truth["mean"], federation.truth["std"]
    for (_, before), (_, after) in zip(federation.train, federation.test):
        assert (after * std + mean).min() - (before * std + mean).max() > parkinsons.APART
