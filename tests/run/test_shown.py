"""What a user sees without asking: a bar where somebody looks, and help that reads like documentation."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

import fedkin
from fedkin import data
from fedkin.run.options import Options

SCRIPT = """
import fedkin
from fedkin import data
fedkin.train(data.load("digits", clients=3, seed=0), "mlr", "fedavg", rounds=2)
"""


def test_help_names_every_option_and_its_default() -> None:
    text = str(Options.__doc__)
    assert "rounds = 50: rounds to train" in text
    for name, field in Options.model_fields.items():
        assert field.description
        assert f"{name} = {field.default!r}: {field.description}" in text


def test_a_bar_is_shown_if_asked_and_not_in_a_pipe(capfd: pytest.CaptureFixture[str]) -> None:
    federation = data.load("digits", clients=3, seed=0)
    fedkin.train(federation, "mlr", "fedavg", rounds=2)
    assert "FedAvg" not in capfd.readouterr().err
    fedkin.train(federation, "mlr", "fedavg", rounds=2, progress=True)
    assert "FedAvg" in capfd.readouterr().err


def test_a_bar_is_shown_at_a_terminal() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stderr=theirs) as running:
        os.close(theirs)
        text = b""
        try:
            while chunk := os.read(ours, 65536):
                text += chunk
        except OSError:  # the other end is closed: all was read
            pass
    os.close(ours)
    assert running.returncode == 0, text
    assert b"FedAvg" in text
