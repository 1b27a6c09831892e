"""Whole files or none; what killed writers leave behind is removed; every limit of the system is told as what it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedkin import files
from fedkin.errors import FedkinError
from fedkin.graphs import ClientGraph


def test_a_graph_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "graph.npz"
    old = ClientGraph(np.ones((3, 3)) - np.eye(3))
    old.save(path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    for ending in ("npz", "csv", "parquet"):
        old.save(path.with_suffix(f".{ending}"))
        monkeypatch.setattr(os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            ClientGraph(np.zeros((2, 2))).save(path.with_suffix(f".{ending}"))
        monkeypatch.undo()
        assert len(ClientGraph.load(path.with_suffix(f".{ending}"))) == 3
    assert not list(tmp_path.glob(".*"))


def test_leftovers_of_dead_writers_are_removed_and_those_of_living_ones_kept(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead, living = tmp_path / f".a.json.{gone.pid}.part", tmp_path / f".a.json.{os.getppid()}.part"
    for path in (dead, living):
        path.write_text("half")
    files.write_json(tmp_path / "a.json", {})
    assert not dead.exists()
    assert living.exists()
    dead.write_text("half")
    files.clean_up(tmp_path, owned=False)
    assert not dead.exists()
    assert living.exists()
    files.clean_up(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"a.json"}


LIMITED = """
import resource, sys
from pathlib import Path
from fedkin.files import write_atomic
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
write_atomic(Path(sys.argv[1]), bytes(10_000))
"""


def test_a_limit_on_file_sizes_is_told_as_what_it_is(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED, tmp_path / "a"], capture_output=True, text=True)
    assert "FedkinError: the limit on file sizes is reached (ulimit -f)" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_pipe_is_refused_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(FedkinError, match="no regular file"):
        files.read_json(tmp_path / "a.json")
    (tmp_path / "a.safetensors").write_bytes(b"x")
    with pytest.raises(FedkinError, match="no regular file"):
        files.read_tensors(tmp_path / "a.safetensors")


KILLED_IN_A_FOLDER = """
import os, sys
from pathlib import Path
from fedkin.files import whole_folder
with whole_folder(Path(sys.argv[1])) as fresh:
    (fresh / "new").write_text("half")
    os._exit(137)
"""


def test_a_folder_is_filled_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    path.mkdir()
    (path / "old").write_text("old")
    subprocess.run([sys.executable, "-c", KILLED_IN_A_FOLDER, path], check=False)
    assert [file.name for file in path.iterdir()] == ["old"]
    assert len(list(tmp_path.iterdir())) == 2  # what the killed process left
    with pytest.raises(FileNotFoundError), files.whole_folder(path) as fresh:
        (fresh / "nowhere" / "new").write_text("new")
    assert [file.name for file in path.iterdir()] == ["old"]
    with files.whole_folder(path) as fresh:
        (fresh / "new").write_text("new")
    assert [file.name for file in path.iterdir()] == ["new"]
    assert [file.name for file in tmp_path.iterdir()] == ["cache"]


KILLED_AT_A_RENAME = """
import os, sys
from pathlib import Path
from fedkin.files import whole_folder, write_tensors
import torch
path, last, rename = Path(sys.argv[1]), int(sys.argv[2]), os.replace
def replace(*names):
    global last
    last -= 1
    os._exit(137) if last == 0 else rename(*names)
os.replace = replace
if path.suffix:
    write_tensors(path, {"rows": torch.ones(3)}, {})
else:
    with whole_folder(path) as fresh:
        (fresh / "new").write_text("new")
"""


def killed_at_a_rename(path: Path, number: int) -> None:
    told = [sys.executable, "-c", KILLED_AT_A_RENAME, str(path), str(number)]
    assert subprocess.run(told, check=False).returncode == 137


@pytest.mark.parametrize("number", [1, 2])
def test_a_folder_is_there_after_a_kill_between_the_renames(number: int, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    path.mkdir()
    (path / "old").write_text("old")
    killed_at_a_rename(path, number)
    assert path.exists() == (number == 1)
    with pytest.raises(ZeroDivisionError), files.whole_folder(path):
        _ = 1 / 0
    assert [file.name for file in path.iterdir()] == ["old"]


@pytest.mark.parametrize(("number", "found"), [(1, 0.0), (2, 1.0)])
def test_tensors_fit_their_json_after_a_kill_between_the_renames(number: int, found: float, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    files.write_tensors(path, {"rows": torch.zeros(3)}, {})
    killed_at_a_rename(path, number)
    assert torch.equal(files.read_tensors(path)[0]["rows"], torch.full((3,), found))
    files.write_tensors(path, {"rows": torch.full((3,), 2.0)}, {})
    assert torch.equal(files.read_tensors(path)[0]["rows"], torch.full((3,), 2.0))
    assert {file.name for file in tmp_path.iterdir()} == {"a.json", "a.safetensors"}


PLAIN = re.compile(r"\.write_(text|bytes)\(|\bopen\([^)]*[\"'][wax]b?\+?[\"']|np\.savez?|mkstemp|mkdtemp")
SCRATCH = {"run/rows_file.py", "data/download.py"}
"""A memory-mapped file that is written over in place, and a download that goes on where it broke off."""


def test_everything_else_is_written_by_the_one_writer() -> None:
    root = Path(files.__file__).parents[1]
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in root.rglob("*.py")
        if "files" not in path.relative_to(root).parts and path.relative_to(root).as_posix() not in SCRATCH
        for line in path.read_text().splitlines()
        if PLAIN.search(line) and not re.search(r"np\.save\(file,", line)
    ]
    assert found == []
