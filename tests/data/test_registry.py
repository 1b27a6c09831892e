from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.data import registry, store
from fedkin.data.federate import Recipe, pooled
from fedkin.data.registry import DataSet
from fedkin.data.source import Arrays, File, Source, check, check_counts, digest_like
from fedkin.errors import FedkinError

CONTENT = b"".join(f"{i},{i % 2}\n".encode() for i in range(60))
READS: list[Path] = []


def read(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    READS.append(files["toy.csv"])
    table = np.loadtxt(files["toy.csv"], delimiter=",")
    check(len(table) == 60, f"{len(table)} rows, 60 expected")
    return {"x": table[:, :1], "y": table[:, 1].astype(np.int64)}


def build(arrays: Arrays, recipe: Recipe, gain: float = 1.0) -> fedkin.Federation:
    return pooled(recipe, arrays["x"] * gain, arrays["y"], range(2))


def toy(hash: str | None = None) -> DataSet:
    files = (File("toy.csv", None, hash),)
    source = Source("upstream", files, read, ("toy",), notes=("a toy",))
    return DataSet("toy", "a toy", "60 rows", "none", "nobody", build, (source,))


@pytest.fixture
def folder(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the toy set, which is registered."""
    monkeypatch.setitem(registry._sets(), "toy", toy())
    (tmp_path / "data" / "toy").mkdir(parents=True)
    (tmp_path / "data" / "toy" / "toy.csv").write_bytes(CONTENT)
    READS.clear()
    return tmp_path / "data"


def test_files_are_found_by_directory_or_environment_and_read_once(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fedkin.data.load("toy", clients=3, directory=folder)
    assert first.notes == ("a toy",)
    assert fedkin.data.load("toy", clients=3, directory=folder / "toy").fingerprint() == first.fingerprint()
    monkeypatch.setenv("FEDKIN_DATA", str(folder))
    assert fedkin.data.load("toy", clients=3).fingerprint() == first.fingerprint()
    assert fedkin.data.info("toy")["at_hand"] == "in $FEDKIN_DATA (upstream)"
    monkeypatch.delenv("FEDKIN_DATA")
    assert fedkin.data.load("toy", clients=3).fingerprint() == first.fingerprint()  # from the cache alone
    assert fedkin.data.info("toy")["at_hand"] == "in the cache (upstream)"
    assert len(READS) == 1
    fedkin.data.prepare("toy", directory=folder, force=True)
    assert len(READS) == 2


def test_a_changed_file_is_read_again(folder: Path) -> None:
    before = fedkin.data.load("toy", clients=2, directory=folder)
    (folder / "toy" / "toy.csv").write_bytes(CONTENT.replace(b"59,1", b"77,1"))
    os.utime(folder / "toy" / "toy.csv", ns=(time.time_ns(), time.time_ns() + 10**9))
    assert fedkin.data.load("toy", clients=2, directory=folder).fingerprint() != before.fingerprint()


def test_the_set_s_own_options_are_kept_in_the_source(folder: Path) -> None:
    federation = fedkin.data.load("toy", clients=2, directory=folder, gain=2.0)
    assert federation.source["gain"] == 2.0
    assert Path(federation.source["directory"]).is_absolute()
    assert fedkin.data.load(**federation.source).fingerprint() == federation.fingerprint()


def test_missing_files_are_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FedkinError, match=r"holds no files of 'toy'; expected toy\.csv"):
        fedkin.data.load("toy", directory=tmp_path)
    with pytest.raises(FedkinError, match="is not a folder"):
        fedkin.data.load("toy", directory=tmp_path / "nowhere")
    with pytest.raises(FedkinError, match="no public download"):
        fedkin.data.load("toy")
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FedkinError, match=r"\$FEDKIN_DATA must name one"):
        fedkin.data.load("toy")


def test_a_local_file_with_the_wrong_checksum_is_refused(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "toy" / "toy.csv"
    right = digest_like(path, "sha256:")
    monkeypatch.setitem(registry._sets(), "toy", toy("sha256:" + "0" * 64))
    with pytest.raises(FedkinError, match="checksum mismatch"):
        fedkin.data.load("toy", directory=folder)
    assert not (cache / "toy").exists()
    monkeypatch.setitem(registry._sets(), "toy", toy(right))
    fedkin.data.load("toy", directory=folder)


def test_disk_full_leaves_nothing_behind(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = np.save, []

    def full(path: Path, array: np.ndarray, **options: object) -> None:
        calls.append(path)
        if len(calls) == 2:
            real(path, array[:1], **options)  # type: ignore[arg-type]
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, array, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(FedkinError, match="disk is full") as problem:
        fedkin.data.load("toy", directory=folder)
    assert "\n" not in str(problem.value)
    assert list((cache / "toy").iterdir()) == []
    monkeypatch.setattr(np, "save", real)
    fedkin.data.load("toy", directory=folder)


def test_a_failed_renewal_keeps_the_old_arrays(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fedkin.data.load("toy", clients=2, directory=folder).fingerprint()

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        with pytest.raises(FedkinError, match="disk is full"):
            fedkin.data.prepare("toy", directory=folder, force=True)
    assert fedkin.data.load("toy", clients=2).fingerprint() == before


def test_an_unwritable_cache_is_one_line(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FEDKIN_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(FedkinError, match="set FEDKIN_CACHE to another folder"):
        fedkin.data.load("toy", directory=folder)


def test_a_damaged_cache_says_how_to_mend_it(folder: Path, cache: Path) -> None:
    fedkin.data.load("toy", directory=folder)
    (cache / "toy" / "upstream" / "x.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(FedkinError, match="fedkin data prepare toy --force"):
        fedkin.data.load("toy")


def test_no_pickle_is_ever_loaded(folder: Path, cache: Path) -> None:
    fedkin.data.load("toy", directory=folder)
    np.save(cache / "toy" / "upstream" / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(FedkinError, match="damaged"):
        fedkin.data.load("toy")


def test_the_cache_holds_plain_arrays_and_json(folder: Path, cache: Path) -> None:
    prepared = fedkin.data.prepare("toy", directory=folder)
    assert prepared == cache / "toy" / "upstream"
    assert sorted(path.name for path in prepared.iterdir()) == ["meta.json", "x.npy", "y.npy"]
    assert json.loads((prepared / "meta.json").read_text())["arrays"] == ["x", "y"]
    assert store.read_meta(prepared / "nowhere") is None


def test_the_catalogue_names_every_set_with_licence_and_citation(cache: Path) -> None:
    entries = {entry["name"]: entry for entry in fedkin.data.catalogue()}
    assert set(entries) >= {
        *("digits", "mnist", "fashion-mnist", "cifar10", "svhn", "har", "harbox", "vehicle", "metr-la", "shakespeare"),
        *("clusters", "mixture"),
    }
    for entry in entries.values():
        assert all(entry[key] for key in ("description", "size", "clients", "licence", "citation", "at_hand"))
    assert entries["har"]["clients"] == "subjects"
    assert entries["digits"]["at_hand"] == "embedded"
    assert fedkin.data.prepare("digits") is None


def test_info_is_json_and_names_files_hashes_and_options(cache: Path) -> None:
    for entry in fedkin.data.catalogue():
        json.dumps(fedkin.data.info(entry["name"]))
    about = fedkin.data.info("mnist")
    assert about["options"]["standardise"] == "unit"
    assert about["sources"][0]["files"][0]["hash"].startswith("sha256:")
    partial = fedkin.data.info("metr-la")["sources"][-1]["notes"]
    assert "one week of 17" in partial[0]
    with pytest.raises(FedkinError, match="did you mean 'mnist'"):
        fedkin.data.info("mnst")


@pytest.mark.parametrize("name", ["school", "heart", "wisdm", "parkinsons", "vehicle", "fmi", "fmi-hourly"])
def test_natural_sets_say_where_they_come_from(name: str, cache: Path) -> None:
    about = fedkin.data.info(name)
    assert all(about[key] for key in ("clients", "split", "metric", "licence", "citation"))
    files = [file for source in about["sources"] for file in source["files"]]
    assert any(file["url"] and file["hash"].startswith("sha256:") for file in files)


def test_content_checks_say_what_is_wrong() -> None:
    with pytest.raises(FedkinError, match=r"toy: samples per class are \[1, 2\], expected \[2, 1\]"):
        check_counts("toy", np.array([0, 1, 1]), (2, 1))
