"""`import fedkin` costs nothing: heavy libraries wait until they are needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        (
            "import fedkin; fedkin.FedkinError; dir(fedkin)",
            ("torch", "numpy", "scipy", "sklearn", "pandas", "pydantic"),
        ),
        ("from fedkin import Federation, ClientGraph", ("torch", "sklearn", "pandas", "matplotlib", "pynndescent")),
        (
            "from typer.testing import CliRunner as R; from fedkin.cli import app; R().invoke(app, ['--help'])",
            ("numpy", "torch", "pydantic", "importlib.metadata"),
        ),
        ("from fedkin import load", ("scipy.linalg", "scipy.sparse.linalg", "scipy.spatial", "sklearn", "pandas")),
        ("from fedkin import train", ("scipy.stats", "scipy.optimize", "scipy.spatial", "sklearn", "pandas")),
    ],
)
def test_importing_brings_nothing_heavy(code: str, absent: tuple[str, ...]) -> None:
    asked = f"{code}; import sys; print([m for m in {absent!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True).stdout
    assert found.strip() == "[]"


def test_showing_a_table_of_which_nothing_is_kept_imports_no_torch(tmp_path: Path) -> None:
    code = "import sys; from fedkin.cli import app; app(['reproduce', 'fedu.full', '--show', '--out', sys.argv[1]])"
    asked = f"import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); {code}"
    done = subprocess.run([sys.executable, "-c", asked, str(tmp_path)], check=True, capture_output=True, text=True)
    assert "FedU" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"


def test_everything_public_is_what_its_name_says() -> None:
    import fedkin

    found = {name: getattr(fedkin, name) for name in fedkin.__all__}
    assert {name for name, value in found.items() if isinstance(value, ModuleType)} == {
        *("algorithms", "augment", "couplings", "data", "diagnostics", "graphs", "models", "theory")
    }
    for name in ("train", "resume", "load", "compare", "predict"):
        assert found[name].__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        getattr(fedkin, "trian")  # noqa: B009


def test_compare_stays_the_function_whatever_is_imported() -> None:
    import fedkin.commands.compare
    import fedkin.comparison

    assert fedkin.compare is fedkin.comparison.compare


def test_the_package_runs_as_the_command_does() -> None:
    done = subprocess.run([sys.executable, "-m", "fedkin", "--version"], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("fedkin ")
