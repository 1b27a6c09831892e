"""Dependencies point one way, and what all methods share knows none of them by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from xml.etree import ElementTree

import pytest

import fedkin
from fedkin import algorithms
from fedkin.task import KINDS

ROOT = Path(fedkin.__file__).parent
FILES = [path for path in sorted(ROOT.rglob("*.py")) if "templates" not in path.parts]
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}

LAYERS = [
    {"errors"},
    {"augment", "compute", "files", "notebook", "plugins", "streams"},
    {"task", "privacy"},
    {"graphs", "models"},
    {"federation", "roster", "couplings", "clients"},
    {"data", "local"},
    {"defence", "setting"},
    {"state"},
    {"algorithm"},
    {"algorithms", "result"},
    {"engines", "reports"},
    {"run"},
    {"portfolio", "tuning"},
    {"attacks", "comparison", "config", "deployment", "diagnostics", "papers", "testing"},
    {"reproduction"},
    {"commands"},
    {"cli"},
]
"""From the ground up. A room imports from rooms below its own; rooms on one floor do not know each other."""
FLOOR = {room: floor for floor, rooms in enumerate(LAYERS) for room in rooms}

SHOWS_ITSELF = {("result", "reports"), ("result", "portfolio"), ("federation", "reports"), ("federation", "roster")}
"""Methods of a user's convenience (`result.report()`, `federation.figure()`, `federation.roster()`), which import what is
above them when they are called."""
ENGINE_USERS = {
    "run/start.py",
    "deployment/server.py",
    "deployment/check.py",
    "portfolio/auto.py",
    "portfolio/join.py",
    "comparison/fitness.py",
    "testing/scattered.py",
}

METHODS = set(algorithms.names()) - {"local", "global", "oracle"}  # these three are also plain words
SHARED = ("engines", "run", "local", "clients.py", "algorithm.py", "setting.py", "deployment", "roster.py")
OF_ONE_METHOD = "local/relax"
DEFAULT = "fedavg"
"""The method of a federation that names none."""


def imports(node: ast.AST, lazy: bool = False) -> Iterator[tuple[str, bool]]:
    """(module of fedkin, whether it is imported inside a function), except for types."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.ImportFrom) and child.module and child.module.partition(".")[0] == "fedkin":
            for alias in child.names:
                inner = f"{child.module}.{alias.name}".partition(".")[2]
                yield (inner if inner in MODULES else child.module.partition(".")[2] or inner), lazy
        elif isinstance(child, ast.Import):
            yield from ((a.name.partition(".")[2], lazy) for a in child.names if a.name.startswith("fedkin."))
        yield from imports(child, lazy or isinstance(child, ast.FunctionDef))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def words(tree: ast.Module) -> Iterator[str]:
    """Names, attributes and text in code; docstrings are none of it."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield from node.value.lower().split()
        elif isinstance(node, ast.Name | ast.Attribute):
            yield (node.id if isinstance(node, ast.Name) else node.attr).lower()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_room_imports_only_from_rooms_below(path: Path) -> None:
    room = room_of(path)
    if room in ("__init__", "__main__"):
        return
    for module, lazy in imports(ast.parse(path.read_text())):
        other = module.partition(".")[0]
        if other not in (room, "__version__") and not (lazy and (room, other) in SHOWS_ITSELF):
            assert FLOOR[other] < FLOOR[room], f"{name_of(path)} imports fedkin.{module}"
        if other == "engines":
            assert room == "engines" or name_of(path) in ENGINE_USERS


def test_every_room_has_its_floor() -> None:
    assert {room_of(path) for path in FILES} - {"__init__", "__main__"} == set(FLOOR)


def test_the_picture_of_the_rooms_shows_every_floor() -> None:
    """Rooms at one height are those of one floor, and floors stand in their order."""
    picture = ElementTree.parse(Path(__file__).parents[1] / "docs" / "images" / "rooms.svg").getroot()
    heights: dict[float, set[str]] = {}
    for text in picture.iter("{http://www.w3.org/2000/svg}text"):
        if "class" not in text.attrib:
            heights.setdefault(float(text.attrib["y"]), set()).add(text.text or "")
    assert [heights[y] for y in sorted(heights, reverse=True)] == LAYERS


def test_no_module_waits_for_itself() -> None:
    """What is imported at the top of files makes no circle."""
    needs = {
        name: {other for other, lazy in imports(ast.parse(path.read_text())) if not lazy and other in MODULES}
        for name, path in MODULES.items()
    }
    TopologicalSorter(needs).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize(
    "path",
    [p for p in FILES if name_of(p).startswith(SHARED) and not name_of(p).startswith(OF_ONE_METHOD)],
    ids=name_of,
)
def test_what_methods_share_knows_none_of_them(path: Path) -> None:
    known = {word.strip("\"'.,:;()") for word in words(ast.parse(path.read_text()))} & METHODS
    assert known <= {DEFAULT}


COMMANDS = ("commands", "cli.py", "deployment/templates", "engines/flower/client.py")
"""A command has the name of the function it calls."""
FACTS_OF_A_SET = "data/sets"
"""Readers of files and published facts have the same names in every data set's module."""
SAME_MEANING = {"get", "load", "mae", "mse", "CITATION"}
"""Spelt with their room (`algorithms.get`, `data.get`), or one formula as a loss and as a metric."""


def defined(path: Path) -> Iterator[str]:
    """The public names that a module defines at its top."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found = [target.id for target in targets if isinstance(target, ast.Name)]
        else:
            found = []
        yield from (name for name in found if not name.startswith("_") and len(name) > 1)


def test_a_name_means_one_thing() -> None:
    homes: dict[str, set[str]] = {}
    for path in FILES:
        place = path.relative_to(ROOT).as_posix()
        room = FACTS_OF_A_SET if place.startswith(FACTS_OF_A_SET) else place
        if not place.startswith(COMMANDS):
            for name in defined(path):
                homes.setdefault(name, set()).add(room)
    doubles = {name: sorted(places) for name, places in homes.items() if len(places) > 1 and name not in SAME_MEANING}
    assert not doubles


RECOGNISE_KINDS = {
    "federation/notices.py",
    "federation/table.py",
    "federation/targets.py",
    "engines/flower/agreement.py",
    "deployment/check.py",
}
"""Where targets are seen for the first time, in arrays, tables or as sites tell of them, and a kind is found for them."""


def test_nothing_but_the_task_asks_for_its_kind() -> None:
    """`kind == "regression"` and the like: what a kind means is said in task/ alone, so that a new one is written there alone.

    Others ask what they need to know: whether there are classes, which estimator fits, how predictions are mixed.
    """
    asked = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())) if room_of(path) != "task" else ():
            by_name = False
            if isinstance(node, ast.Compare):
                sides = [inner for side in (node.left, *node.comparators) for inner in ast.walk(side)]
                texts = {side.value for side in sides if isinstance(side, ast.Constant)}
                by_name = bool(texts & set(KINDS)) and name_of(path) not in RECOGNISE_KINDS
            if by_name or (isinstance(node, ast.Attribute) and node.attr in ("one_label", "numeric")):
                asked.append(f"{name_of(path)}:{node.lineno}")
    assert not asked


def test_no_module_is_longer_than_400_lines() -> None:
    long = {path.relative_to(ROOT).as_posix(): count for path in FILES if (count := path.read_text().count("\n")) > 400}
    assert not long
