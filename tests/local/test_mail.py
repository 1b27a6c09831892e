"""Mail: letters along edges, in groups or one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedkin import ClientGraph, FedkinError
from fedkin.local.mail import Mail


@pytest.fixture
def graph() -> ClientGraph:
    """a – b – c – d, and e alone."""
    weights = np.diag([0.5, 1.0, 2.0, 0.0], k=1)
    return ClientGraph(weights + weights.T, "abcde")


LETTERS = torch.arange(10, dtype=torch.float64).view(5, 2)


def test_sums_are_those_of_the_adjacency(graph: ClientGraph) -> None:
    everyone = np.arange(5)
    mail = Mail.along(graph, everyone, everyone, LETTERS)
    dense = torch.from_numpy(graph.adjacency.toarray())
    torch.testing.assert_close(mail.weighted_sum(), dense @ LETTERS)
    torch.testing.assert_close(mail.weight, dense.sum(dim=1))


@pytest.mark.parametrize("receivers", [[2], [3, 0], [4], [4, 1]])
def test_only_letters_that_some_receiver_may_read(graph: ClientGraph, receivers: list[int]) -> None:
    there = np.array([0, 1, 3, 4])  # c is asleep
    mail = Mail.along(graph, np.array(receivers), there, LETTERS[there])
    dense = graph.adjacency.toarray()
    readable = [j for j in there if dense[receivers][:, j].any()]
    assert mail.senders == tuple("abcde"[j] for j in readable)
    assert torch.equal(mail.letters, LETTERS[readable])
    torch.testing.assert_close(mail.weighted_sum(), torch.from_numpy(dense[receivers][:, there]) @ LETTERS[there])
    for i, k in enumerate(receivers):
        own = mail.to(i)
        assert own.senders == tuple("abcde"[j] for j in there if dense[k, j])
        torch.testing.assert_close(own.weighted_sum(), mail.weighted_sum()[i : i + 1])


def test_a_letter_can_be_read_by_neighbours_only(graph: ClientGraph) -> None:
    mail = Mail.along(graph, np.arange(5), np.arange(5), LETTERS)
    assert torch.equal(mail.letter(1, "c"), LETTERS[2])
    for receiver, sender in ((0, "c"), (0, "a"), (4, "a"), (1, "zoe")):
        with pytest.raises(FedkinError, match=f"client '{'abcde'[receiver]}' has no letter from '{sender}'"):
            mail.letter(receiver, sender)
