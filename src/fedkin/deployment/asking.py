"""The operator's side: a Flower run that checks, and what it found, read from its log; the registration of keys."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

from fedkin.deployment.check import Checkup
from fedkin.deployment.server import FederationFile
from fedkin.errors import FedkinError

LAST_LINES = 3


def ask_server(folder: Path, connection: str = "", wait: float = 60.0) -> Checkup:
    """Have the server of the federation in `folder` look at its sites."""
    folder = folder.absolute()
    if not (folder / "pyproject.toml").exists():
        raise FedkinError(f"{folder} holds no federation; name the folder that fedkin deploy init made")
    if (folder / "server" / "federation.toml").exists():  # its faults are told without a round trip
        FederationFile.read(folder / "server" / "federation.toml")
    home = _home(folder)
    _refuse_silence(home / "config.toml", connection)
    command = [_flwr(), "run", ".", *([connection] if connection else [])]
    command += ["--run-config", f"check=true wait={float(wait)}", "--stream"]
    env = {**os.environ, "FLWR_HOME": str(home), "FLWR_DISABLE_UPDATE_CHECK": "1"}
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if (found := Checkup.found_in(line)) is not None:
                running.terminate()  # the stream goes on for a while after the run has ended
                return found
            lines += [line.strip()] if line.strip() else []
    said = " ".join(lines[-LAST_LINES:])
    if "check" in said and "Key" in said:
        said += " (an app made by an older fedkin: add check = false and wait = 0.0 to [tool.flwr.app.config])"
    raise FedkinError(f"the server gave no answer; Flower says: {said or 'nothing'}")


def register(folder: Path, site: str, connection: str = "") -> str | None:
    """Tell the server a site's public key; where that cannot be done now, the command that does it."""
    where = [connection] if connection else []
    words = ["supernode", "register", f"sites/{site}/key.pub", *where]
    later = " ".join(["flwr", *words])
    try:
        _refuse_silence(_home(folder.absolute()) / "config.toml", connection)
    except FedkinError:
        return later
    env = {**os.environ, "FLWR_HOME": str(_home(folder.absolute())), "FLWR_DISABLE_UPDATE_CHECK": "1"}
    done = subprocess.run(
        [_flwr(), *words], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300
    )
    return None if "registered successfully" in done.stdout else later


def _home(folder: Path) -> Path:
    return Path(os.environ.get("FLWR_HOME", folder / "flwr"))


def _flwr() -> str:
    beside = Path(sys.executable).parent / "flwr"
    return str(beside) if beside.exists() else "flwr"


def _refuse_silence(config: Path, connection: str) -> None:
    """A server that is not there is said at once."""
    try:
        links = tomllib.loads(config.read_text())["superlink"]
        address = str(links[connection or links["default"]]["address"])
    except OSError:
        raise FedkinError(f"{config} is not there yet; start the server, which writes it: server/start.sh") from None
    except (KeyError, TypeError, tomllib.TOMLDecodeError):
        raise FedkinError(f"{config} names no server {connection or 'default'!r}") from None
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError) as problem:
        raise FedkinError(f"nobody answers at {address} ({problem}); start the server: server/start.sh") from None
