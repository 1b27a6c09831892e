"""Downloads from a real HTTP server on the loopback interface."""

from __future__ import annotations

import errno
import hashlib
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.data import download, registry
from fedkin.data.federate import Recipe, pooled
from fedkin.data.registry import DataSet
from fedkin.data.source import Arrays, File, Source, check
from fedkin.errors import FedkinError

CONTENT = np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8).tobytes()
HASH = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT under any path; `cut` breaks the connection after so many bytes, `gone` answers 404."""

    daemon_threads = True
    cut: int | None = None
    gone: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.requests.append((self.path, asked))
        if self.path.startswith(self.server.gone):
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start:] if self.server.cut is None else CONTENT[start : start + self.server.cut])

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def read(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    values = np.fromfile(files["toy.bin"], dtype=np.uint8)
    check(len(values) == len(CONTENT), f"{len(values)} bytes in toy.bin")
    return {"x": values[:100, None], "y": np.arange(100) % 2}


def build(arrays: Arrays, recipe: Recipe) -> fedkin.Federation:
    return pooled(recipe, arrays["x"], arrays["y"], range(2))


def register(monkeypatch: pytest.MonkeyPatch, url: str, hash: str | None = HASH) -> None:
    source = Source("upstream", (File("toy.bin", url, hash),), read)
    entry = DataSet("toy", "a toy", "100 rows", "none", "nobody", build, (source,))
    monkeypatch.setitem(registry._sets(), "toy", entry)


def test_download_once_then_use_the_cache(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, f"{server.url}/toy.bin")
    first = fedkin.data.load("toy", clients=2)
    assert fedkin.data.load("toy", clients=2).fingerprint() == first.fingerprint()
    assert server.requests == [("/toy.bin", None)]
    assert not (cache / ".downloads" / "toy").exists()


def test_a_broken_download_is_resumed(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, f"{server.url}/toy.bin")
    server.cut = 100_000
    with pytest.raises(FedkinError, match="connection broke after 100000 of 300000 bytes") as problem:
        fedkin.data.load("toy")
    assert "\n" not in str(problem.value)
    assert not (cache / "toy").exists()
    server.cut = None
    fedkin.data.load("toy")
    assert server.requests == [("/toy.bin", None), ("/toy.bin", "bytes=100000-")]


def test_without_a_hash_nothing_is_resumed(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, f"{server.url}/toy.bin", hash=None)
    server.cut = 1000
    with pytest.raises(FedkinError, match="connection broke"):
        fedkin.data.load("toy")
    server.cut = None
    fedkin.data.load("toy")
    assert server.requests == [("/toy.bin", None), ("/toy.bin", None)]


def test_a_part_that_is_too_long_is_thrown_away(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, f"{server.url}/toy.bin")
    part = cache / ".downloads" / "toy" / "toy.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 400_000)
    fedkin.data.load("toy")
    assert [asked for _, asked in server.requests] == ["bytes=400000-", None]


def test_checksum_mismatch_leaves_nothing(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, f"{server.url}/toy.bin", "sha256:" + "0" * 64)
    with pytest.raises(FedkinError, match="checksum mismatch") as problem:
        fedkin.data.load("toy")
    assert "\n" not in str(problem.value)
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_the_mirror_is_asked_first(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, f"{server.url}/upstream/toy.bin")
    monkeypatch.setenv("FEDKIN_MIRROR", f"{server.url}/mirror/")
    fedkin.data.load("toy")
    assert server.requests == [("/mirror/toy/toy.bin", None)]


def test_upstream_helps_where_the_mirror_has_no_file(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, f"{server.url}/upstream/toy.bin")
    monkeypatch.setenv("FEDKIN_MIRROR", f"{server.url}/mirror")
    server.gone = ("/mirror",)
    fedkin.data.load("toy")
    assert [path for path, _ in server.requests] == ["/mirror/toy/toy.bin", "/upstream/toy.bin"]


def test_a_missing_file_is_one_line(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, f"{server.url}/toy.bin")
    server.gone = ("/",)
    with pytest.raises(FedkinError, match=r"cannot download toy\.bin .*Not Found.*FEDKIN_DATA") as problem:
        fedkin.data.load("toy")
    assert "\n" not in str(problem.value)


def test_no_network_is_one_line(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server() as closed:
        url = closed.url
    register(monkeypatch, f"{url}/toy.bin")
    with pytest.raises(FedkinError, match=r"cannot download.*refused.*check the network") as problem:
        fedkin.data.load("toy")
    assert "\n" not in str(problem.value)
    assert not (cache / "toy").exists()


def test_a_bad_file_that_has_no_hash_is_removed(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, f"{server.url}/toy.bin", hash=None)

    def refuse(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
        raise FedkinError("not the right file")

    entry = registry._sets()["toy"]
    source = Source("upstream", entry.sources[0].files, refuse)
    monkeypatch.setitem(registry._sets(), "toy", DataSet("toy", "", "", "", "", build, (source,)))
    with pytest.raises(FedkinError, match="not the right file"):
        fedkin.data.load("toy")
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_disk_full_while_downloading(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, f"{server.url}/toy.bin")

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(download.shutil, "move", full)
    with pytest.raises(FedkinError, match="disk full"):
        fedkin.data.load("toy")
    assert not (cache / "toy").exists()


def test_a_folder_can_be_a_mirror(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "http://127.0.0.1:9/toy.bin")
    (tmp_path / "mirror" / "toy").mkdir(parents=True)
    (tmp_path / "mirror" / "toy" / "toy.bin").write_bytes(CONTENT)
    monkeypatch.setenv("FEDKIN_MIRROR", (tmp_path / "mirror").as_uri())
    fedkin.data.load("toy")
    monkeypatch.setenv("FEDKIN_MIRROR", "mirror.example.org")
    with pytest.raises(FedkinError, match="must begin with http"):
        fedkin.data.prepare("toy", force=True)
