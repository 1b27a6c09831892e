"""Real Flower processes on loopback for tests: started here, ended by their ids."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONUNBUFFERED": "1", **quiet, **more}


def descendants(number: int) -> list[int]:
    """The process and everything it started, by their ids; also a helper of Flower's that outlived its parent."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(folder.name))
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if b"--parent-pid" in words:
                    own = int(words[words.index(b"--parent-pid") + 1])
                    parents.setdefault(own, []).append(int(folder.name))
    found, waiting = [], [number]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.append(one)
            waiting += parents.get(one, [])
    return found


class Process:
    """A program and its log file."""

    def __init__(self, command: list[str], log: Path, cwd: Path, env: Mapping[str, str] | None = None) -> None:
        self.log, self.command = log, command
        with open(log, "ab") as file:
            self.running = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=cwd,
                env=environment(**(env or {})),
            )

    def tell(self, number: int) -> None:
        """To it and everything it started."""
        for one in descendants(self.running.pid):
            with suppress(ProcessLookupError):
                os.kill(one, number)

    def end(self, number: int = signal.SIGKILL) -> None:
        """End it and everything it started."""
        self.tell(number)
        self.running.wait(timeout=120)

    def text(self) -> str:
        return self.log.read_text(errors="replace")


def wait_until(
    condition: Callable[[], object], seconds: float, what: str, logs: Callable[[], str] | None = None
) -> None:
    """Wait, with an end. The ends are far away, because other work may slow a machine down tenfold."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not happen within {seconds:g} s" + (f"\n{logs()}" if logs else ""))
        time.sleep(0.3)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def run(*command: str, cwd: Path, timeout: float = 600, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=environment(**env), timeout=timeout, capture_output=True, text=True, check=False
    )


@contextmanager
def connected(parent: Path, names: Sequence[str], settle: Callable[[Path], None]) -> Iterator[Loopback]:
    """A federation of these sites as `fedkin deploy init` makes it, its server and all sites running; `settle` puts the
    sites' data into its folder before."""
    folder, port = parent / "clinics", free_port()
    made = run("fedkin", "deploy", "init", str(folder), "--sites", ",".join(names), "--port", str(port), cwd=parent)
    assert made.returncode == 0, made.stderr
    settle(folder)
    loopback = Loopback(folder, port)
    try:
        loopback.start_server()
        for site in names:
            loopback.register(site)
            loopback.start_site(site)
        yield loopback
    finally:
        loopback.end()


class Loopback:
    """A federation made by `fedkin deploy init`, with its SuperLink and SuperNodes on this machine."""

    connection = ""
    """The name of flwr's connection, where it is not the default."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.home = {"FLWR_HOME": str(folder / "flwr")}
        self.processes: dict[str, Process] = {}

    def start_server(self, **env: str) -> None:
        self.processes["server"] = Process(["server/start.sh"], self.folder / "server.log", self.folder, env)
        port = int(env.get("PORT", self.port))
        wait_until(lambda: listens(port), 600, "the SuperLink's start", self.logs)

    def register(self, site: str) -> None:
        where = [self.connection] if self.connection else []
        done = run("flwr", "supernode", "register", f"sites/{site}/key.pub", *where, cwd=self.folder, **self.home)
        assert "registered successfully" in done.stdout, done.stdout + done.stderr

    def start_site(self, site: str, **env: str) -> None:
        env = {"PORT": str(free_port()), **env}
        self.processes[site] = Process([f"sites/{site}/start.sh"], self.folder / f"{site}.log", self.folder, env)

    def train(self, app: str = ".", **config: object) -> None:
        """flwr run, with changes to the app's run config."""
        where = [self.connection] if self.connection else []
        told = ["--run-config", " ".join(f"{key}='{value}'" for key, value in config.items())] if config else []
        done = run("flwr", "run", app, *where, *told, cwd=self.folder, **self.home)
        assert "Successfully started run" in done.stdout, done.stdout + done.stderr

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{process.text()[-3000:]}" for name, process in self.processes.items())

    def end(self) -> None:
        for process in self.processes.values():
            process.end()
