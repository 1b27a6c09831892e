"""The public API is what tests/public_api.txt says: a change is meant, and stands in the changelog."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from typing_extensions import deprecated

import fedkin

STORED = Path(__file__).with_name("public_api.txt")


def described() -> Iterator[str]:
    """A line per public name: functions with their parameters, classes with their public methods."""
    stub = ast.parse(Path(fedkin.__file__).with_suffix(".pyi").read_text())
    names = {alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    for name in sorted(names):
        thing = getattr(fedkin, name)
        old = "deprecated " if hasattr(thing, "__deprecated__") else ""
        if inspect.isclass(thing):
            own = sorted(key for key in vars(thing) if not key.startswith(("_", "model_")))
            yield f"{old}class {name}: {', '.join(own)}"
        elif inspect.isroutine(thing):
            yield f"{old}def {name}({', '.join(inspect.signature(thing).parameters)})"
        else:
            yield f"module {name}"


def test_the_public_api_is_the_stored_one() -> None:
    found = "\n".join(described()) + "\n"
    assert found == STORED.read_text(), (
        f"the public API changed. If that is meant: say so in CHANGELOG.md, keep the old name for a release with "
        f"typing_extensions.deprecated, and store this in {STORED.name}:\n{found}"
    )


def test_a_name_that_goes_away_warns_and_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CONTRIBUTING.md says: the old name keeps working for a release."""
    before = next(line for line in described() if line.startswith("def predict("))
    monkeypatch.setattr(fedkin, "predict", deprecated("use Result.predict instead")(fedkin.predict))
    assert f"deprecated {before}" in set(described())
    with pytest.warns(DeprecationWarning, match="use Result.predict instead"), pytest.raises(fedkin.FedkinError):
        fedkin.predict(None, None, [[0.0]])  # type: ignore[arg-type]
