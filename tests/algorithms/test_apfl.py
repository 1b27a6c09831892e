from __future__ import annotations

from typing import Any

import pytest
import torch

from fedkin.algorithms.apfl import APFL
from fedkin.algorithms.fedavg import FedAvg
from fedkin.algorithms.local import Local
from fedkin.errors import FedkinError

SETTINGS = {"lr": 0.1, "batch_size": 6}


@pytest.mark.parametrize("model", ["mlp:4", "bn-mlp:4"])
@pytest.mark.parametrize(("alpha", "limit"), [(0.0, FedAvg), (1.0, Local)])
def test_fixed_shares_at_the_ends(federation: Any, run: Any, models: Any, model: str, alpha: float, limit: Any) -> None:
    """Share 0 deploys FedAvg's model after local training, share 1 is Local."""
    ours = run(federation, model, APFL(**SETTINGS, momentum=0.5, alpha=alpha, adaptive=False, weights="size"), rounds=3)
    theirs = run(federation, model, limit(**SETTINGS, momentum=0.5), rounds=3)
    n = ours.setting.spec.layout.n_parameters  # buffers of the mixture are the client's own
    assert torch.allclose(models(ours)[:, :n], models(theirs)[:, :n], atol=1e-12)


@pytest.mark.parametrize(("adaptive", "weights"), [(False, "equal"), (True, "equal"), (True, "size")])
def test_two_rounds_of_the_plain_loop(federation: Any, plain: Any, run: Any, adaptive: bool, weights: Any) -> None:
    """Gradients with respect to v and α by autograd of f(αv + (1 − α)w)."""
    method = APFL(**SETTINGS, alpha=0.4, adaptive=adaptive, weights=weights)
    counts = plain.sizes if weights == "size" else plain.sizes * 0 + 1
    done = run(federation, "mlp:4", method, cohort=3)
    w, own = plain.initial, [plain.initial] * 4
    share = [torch.tensor(0.4, dtype=torch.float64)] * 4
    for t in (1, 2):
        chosen, trained = method.cohort(t, 3, done.setting), []
        for k in chosen:
            u, v, alpha = w, own[k], share[k]
            for step, (x, y) in enumerate(plain.batches(k, method, t)):
                v_, alpha_ = v.clone().requires_grad_(), alpha.clone().requires_grad_()
                loss = plain.loss(alpha_ * v_ + (1 - alpha_) * u, x, y)
                slope_v, slope_alpha = torch.autograd.grad(loss, (v_, alpha_))
                u, v = u - 0.1 * plain.gradient(u, x, y), v - 0.1 * slope_v
                if adaptive and step == 0:
                    alpha = (alpha - 0.1 * slope_alpha).clamp(0, 1)
            own[k], share[k] = v, alpha
            trained.append(u * counts[k])
        w = sum(trained) / counts[chosen].sum()
    kept = done.clients.snapshot()
    assert torch.allclose(done.state.rows[0], w, atol=1e-12)
    assert torch.allclose(kept["own"], torch.stack(own), atol=1e-12)
    assert torch.allclose(kept["alpha"], torch.stack(share), atol=1e-12)
    assert bool((kept["alpha"] != 0.4).any()) == adaptive


def test_parameters_out_of_range() -> None:
    with pytest.raises(FedkinError, match=r"apfl: alpha = 2 is not allowed: .* less than or equal to 1"):
        APFL(alpha=2)
