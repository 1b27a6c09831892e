"""How many questions auto puts to the clients, as docs/auto.md tells it: over Flower each is a message to every site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from fedkin.federation.folds import folded, whole_training
from fedkin.models import ModelSpec
from fedkin.portfolio.auto import TRAINING, combined
from fedkin.portfolio.effort import EFFORTS
from fedkin.run.options import make_options
from fedkin.streams import Streams

from .conftest import sites
from .test_together import Counting

PAGE = Path(__file__).parents[2] / "docs" / "auto.md"


def questions(effort: str, regression: bool) -> int:
    federation = whole_training(sites(clients=10, regression=regression))
    spec, streams = ModelSpec.of("linear" if regression else "mlr", federation.task, torch.float32), Streams(0)
    count, used = EFFORTS[effort].cut(federation.train.sizes)
    cut, tested = (Counting(of, spec, streams) for of in (folded(federation, count, used, 0, whole=True), federation))
    how = spec, make_options(rounds=30, seed=0), effort, used, TRAINING, None, lambda *_: None
    combined(cut, tested, federation.roster(), *how)
    return cut.questions + tested.questions


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("effort", ["quick", pytest.param("standard", marks=pytest.mark.slow)])
def test_the_page_tells_how_many_questions_there_are(effort: str, regression: bool) -> None:
    told = re.search(rf"{effort} (\d+)(?: for classes)? and (\d+)", " ".join(PAGE.read_text().split()))
    assert told is not None
    assert questions(effort, regression) == int(told[2 if regression else 1])
