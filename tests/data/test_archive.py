from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from fedkin.data.archive import open_archive
from fedkin.errors import FedkinError


def write_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


WRITERS = {"a.zip": write_zip, "a.tar.gz": write_tar}


@pytest.mark.parametrize("name", WRITERS)
def test_members_are_read_in_place(name: str, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path / name, {"top/a.txt": b"one", "top/b.txt": b"two"})
    with open_archive(path) as archive:
        assert archive.read("b.txt") == b"two"
        with pytest.raises(FedkinError, match=r"no c\.txt"):
            archive.read("c.txt")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("member", ["../evil.txt", "/etc/passwd", "a/../../evil", "..\\evil", "C:/evil"])
def test_members_that_point_outside_are_refused(name: str, member: str, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path / name, {"good.txt": b"good", member: b"evil"})
    with pytest.raises(FedkinError, match="points outside") as problem, open_archive(path):
        pass
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("name", WRITERS)
def test_a_truncated_archive_is_one_line(name: str, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path / name, {"a.bin": bytes(range(256)) * 4000})
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(FedkinError, match="truncated or damaged") as problem, open_archive(path) as archive:
        archive.read("a.bin")
    assert "\n" not in str(problem.value)


def test_a_link_in_a_tar_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("data.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(FedkinError, match="not a plain file"), open_archive(path) as archive:
        archive.read("data.bin")
