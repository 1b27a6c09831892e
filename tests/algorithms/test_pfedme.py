from __future__ import annotations

from typing import Any

import pytest
import torch

from fedkin.algorithms.pfedme import PFedMe
from fedkin.errors import FedkinError

SETTINGS = {"lr": 0.02, "lam": 4.0, "batch_size": 6, "inner_steps": 3, "personal_lr": 0.15}


@pytest.mark.parametrize("beta", [1.0, 1.6])
def test_two_rounds_of_the_plain_loop(federation: Any, plain: Any, run: Any, models: Any, beta: float) -> None:
    method = PFedMe(**SETTINGS, beta=beta)
    done = run(federation, "mlp:4", method, cohort=3)
    w = plain.initial

    def local(k: int, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        own, theta = w, w
        for x, y in plain.batches(k, method, t):
            for _ in range(3):
                theta = theta - 0.15 * (plain.gradient(theta, x, y) + 4.0 * (theta - own))
            own = own - 0.02 * 4.0 * (own - theta)
        return own, theta

    for t in (1, 2):
        answers = [local(int(k), t)[0] for k in method.cohort(t, 3, done.setting)]
        w = (1 - beta) * w + beta * sum(answers) / 3
    assert torch.allclose(done.state.rows[0], w, atol=1e-12)
    personal = torch.stack([local(k, 3)[1] for k in range(len(federation))])
    assert torch.allclose(models(done), personal, atol=1e-12)


def test_theta_is_the_proximal_point(build: Any, run: Any, models: Any) -> None:
    """With many inner steps ∇f(θ) + λ(θ − w) = 0: the gradient of the proximal term is there, and it is right."""
    data = build((20, 14), "regression")
    done = run(data, "linear", PFedMe(lr=1e-9, lam=3.0, inner_steps=2000, personal_lr=0.02, batch_size=100), rounds=1)
    theta, w = models(done), done.state.rows
    for k, (x, y) in enumerate(data.train):
        slope = 2 * x.T @ (x @ theta[k].numpy() - y) / len(y)
        assert torch.allclose(torch.as_tensor(slope), -3.0 * (theta[k] - w[k]), atol=1e-5)
        assert (theta[k] - w[k]).norm() > 0.01


def test_a_strong_pull_keeps_theta_at_the_common_model(federation: Any, run: Any, models: Any) -> None:
    far = [
        (models(done) - models(done, "pre")).norm()
        for lam in (1.0, 100.0)
        for done in [run(federation, "mlp:4", PFedMe(lr=1e-4, lam=lam, personal_lr=0.01, inner_steps=20), rounds=1)]
    ]
    assert far[1] < 0.1 * far[0]


@pytest.mark.parametrize("bad", [{"lam": 0}, {"beta": 0}, {"inner_steps": 0}, {"personal_lr": -1}])
def test_parameters_out_of_range(bad: dict[str, float]) -> None:
    with pytest.raises(FedkinError, match=f"pfedme: {next(iter(bad))} = .* greater than"):
        PFedMe(**bad)


def test_gamma_is_one_over_lambda_unless_told() -> None:
    assert PFedMe().lr * PFedMe().lam == 1
    assert PFedMe(lam=4.0).lr == 0.25
    assert PFedMe(lam=4.0, lr=0.1).lr == 0.1


def test_inner_steps_that_must_grow_are_refused_before_training(federation: Any, run: Any) -> None:
    with pytest.raises(FedkinError, match=r"personal_lr·lam = 3 .*keep personal_lr below 0\.133"):
        run(federation, "mlp:4", PFedMe(lam=15.0, personal_lr=0.2))


@pytest.mark.parametrize(("times", "settles"), [(0.98, True), (1.02, False)])
def test_inner_steps_settle_while_the_rate_times_lambda_and_smoothness_is_below_two(
    build: Any, run: Any, models: Any, times: float, settles: bool
) -> None:
    """Least squares has β = 2·λ_max(XᵀX)/n: θ goes to the proximal point for γ_p(λ + β) < 2, and away from it beyond."""
    data = build((20,), "regression")
    x, y = (torch.as_tensor(part) for part in data.train[0])
    beta = 2 * float(torch.linalg.eigvalsh(x.T @ x / len(y))[-1])
    rate = times * 2 / (1.0 + beta)
    assert rate < 2  # γ_p·λ < 2 would allow both
    method = PFedMe(lr=1e-9, lam=1.0, inner_steps=300, personal_lr=rate, batch_size=100, halvings=0)
    done = run(data, "linear", method, rounds=1)
    theta, w = models(done)[0], done.state.rows[0]
    slope = 2 * x.T @ (x @ theta - y) / len(y) + (theta - w)
    assert (float(slope.norm()) < 0.1) == settles
