"""A package that is installed beside fedkin, seen from the command line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

TRAIN = ("--model", "mlr", "--clients", "4", "--rounds", "2")
PACKAGE = "fedkin_plugin_example"


def test_lists_show_what_is_installed(installed: Path, fedkin) -> None:
    methods = fedkin("algorithms", on=installed)
    assert methods.returncode == 0, methods.stderr
    assert "half-way" in methods.stdout
    assert "fedavg" in methods.stdout
    assert "two-moons" in fedkin("data", "list", on=installed).stdout


def test_a_run_takes_parts_by_name(installed: Path, fedkin, tmp_path: Path) -> None:
    parts = fedkin(
        *("run", "--data", "two-moons", "--algorithm", "fedpnp", "--set", "denoiser=lorentz", "--graph", "ring:0.5"),
        *(*TRAIN, "--out", "parts"),
        on=installed,
    )
    assert parts.returncode == 0, parts.stderr
    assert tomllib.loads((tmp_path / "parts" / "config.toml").read_text())["algorithm"]["denoiser"] == "lorentz"


def test_a_run_takes_a_loss_and_a_metric_by_name(installed: Path, fedkin, tmp_path: Path) -> None:
    asked = ("run", "--data", "two-moons", "--loss", "brier-score", "--metric", "recall", *TRAIN, "--out", "own")
    done = fedkin(*asked, on=installed)
    assert done.returncode == 0, done.stderr
    settings = tomllib.loads((tmp_path / "own" / "config.toml").read_text())["run"]
    assert (settings["loss"], settings["metrics"]) == ("brier-score", ["recall"])
    assert "recall" in done.stdout
    near = fedkin("run", "--data", "two-moons", "--loss", "brier-scor", *TRAIN, on=installed)
    assert "did you mean 'brier-score'" in near.stderr


def test_a_run_takes_parts_by_path_and_resumes_by_it(installed: Path, fedkin, tmp_path: Path) -> None:
    path = f"{PACKAGE}.half_way:HalfWay"
    data = ("--data", f"{PACKAGE}.parts:two_moons")
    by_name = fedkin(
        "run", "--data", "two-moons", "--algorithm", "half-way", *TRAIN, "--json", "name.json", on=installed
    )
    by_path = fedkin("run", *data, "--algorithm", path, *TRAIN, "--json", "path.json", on=installed)
    assert by_path.returncode == 0, by_path.stderr
    assert by_name.returncode == 0, by_name.stderr
    first, second = (json.loads((tmp_path / f"{kind}.json").read_text()) for kind in ("name", "path"))
    assert first["clients"] == second["clients"]
    named = tmp_path / "runs" / "two-moons-half-way-seed0" / "config.toml"
    assert tomllib.loads(named.read_text())["algorithm"]["name"] == "half-way"
    assert second["algorithm"] == "half-way"

    run = tmp_path / "runs" / "two_moons-half-way-seed0"
    assert tomllib.loads((run / "config.toml").read_text())["algorithm"]["name"] == path
    resumed = fedkin("resume", str(run), "--rounds", "3", on=installed)
    assert resumed.returncode == 0, resumed.stderr
    assert "Half way on 4 clients, 3 rounds" in resumed.stdout

    (tmp_path / "settings.toml").write_text(
        f'data = "{PACKAGE}.parts:two_moons"\ngraph = "{PACKAGE}.ring:ring:0.5"\nmodel = "mlr"\n'
        f'[algorithm]\nname = "fedpnp"\ndenoiser = "{PACKAGE}.parts:lorentz"\n[run]\nrounds = 2\n'
    )
    from_file = fedkin("run", "settings.toml", "--clients", "4", on=installed)
    assert from_file.returncode == 0, from_file.stderr


def test_nothing_is_imported_before_it_is_asked_for(installed: Path, fedkin) -> None:
    code = (
        "import sys, fedkin\n"
        "fedkin.algorithms.get('fedavg'); fedkin.data.info('digits')\n"
        f"print('{PACKAGE}' in sys.modules)\n"
        f"fedkin.algorithms.get('half-way'); print('{PACKAGE}.half_way' in sys.modules, '{PACKAGE}.parts' in sys.modules)"
    )
    assert fedkin(on=installed, code=code).stdout.split() == ["False", "True", "False"]


def test_the_example_keeps_the_promises(installed: Path, fedkin) -> None:
    code = (
        "from fedkin.testing import check_algorithm, check_denoiser, check_graph_builder\n"
        "import fedkin, sys\n"
        "check_algorithm(fedkin.algorithms.get('half-way')); check_denoiser('lorentz'); check_graph_builder('ring')\n"
        "print('kept', 'pytest' in sys.modules)"
    )
    done = fedkin(on=installed, code=code)
    assert done.stdout.split() == ["kept", "False"], done.stderr


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """An installed package whose modules cannot be imported."""
    folder = tmp_path / "site"
    (folder / "broken-1.0.dist-info").mkdir(parents=True)
    (folder / "broken-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (folder / "broken-1.0.dist-info" / "entry_points.txt").write_text(
        "[fedkin]\nalgorithm.shaky = broken_code:Shaky\nall = broken_code\n"
    )
    (folder / "broken_code.py").write_text("raise RuntimeError('no\\nluck')\n")
    return folder


def test_a_broken_package_is_a_warning_in_lists_and_an_error_when_asked_for(broken: Path, fedkin) -> None:
    listed = fedkin("algorithms", on=broken)
    assert listed.returncode == 0, listed.stderr
    assert "fedavg" in listed.stdout
    assert listed.stderr.splitlines() == [
        f"warning: plug-in broken: its entry point {point} = {value} is broken: RuntimeError: no luck"
        for point, value in (("all", "broken_code"), ("algorithm.shaky", "broken_code:Shaky"))
    ]
    asked = fedkin("run", "--data", "digits", "--algorithm", "shaky", on=broken)
    assert asked.returncode == 2
    assert "plug-in broken: its entry point algorithm.shaky = broken_code:Shaky is broken" in asked.stderr
    assert "Traceback" not in asked.stderr
    fine = fedkin("algorithms", "fedavg", on=broken)
    assert (fine.returncode, fine.stderr) == (0, "")
    typo = fedkin("run", "--data", "digits", "--algorithm", "fedavgg", on=broken)
    assert "did you mean 'fedavg'" in typo.stderr
    assert "its entry point all = broken_code is broken" in typo.stderr
