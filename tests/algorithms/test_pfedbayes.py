from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import softplus

from fedkin.algorithms.pfedbayes import PFedBayes, divergence, posterior_slopes, prior_slopes
from fedkin.compute.steps import step_rule
from fedkin.errors import FedkinError

SETTINGS = {"lr": 0.02, "batch_size": 6, "zeta": 0.7, "inner_steps": 2, "rho": -2.0}


def beliefs(seed: int) -> torch.Tensor:
    return torch.randn((2, 6), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_divergence_is_the_gaussian_one_and_its_gradients_are_right() -> None:
    q, p = beliefs(0).requires_grad_(), beliefs(1).requires_grad_()
    value = divergence(q, p)
    exact = kl_divergence(Normal(q[:, :3], softplus(q[:, 3:])), Normal(p[:, :3], softplus(p[:, 3:]))).sum(dim=1)
    assert torch.allclose(value, exact)
    slopes, epsilon, zeta = beliefs(2)[:, :3], beliefs(3)[:, :3], torch.tensor([[0.7], [0.2]], dtype=torch.float64)
    drawn = ((q[:, :3] + softplus(q[:, 3:]) * epsilon) * slopes).sum(dim=1)
    (expected,) = torch.autograd.grad((drawn + zeta[:, 0] * value).sum(), q, retain_graph=True)
    deviation, precision = softplus(q[:, 3:]).detach(), softplus(p[:, 3:]).detach() ** -2
    found = torch.empty_like(q)
    posterior_slopes(q.detach(), p.detach(), zeta, slopes, epsilon, deviation, precision, found)
    assert torch.allclose(found, expected, atol=1e-12)
    assert torch.allclose(prior_slopes(q.detach(), p.detach()), torch.autograd.grad(value.sum(), p)[0], atol=1e-12)
    assert torch.allclose(divergence(p, p), torch.zeros(2, dtype=torch.float64))


def test_adam_is_torchs_adam() -> None:
    ours, theirs = beliefs(2), beliefs(2).requires_grad_()
    adam, optimiser = step_rule("adam", ours, 0.05), torch.optim.Adam([theirs], lr=0.05)
    for seed in range(5):
        adam.step(ours, beliefs(10 + seed))
        theirs.grad = beliefs(10 + seed)
        optimiser.step()
    assert torch.allclose(ours, theirs)


def test_two_rounds_of_the_plain_loop(federation: Any, plain: Any, run: Any, models: Any) -> None:
    """Autograd through the whole evidence bound and torch.optim.Adam, client by client."""
    method = PFedBayes(**SETTINGS, beta=0.8)
    done = run(federation, "mlp:4", method, cohort=3)
    n = len(plain.initial)
    common = torch.cat([plain.initial, torch.full_like(plain.initial, -2.0)])
    own = [common.clone() for _ in range(4)]
    for t in (1, 2):
        copies = []
        for k in method.cohort(t, 3, done.setting):
            q, p = own[k].clone().requires_grad_(), common.clone().requires_grad_()
            personal, prior = torch.optim.Adam([q], lr=0.02), torch.optim.Adam([p], lr=0.02)
            draws = torch.Generator().manual_seed(int(plain.words(k, t)[0]) >> 1)

            def gap(q: torch.Tensor = q, p: torch.Tensor = p) -> torch.Tensor:
                return kl_divergence(Normal(q[:n], softplus(q[n:])), Normal(p[:n], softplus(p[n:]))).sum()

            for x, y in plain.batches(k, method, t):
                for _ in range(2):
                    theta = q[:n] + softplus(q[n:]) * torch.empty(n, dtype=torch.float64).normal_(generator=draws)
                    personal.zero_grad()
                    (plain.loss(theta, x, y) + 0.7 / plain.sizes[k] * gap()).backward()
                    personal.step()
                prior.zero_grad()
                gap().backward()
                prior.step()
            own[k] = q.detach()
            copies.append(p.detach())
        common = 0.2 * common + 0.8 * sum(copies) / 3
    assert torch.allclose(done.state.rows[0], common[:n], atol=1e-9)
    assert torch.allclose(done.state.arrays["rho"], common[n:], atol=1e-9)
    assert torch.allclose(done.clients.snapshot()["posterior"], torch.stack(own), atol=1e-9)


def test_an_infinite_pull_keeps_the_posterior_at_the_prior(federation: Any, run: Any) -> None:
    free, tied = (
        run(federation, "mlp:4", PFedBayes(**{**SETTINGS, "zeta": zeta}), rounds=5).clients.snapshot()["posterior"]
        for zeta in (0.0, 1e6)
    )
    assert (tied - tied.mean(dim=0)).norm() < 0.5 * (free - free.mean(dim=0)).norm()


def test_refuses_layers_it_has_no_belief_about(federation: Any, run: Any) -> None:
    with pytest.raises(FedkinError, match=r"'features\.2' is a BatchNorm1d"):
        run(federation, "bn-mlp:4", PFedBayes())
    with pytest.raises(FedkinError, match="'1' is a LayerNorm"):
        run(federation, lambda: nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)), PFedBayes())


def test_takes_convolutions(federation: Any, run: Any) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))

    assert torch.isfinite(run(federation, net, PFedBayes(**SETTINGS)).state.rows).all()
