"""Layout: running variances after mixing."""

import torch
from torch import nn

from fedkin.models import Layout

LAYOUT = Layout.of(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))


def with_variances(*rows: list[float]) -> torch.Tensor:
    placed = torch.full((len(rows), LAYOUT.width), -1.0)
    placed[:, LAYOUT.variance_columns] = torch.tensor(rows)
    return placed


def test_a_negative_variance_is_put_at_the_epsilon_or_what_the_client_had() -> None:
    mixed = with_variances([-1.0, -1.0, 0.5])
    LAYOUT.keep_positive(mixed, with_variances([2.0, 1e-9, 2.0]))
    assert torch.equal(mixed, with_variances([1e-5, 1e-9, 0.5]))


def test_an_average_of_tiny_variances_passes_unchanged() -> None:
    """Also where it is below what the client had itself: FedPnP's limit is FedAvg."""
    own = with_variances([8e-6, 0.0, 1.0], [2e-6, 0.0, 3.0])
    mixed = own.mean(dim=0, keepdim=True).expand(2, -1).clone()
    LAYOUT.keep_positive(mixed, own)
    assert torch.equal(mixed, own.mean(dim=0, keepdim=True).expand(2, -1))
