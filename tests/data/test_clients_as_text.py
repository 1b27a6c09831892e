"""Clients are named as the table writes them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from fedkin import data
from fedkin.data.tabular import from_table
from fedkin.errors import FedkinError


def test_01_and_1_are_two_clients(tmp_path: Path) -> None:
    lines = [f"{client},{k},{k % 2}" for client in ("1", "01", "10", "2") for k in range(8)]
    (tmp_path / "t.csv").write_text("\n".join(["site,x,y", *lines]))
    federation = data.from_csv(tmp_path / "t.csv", "site", "y")
    assert federation.names == ("01", "1", "2", "10")
    assert (federation.train.sizes + federation.test.sizes).tolist() == [8] * 4


def test_clients_that_look_alike_are_refused_not_merged() -> None:
    frame = pd.DataFrame({"site": [1, "1"] * 8, "x": range(16), "y": [0, 0, 1, 1] * 4})
    with pytest.raises(FedkinError, match="clients 1 and '1' have the same name"):
        from_table(frame, "site", "y")
