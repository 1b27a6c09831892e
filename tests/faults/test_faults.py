"""A few of each kind of fault; `make test-faults` tries many."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedkin.errors import FedkinError

from . import campaign, full_disk


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


@pytest.mark.parametrize("name", ["graph.npz", "run with a rows file", "data cache", "deploy add", "ledger"])
@pytest.mark.parametrize("how", list(full_disk.HOW))
def test_writers_say_that_there_is_no_room_and_go_on_later(name: str, how: str, tmp_path: Path) -> None:
    if how == "full" and not full_disk.may_mount(tmp_path):
        pytest.skip("this system lets nobody mount a disk of his own")
    assert not full_disk.writers(tmp_path, name, how, (0.0, 0.5))[1]
