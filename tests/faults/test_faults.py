"""A few of each kind of fault; `make test-faults` tries many."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedkin.errors import FedkinError

from . import campaign


def test_killed_runs_go_on_to_the_same_bits(tmp_path: Path) -> None:
    tried, failed = campaign.kills(tmp_path, "fedu", 6, seed=1)
    assert tried == 6
    assert not failed


def test_damaged_directories_are_told_in_one_line_or_do_not_matter(tmp_path: Path) -> None:
    assert not campaign.damages(tmp_path, 25, seed=1)[1]


def test_odd_inputs_are_taken_or_refused_in_one_line(tmp_path: Path) -> None:
    assert not campaign.inputs(tmp_path, 400, seed=1)[1]


@settings(derandomize=True, max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(draw=st.randoms(use_true_random=False))
@pytest.mark.filterwarnings("ignore")
def test_odd_inputs_found_by_hypothesis(tmp_path_factory: pytest.TempPathFactory, draw: random.Random) -> None:
    with suppress(FedkinError):
        campaign.one_input(tmp_path_factory.getbasetemp(), draw)
