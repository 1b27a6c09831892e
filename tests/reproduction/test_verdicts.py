"""Verdicts and claims on numbers that can be checked by hand."""

from __future__ import annotations

import pytest

from fedkin import FedkinError
from fedkin.reproduction import tables, text
from fedkin.reproduction.kept import CellRecord
from fedkin.reproduction.summary import Measured, summary_of
from fedkin.reproduction.verdicts import Check, Number, parse_published, verdict

TABLE = """
title = "t"
paper = "p"
spread = "seeds"
tested = "post"
columns.a = { title = "A", data = { name = "digits", clients = 3 }, model = "mlr" }
columns.b = { title = "B", data = { name = "digits", clients = 3 }, model = "mlr", caution = "the target leaks" }
rows.fedavg = { title = "FedAvg", algorithm = "fedavg", tested = "pre", published = { a = "80±1", b = "80±1" } }
rows.fedavgft = { title = "FedAvg + fine-tuning", algorithm = "fedavgft" }
rows.ours = { title = "Ours", algorithm = "fedu", published = { a = "95±0.1" } }
rows.lost = { title = "Lost", algorithm = "local", published = { a = "90" } }
scales.desk = { says = "less" }
claims = [
  { says = "ours is better than FedAvg", check = "ours > fedavg" },
  { says = "ours is better than fine-tuning", check = "ours > fedavgft" },
]
"""


def record(pre: float, post: float, **more: object) -> CellRecord:
    clients = {"std": 0.1, "best5": 1.0}
    found: CellRecord = {"pre": {"mean": pre, **clients}, "post": {"mean": post, **clients}}
    return found | {"key": f"{pre}{post}", "seconds": 2.0, "versions": {}, **more}


def measured(scale: str = "desk", **records: list[CellRecord]) -> Measured:
    table = tables.parse_table("t", TABLE)
    cells = {(name.partition("_")[0], name.partition("_")[2]): found for name, found in records.items()}
    return Measured(table, scale, cells)


def test_the_strictest_bound_that_holds_is_named() -> None:
    assert verdict(Number(90, 0.5), 90.4) == "within the spread"
    assert verdict(Number(90, 0.5), 91.5) == "within 2 points"
    assert verdict(Number(90, 17.5), 91.5) == "within 2 points"
    assert verdict(Number(90, 17.5), 100.0) == "within the spread"
    assert verdict(Number(90, 0.5), 95.0) == "further off"
    assert verdict(Number(90), 88.0) == "within 2 points"
    assert verdict(Number(0.5), 0.54, percent=False) == "within 10 %"
    assert verdict(Number(0.5), 0.6, percent=False) == "further off"


def test_published_cells_must_be_numbers() -> None:
    assert parse_published("1 ± 2 / –") == [Number(1, 2), None]
    with pytest.raises(FedkinError, match="'about 3' is not a number"):
        parse_published("about 3")


def test_lines_compare_with_the_moment_at_which_the_paper_tests() -> None:
    fedavg, ours = record(0.8, 0.96), record(0.7, 0.93)
    found = summary_of(measured(fedavg_a=[fedavg, record(0.82, 0.94)], ours_a=[ours], fedavg_b=[fedavg]))
    lines = {(cell["row"], cell["column"]): cell for cell in found["cells"]}
    assert lines["fedavg", "a"]["tested"] == "pre"
    assert lines["fedavg", "a"]["difference"] == pytest.approx(1.0)
    assert lines["fedavg", "a"]["pre"] == pytest.approx({"value": 81.0, "spread": 1.0})
    assert lines["fedavg", "a"]["verdict"] == "within the spread"
    assert lines["ours", "a"]["difference"] == pytest.approx(-2.0)
    assert lines["ours", "a"]["verdict"] == "within 2 points"
    assert lines["fedavg", "b"]["verdict"] == "not comparable: the target leaks"
    assert lines["lost", "a"]["verdict"] == "not run yet"


def test_spread_over_clients_is_averaged_over_seeds() -> None:
    table = tables.parse_table("t", TABLE.replace('spread = "seeds"', 'spread = "clients"'))
    found = Measured(table, "desk", {("ours", "a"): [record(0.7, 0.9), record(0.8, 1.0)]}).number(
        "ours", "a", "mean", "post"
    )
    assert found == Number(pytest.approx(95.0), pytest.approx(10.0))


@pytest.mark.parametrize(
    ("fedavg", "ours", "mark"),
    [
        ((0.8, 0.9), (0.85, 0.95), "holds"),
        ((0.8, 0.97), (0.85, 0.95), "holds only pre; holds as the paper tests (ours post, fedavg pre)"),
        ((0.8, 0.97), (0.7, 0.95), "holds only as the paper tests (ours post, fedavg pre)"),
        ((0.97, 0.9), (0.7, 0.95), "holds only post; does not hold as the paper tests (ours post, fedavg pre)"),
        ((0.97, 0.97), (0.7, 0.95), "does not hold"),
    ],
)
def test_claims_at_pre_at_post_and_as_the_paper_tests(
    fedavg: tuple[float, float], ours: tuple[float, float], mark: str
) -> None:
    claims = measured(fedavg_a=[record(*fedavg)], ours_a=[record(*ours)]).claims()
    assert [claim["mark"] for claim in claims] == [mark]  # the claim about fine-tuning lacks a cell


def test_fine_tuning_is_always_tested_after_training() -> None:
    cell = [record(0.5, 0.9)]
    (_, claim) = measured(fedavg_a=cell, fedavgft_a=cell, ours_a=[record(0.8, 0.95)]).claims()
    assert claim["holds"] == {"pre": False, "post": True, "tested": True}
    assert claim["margin"]["pre"] == pytest.approx(-10.0)


def test_a_run_that_broke_off_says_so_and_smoke_is_no_comparison() -> None:
    broken = {"failed": "diverged", "key": "x", "seconds": 1.0, "versions": {}}
    found = summary_of(measured(ours_a=[broken]))
    assert next(c["verdict"] for c in found["cells"] if c["row"] == "ours") == "broke off: diverged"
    smoke = TABLE.replace("scales.desk", "scales.smoke")
    table = tables.parse_table("t", smoke)
    (line, *_) = summary_of(Measured(table, "smoke", {("fedavg", "a"): [record(0.8, 0.9)]}))["cells"]
    assert (line["verdict"], line["difference"]) == ("not comparable: a smoke test", None)


def test_checks_are_chains_of_cells_and_numbers() -> None:
    check = Check.parse("a[x].best5 >= b ~ 0.95 < c")
    assert check.terms == ("a[x].best5", "b", "0.95", "c")
    assert check.operators == (">=", "~", "<")
    assert not check.fixed
    assert Check.parse("a[x] > 0.5").fixed
    with pytest.raises(FedkinError, match="not a comparison"):
        Check.parse("a is best")
    table = tables.parse_table("t", TABLE.replace("ours > fedavgft", "ours > fedavg2"))
    with pytest.raises(
        FedkinError, match="unknown row in claim 'ours > fedavg2' of t: 'fedavg2'; did you mean 'fedavg'"
    ):
        Measured(table, "desk", {("ours", "a"): [record(1, 1)]}).claims()


def test_text_of_claims_groups_columns_by_mark() -> None:
    cells = measured(fedavg_a=[record(0.8, 0.9)], ours_a=[record(0.85, 0.95)])
    assert text.shown_claims(cells.table, summary_of(cells)) == [
        ("ours is better than FedAvg", "holds: A (pre +5.00, post +5.00)")
    ]


@pytest.mark.parametrize(
    ("check", "margin"),
    [
        ("0.9 > 0.8 > 0.75", 0.05),
        ("0.9 > 0.5 > 0.6 > 0.55", -0.1),  # the broken link, not the nearest one
        ("0.1 <= 0.2 <= 0.15", -0.05),
        ("0.5 ~ 0.51 ~ 0.4", 0.11),
        ("0.5 ~ 0.9 > 0.7", 0.2),
    ],
)
def test_the_margin_of_a_chain_is_that_of_its_weakest_link(check: str, margin: float) -> None:
    table = tables.parse_table("t", TABLE.replace("ours > fedavgft", check))
    claim = Measured(table, "desk", {}).claims()[-1]
    assert claim["margin"]["post"] == pytest.approx(margin)
    assert (claim["mark"] == "does not hold") == (margin < 0) or "~" in check
