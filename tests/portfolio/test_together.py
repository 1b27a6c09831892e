"""Folds in step give the numbers of separate runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedkin import Federation, FedkinError, algorithms
from fedkin.algorithm import Setting
from fedkin.clients import Replies
from fedkin.engines.host import Answer
from fedkin.engines.in_process import InProcess
from fedkin.federation.folds import folded
from fedkin.local.tasks import Request
from fedkin.models import ModelSpec
from fedkin.portfolio.members import placed, train_member
from fedkin.portfolio.together import Fold, Folds
from fedkin.streams import Streams


class Counting(InProcess):
    """Counts the questions that it is asked."""

    questions = 0

    def answer(self, task: str, request: Request) -> Answer:
        self.questions += 1
        return super().answer(task, request)


@pytest.mark.parametrize("name", ["local", "fedavg", "kin", "pfedbayes"])
def test_folds_in_step_are_separate_federations(name: str, contrary: Federation) -> None:
    cut, size = folded(contrary, 3), len(contrary)
    spec, streams = ModelSpec.of("mlp:4", contrary.task, torch.float64), Streams(0)
    method = algorithms.make(name, {"steps": 3, "lr": 0.05})

    def trained(clients: InProcess, count: int) -> torch.Tensor:
        folds = Folds(clients, contrary.names, range(count))
        settings = tuple(
            Setting(contrary.names, view.sizes, contrary.task, spec, streams, rounds=4) for view in folds.views
        )
        return train_member(folds, settings, method, 4, lambda *_: None).rows

    clients = Counting(cut, spec, streams)
    together = trained(clients, 3)
    assert clients.questions <= 1 + 4 + 1 + 3  # one a round, whatever the number of folds
    for fold in range(3):
        alone = trained(InProcess(cut.take(range(fold * size, (fold + 1) * size)), spec, streams), 1)
        assert torch.allclose(together[fold], alone[0], atol=1e-12)


def test_a_fault_in_one_fold_ends_all_of_them_with_its_own_message(contrary: Federation) -> None:
    cut = folded(contrary, 3)
    spec = ModelSpec.of("mlr", contrary.task, torch.float64)
    folds = Folds(InProcess(cut, spec, Streams(0)), contrary.names, range(3))

    def work(fold: Fold) -> int:
        if fold.place == 1:
            raise FedkinError("no luck in fold 1")
        return len(fold.ask("sizes", np.arange(8)))

    with pytest.raises(FedkinError, match="no luck in fold 1"):
        folds.each(work)
    assert folds.each(lambda fold: len(fold.ask("sizes", np.arange(8)))) == [8, 8, 8]
    with pytest.raises(FedkinError, match="unknown client task"):
        folds.each(lambda fold: fold.ask("no such thing", np.arange(8)))


def test_a_member_that_diverges_for_everybody_has_no_models() -> None:
    nobody = Replies(np.zeros(0, dtype=np.int64), {}, {"a": "diverged", "b": "diverged"})
    assert torch.isnan(placed(nobody, "rows", torch.zeros(1, 3).expand(2, 3))).all()
    one = Replies(np.array([1]), {"rows": torch.ones(1, 3)})
    assert torch.isnan(placed(one, "rows", torch.zeros(2, 3))).any(dim=1).tolist() == [True, False]
