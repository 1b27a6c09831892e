"""The tests on every Python at hand: `nox`, or `nox -s tests-3.13`."""

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
    session.run("python", "-m", "build", "--outdir", session.create_tmp())
    built = sorted(map(str, __import__("pathlib").Path(session.create_tmp()).glob("fedkin-*")))
    session.run("twine", "check", "--strict", *built)
    session.install("-c", "constraints.txt", "torch")
    session.install(*[path for path in built if path.endswith(".whl")])
    session.run("fedkin", "demo", "--out", f"{session.create_tmp()}/demo")
