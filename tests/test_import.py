"""`import fedkin` costs nothing: heavy libraries wait until they are needed."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        (
            "import fedkin; fedkin.FedkinError; dir(fedkin)",
            ("torch", "numpy", "scipy", "sklearn", "pandas", "pydantic"),
        ),
        ("from fedkin import Federation, ClientGraph", ("torch", "sklearn", "pandas", "matplotlib", "pynndescent")),
    ],
)
def test_importing_brings_nothing_heavy(code: str, absent: tuple[str, ...]) -> None:
    asked = f"{code}; import sys; print([m for m in {absent!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True).stdout
    assert found.strip() == "[]"
