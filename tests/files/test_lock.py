"""A place has one owner at a time, and none once its owner is dead."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fedkin.errors import FedkinError
from fedkin.files import Lock

HOLD = """
import sys, time
from pathlib import Path
from fedkin.files import Lock
lock = Lock(Path(sys.argv[1]), "the run")
print("held", flush=True)
time.sleep(60)
"""


def test_the_second_caller_is_told_who_holds_it_and_a_kill_frees_it(tmp_path: Path) -> None:
    path = tmp_path / "run" / ".lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(
            FedkinError, match=rf"the run is in use by process {holder.pid} on {socket.gethostname()}; wait"
        ):
            Lock(path, "the run")
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    with Lock(path, "the run"):
        assert f"process {os.getpid()}" in path.read_text()
    assert not path.exists()


def test_a_lock_is_free_after_its_release(tmp_path: Path) -> None:
    first = Lock(tmp_path / "lock", "it")
    first.release()
    first.release()
    Lock(tmp_path / "lock", "it").release()
