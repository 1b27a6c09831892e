"""Every file in fedkin/papers: its settings are valid at every scale, and it runs at the smoke scale."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkin import FedkinError, algorithms
from fedkin.reproduction import reproduce, tables, verdicts
from fedkin.reproduction.kept import Kept
from fedkin.reproduction.summary import ROUNDS_TO, Measured
from fedkin.run.options import make_options

NAMES = tables.table_names()
PAPERS = {
    "fedpnp": ["table1", "table5", "table6", *(f"figure{n}" for n in range(2, 9))],
    "fedu": ["table1", "full", "figure3", "figure4", "speedup"],
    "fedcedar": ["table1", "table2", "figure3", "figure4"],
    "fedska": ["table1", "table2", "table3", *(f"figure{n}" for n in range(3, 7))],
    "fedrelax": [f"figure{n}" for n in ("1a", "1b", "1c", "2a", "2b", "3a", "3b", "4a", "4b", "5", "5a", "5b")],
}


def test_every_published_table_and_figure_has_a_file() -> None:
    assert sorted(NAMES) == sorted(f"{paper}.{part}" for paper, parts in PAPERS.items() for part in parts)


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_valid_at_every_scale(name: str) -> None:
    table = tables.find_table(name)
    for scale in tables.SCALES:
        absent = [row for row, what in table.rows.items() if what.algorithm not in ("", *algorithms.names())]
        for row, column in table.places(scale):
            settings = table.settings(row, column, scale)
            if row not in absent and "algorithm" in settings:
                algorithms.make(settings["algorithm"], settings["parameters"])
                make_options(**settings["run"])
    assert {"smoke", "desk"} <= set(table.scales)
    assert table.uncertain
    assert table.scales["desk"].says


@pytest.mark.parametrize("name", NAMES)
def test_the_paper_scale_leaves_out_no_data(name: str) -> None:
    """Fewer samples belong to a scale, which says so in words."""
    table = tables.find_table(name)
    for row, column in table.places("paper"):
        settings = table.settings(row, column, "paper")
        source = settings.get("data") or settings["parameters"].get("source", {})
        assert not {"samples", "stride"} & set(source), f"{row}, {column}: {source}"


@pytest.mark.parametrize("name", NAMES)
def test_published_numbers_and_claims_can_be_read(name: str) -> None:
    table = tables.find_table(name)
    for row in table.rows.values():
        for text in row.published.values():
            assert len(verdicts.parse_published(text)) == len(table.statistics)
    verdicts.check_claims(table, lambda row, column, statistic, when: 1.0)  # every name in every claim exists


@pytest.mark.parametrize("name", [n for n in NAMES if tables.find_table(n).kind == "table"])
def test_local_and_fine_tuning_stand_in_every_comparison(name: str) -> None:
    methods = {row.algorithm for row in tables.find_table(name).rows.values()}
    assert {"local", "fedavg", "fedavgft"} <= methods


def run_smoke(name: str, folder: Path, rows: list[str] | None = None, columns: list[str] | None = None) -> Measured:
    """Run a table at the smoke scale; every cell must hold numbers."""
    plan = reproduce.plan(name, "smoke", Kept(folder), rows, columns)
    absent = {row for row, what in plan.table.rows.items() if what.algorithm not in ("", *algorithms.names())}
    assert set(plan.missing) <= absent
    if not plan.todo:
        pytest.skip("its method is not in this version")
    assert reproduce.carry_out(plan, jobs=1)
    measured = plan.measured
    for cell in plan.todo:
        record = Kept(folder).records[cell.key]
        assert "failed" not in record, record
        if not plan.table.function:
            for statistic in set(plan.table.statistics) - {ROUNDS_TO}:
                assert measured.number(cell.row, cell.column, statistic, "post") is not None, statistic
    assert plan.table.kind == "table" or plan.picture.exists()
    return measured


LONG = [f"fedcedar.{part}" for part in ("figure4", "table1", "table2")]
LONG += [f"fedpnp.{part}" for part in ("table1", "table5", "table6")]
LONG += [f"fedska.{part}" for part in ("figure3", "figure4", "table1", "table3")]
LONG += [f"fedu.{part}" for part in ("figure3", "full", "table1")]
"""More than five seconds each. All others together take half a minute."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in NAMES])
def test_smoke(name: str, small_data: Path, tmp_path: Path) -> None:
    run_smoke(name, tmp_path)


@pytest.mark.parametrize("name", LONG)
def test_smoke_of_one_column(name: str, small_data: Path, tmp_path: Path) -> None:
    """The paper's own method and FedAvg in one column: that whose data is hardest to come by."""
    table = tables.find_table(name)
    here = dict.fromkeys(column for _, column in table.places("smoke"))
    rank = {"svhn": 0, "harbox": 1, "vehicle": 2}
    column = min(here, key=lambda c: rank.get(table.columns[c].source.get("name", ""), 3))
    rows = [row for row, where in table.places("smoke") if where == column]
    run_smoke(name, tmp_path, [rows[-1], *(row for row in rows if row == "fedavg")], [column])


def test_a_misspelt_name_lists_near_matches() -> None:
    with pytest.raises(FedkinError, match=r"did you mean 'fedu.table1'"):
        tables.find_table("fedu.tabel1")
    with pytest.raises(FedkinError, match="unknown scale 'dsk'; did you mean 'desk'"):
        tables.find_table("fedu.table1").reduction("dsk")


SMALL = """
title = "t"
paper = "p"
[columns.a]
title = "A"
data = { name = "digits", clients = 3 }
model = "mlr"
[rows.local]
title = "Local"
algorithm = "local"
published = { a = "90±1" }
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[columns.a]", "[columns.b]"), "unknown column in t.toml, row local: 'a'"),
        (('algorithm = "local"', ""), "needs either an algorithm or a function"),
        (('"90±1"', '"90±1 / 80"'), "is not"),
        (('title = "t"', 'titel = "t"'), "titel|title"),
        (('title = "t"', "title ="), "not valid TOML"),
        (
            ("[rows.local]", '[scales.desk]\nrows = ["lokal"]\n[rows.local]'),
            "unknown row in t.toml, scale desk: 'lokal'",
        ),
    ],
)
def test_faults_in_a_file_are_one_line(change: tuple[str, str], message: str) -> None:
    with pytest.raises(FedkinError, match=message) as problem:
        tables.parse_table("t", SMALL.replace(*change))
    assert "\n" not in str(problem.value)


def test_layers_of_settings() -> None:
    text = SMALL + "parameters = { lr = 0.2 }\nat = { a = { momentum = 0.5 } }\n"
    text = text.replace('paper = "p"', 'paper = "p"\ntraining = { lr = 0.1, batch_size = 8 }\nrun = { rounds = 9 }')
    text += '[scales.desk]\nsays = "less"\nrun = { rounds = 3 }\n[scales.desk.at.a]\nmodel = "mlp"\nrows = { local = { epochs = 2 } }\n'
    table = tables.parse_table("t", text)
    paper, desk = (table.settings("local", "a", scale) for scale in ("paper", "desk"))
    assert paper["parameters"] == {"lr": 0.2, "batch_size": 8, "momentum": 0.5}
    assert desk["parameters"] == {**paper["parameters"], "epochs": 2}
    assert (paper["run"], desk["run"]) == ({"rounds": 9}, {"rounds": 3})
    assert (paper["model"], desk["model"]) == ("mlr", "mlp")
