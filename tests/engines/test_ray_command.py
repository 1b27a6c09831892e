"""Ray on the command line, in processes of its own: a Ray that `fedkin run` starts and ends, and a cluster it joins."""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedkin
from fedkin import algorithms

from . import processes

pytest.importorskip("ray", reason="pip install 'fedkin[ray]'")


RUN = "run --data digits --clients 4 --model mlr --rounds 2 --set lr=0.1 --dtype float64 --out"


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A short path: Ray puts sockets there, whose names may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


BUSY, TRIES = ("could not be started here", "timed out during startup"), 5
"""What Ray says on a machine so busy that its own processes take more than 30 seconds to start: not what is tested."""


def busy(text: str) -> bool:
    return any(words in text for words in BUSY)


def fedkin_run(folder: Path, out: str, *options: str, **env: str) -> Any:
    for _ in range(TRIES):
        done = processes.run("fedkin", *RUN.split(), out, *options, cwd=folder, timeout=1200, **env)
        if done.returncode == 0 or not busy(done.stdout + done.stderr):
            break
    assert done.returncode == 0, done.stdout + done.stderr
    return fedkin.load(folder / out)


def start_head(port: int, folder: Path, **env: str) -> Any:
    """A cluster of one machine, as an operator starts it."""
    options = ["--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats", f"--object-store-memory={2**28}"]
    command = [str(processes.BIN / "ray"), "start", "--head", "--block", f"--port={port}", *options]
    started = "Ray runtime started"
    for number in range(TRIES):
        session = folder / str(number)
        head = processes.Process([*command, f"--temp-dir={session}"], folder / f"{number}.log", folder, env)
        processes.wait_until(lambda head=head: head.running.poll() is not None or started in head.text(), 600, "Ray")
        if started in head.text():
            return head
        assert busy(head.text()), head.text()
        processes.wait_until(lambda session=session: not left_over(session), 300, "the end of a late start")
    raise TimeoutError(f"Ray was not started in {TRIES} tries\n{head.text()}")


def left_over(folder: Path) -> list[str]:
    """Processes that still use a session folder of Ray's."""
    found = []
    for number in (path for path in Path("/proc").iterdir() if path.name.isdigit() and int(path.name) != os.getpid()):
        try:
            words = (number / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words:
            found.append(words)
    return found


def test_starts_a_ray_of_its_own_and_ends_it(tmp_path: Path, temporary: Path) -> None:
    there = fedkin_run(tmp_path, "ray", "--engine", "ray", RAY_TMPDIR=str(temporary))
    assert there.config["run"]["engine"] == "ray"
    assert list(temporary.glob("ray/session_*")), "Ray was not started here"
    processes.wait_until(lambda: not left_over(temporary), 300, "the end of Ray")
    method = algorithms.make("fedavg", {"lr": 0.1})
    here = fedkin.train(fedkin.data.load("digits", clients=4), "mlr", method, rounds=2, dtype="float64")
    assert np.allclose(there.rows, here.rows, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.engines
def test_joins_a_cluster_and_leaves_it_running(tmp_path: Path, temporary: Path) -> None:
    """A cluster with a token of its own: who does not know it is not let in."""
    port = processes.free_port()
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    head = start_head(port, temporary, **token)
    try:
        for out in ("first", "second"):
            fedkin_run(tmp_path, out, "--ray-address", f"127.0.0.1:{port}", **token)
        one, two = (fedkin.load(tmp_path / out) for out in ("first", "second"))
        assert np.array_equal(one.rows, two.rows)
        wrong = {**token, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        done = processes.run("fedkin", *RUN.split(), "no", "--ray-address", f"127.0.0.1:{port}", cwd=tmp_path, **wrong)
        assert done.returncode == 2
        assert "RAY_AUTH_TOKEN" in done.stdout + done.stderr
        assert head.running.poll() is None
    finally:
        head.end(signal.SIGTERM)
        processes.wait_until(lambda: not left_over(temporary), 300, "the end of the cluster")
    done = processes.run("fedkin", *RUN.split(), "third", "--ray-address", f"127.0.0.1:{port}", cwd=tmp_path)
    assert done.returncode == 2
    assert f"no Ray cluster at '127.0.0.1:{port}'" in done.stdout + done.stderr
