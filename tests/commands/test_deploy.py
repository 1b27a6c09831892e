"""fedkin deploy: what it writes, and what it refuses."""

from __future__ import annotations

import shutil
import ssl
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedkin.cli import app

pytest.importorskip("flwr", reason="pip install 'fedkin[flower]'")


def deploy(*options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["deploy", *options])
    return done.exit_code, done.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "clinics"
    code, text = deploy("init", str(made), "--sites", "north,south", "--algorithm", "fedpnp", "--example")
    assert code == 0, text
    return made


def test_every_file_is_there_and_readable(folder: Path) -> None:
    from fedkin.deployment.server import FederationFile
    from fedkin.engines.flower.site import Site

    app_config = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    settings = folder / "server" / app_config["config"]["settings"]
    plan = FederationFile.read(settings)
    assert (plan.algorithm.name, plan.federation.sites, plan.options.engine) == ("fedpnp", 2, "flower")
    assert FederationFile.read(settings, rounds=3, algorithm="local").options.rounds == 3
    for name in ("north", "south"):
        site = Site.read(folder / "sites" / name / "site.toml")
        assert [client.name for client in site.settings.clients] == [name]
        assert not site.settings.disclose
        assert (folder / "sites" / name / f"fedkin-{name}.service").exists()
    for script in (folder / "server" / "start.sh", folder / "sites" / "north" / "start.sh"):
        assert script.stat().st_mode & stat.S_IXUSR
        subprocess.run(["sh", "-n", str(script)], check=True)
    assert "--enable-supernode-auth" in (folder / "server" / "start.sh").read_text()
    assert "--insecure" not in (folder / "server" / "start.sh").read_text()


def test_no_file_knows_where_it_was_made(folder: Path) -> None:
    texts = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".npz", ".pem", ".key")]
    assert len(texts) > 15
    for path in texts:
        assert str(folder.parent) not in path.read_text(), path
        assert str(Path(sys.executable).parent) not in path.read_text(), path


def test_the_target_and_a_port_that_is_taken(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        options = ["--sites", "a", "--port", str(port), "--target", 'the "end"']
        code, text = deploy("init", str(tmp_path / "new"), *options)
        assert code == 0
        assert f"note: port {port} of 127.0.0.1 is taken by another program" in text
        code, text = deploy("port", "127.0.0.1", str(port))
        assert code == 2
        assert "is taken" in text
    assert deploy("port", "127.0.0.1", str(port))[0] == 0
    client = tomllib.loads((tmp_path / "new" / "sites" / "a" / "site.toml").read_text())["clients"][0]
    assert client["target"] == 'the "end"'


def test_a_check_without_a_server_or_a_federation_is_one_line(folder: Path, tmp_path: Path) -> None:
    for where, reason in ((folder, "server/start.sh"), (tmp_path, "holds no federation")):
        code, text = deploy("check", str(where))
        assert code == 2
        assert reason in text


def test_keys_and_certificates(folder: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

    secret = folder / "sites" / "north" / "key"
    assert secret.stat().st_mode & 0o077 == 0
    private = load_ssh_private_key(secret.read_bytes(), None)
    public = load_ssh_public_key(secret.with_name("key.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    assert private.public_key() == public
    context = ssl.create_default_context(cafile=str(folder / "server" / "certificates" / "ca.pem"))
    assert context.get_ca_certs()[0]["subject"][0][0][1] == "fedkin test authority"
    other = folder / "other"
    assert deploy("certificates", str(other), "--address", "192.0.2.7")[0] == 0
    assert (other / "server.key").stat().st_mode & 0o077 == 0
    assert deploy("key", str(folder / "sites" / "east" / "key"))[0] == 0


def test_the_app_is_built_by_flower(folder: Path) -> None:
    """Flower accepts the app, and no key, certificate or data goes into it."""
    flwr = Path(sys.executable).parent / "flwr"
    done = subprocess.run([flwr, "build"], cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (bundle,) = folder.glob("*.fab")
    import zipfile

    inside = zipfile.ZipFile(bundle).namelist()
    assert {"pyproject.toml", "fedkin_app/server_app.py", "fedkin_app/client_app.py"} <= set(inside)
    assert not [name for name in inside if "key" in name or name.endswith((".npz", ".pem"))]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    made = tmp_path / "a folder"
    assert deploy("init", str(made), "--sites", "north")[0] == 0
    units = [made / "server" / "fedkin-superlink.service", made / "sites" / "north" / "fedkin-north.service"]
    done = subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    units[0].write_text(units[0].read_text().replace("start.sh", "missing.sh"))
    broken = subprocess.run(["systemd-analyze", "verify", units[0]], capture_output=True, check=False, timeout=60)
    assert broken.returncode != 0


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_accepts_its_settings(folder: Path) -> None:
    (folder / "server" / "nginx").mkdir()
    command = ["nginx", "-t", "-p", str(folder / "server"), "-c", "nginx.conf", "-e", "stderr"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--sites", "a,a"], "each name once"),
        (["--sites", ","], "at least one site"),
        (["--sites", "../x"], "letters, digits"),
        (["--sites", "a", "--algorithm", "fedpmp"], "did you mean 'fedpnp'"),
    ],
)
def test_bad_input_is_refused_in_one_line(options: list[str], reason: str, tmp_path: Path) -> None:
    code, text = deploy("init", str(tmp_path / "new"), *options)
    assert code == 2
    assert reason in text
    assert not (tmp_path / "new").exists()


def test_a_folder_with_something_in_it_is_left_alone(folder: Path) -> None:
    before = (folder / "sites" / "north" / "key").read_bytes()
    code, text = deploy("init", str(folder), "--sites", "north")
    assert code == 2
    assert "is not empty" in text
    code, text = deploy("key", str(folder / "sites" / "north" / "key"))
    assert code == 2
    assert (folder / "sites" / "north" / "key").read_bytes() == before
