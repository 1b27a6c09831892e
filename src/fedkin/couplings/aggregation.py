"""Robust aggregation: one row from several, of which some may be anything.

Every rule takes values (d, B) and weights (d,) that sum to 1, and gives the row (B,) and the share each value has in it (d,),
averaged over coordinates where it differs between them. None of them knows who is hostile.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

Aggregate = tuple[Tensor, Tensor]
STEPS, CLOSE = 100, 1e-9
"""Iterations of the geometric median at most, and the relative change that ends them."""


def trimmed_mean(values: Tensor, weights: Tensor, share: float = 0.25) -> Aggregate:
    """The mean of what is left when, in every coordinate, the weight `share` is cut off at both ends.

    share = 0 is the weighted mean, share = 0.5 the weighted median (halfway between two where the weight is split evenly).
    Reference: Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, 2018.

    >>> trimmed_mean(torch.tensor([[0.0], [2.0], [4.0], [99.0]]), torch.full((4,), 0.25), share=0.25)[0]
    tensor([3.])
    """
    share = min(share, 0.5 - 1e-9)
    order = values.argsort(dim=0, stable=True)
    sorted_weights = weights.double()[order]
    above = sorted_weights.cumsum(dim=0)
    kept = (above.clamp(max=1 - share) - (above - sorted_weights).clamp(min=share)).clamp(min=0)
    shares = torch.zeros_like(kept).scatter_(0, order, kept / kept.sum(dim=0))
    return _combined(values, shares), shares.mean(dim=1)


def median(values: Tensor, weights: Tensor) -> Aggregate:
    """The weighted median of every coordinate."""
    return trimmed_mean(values, weights, share=0.5)


def middle(values: Tensor, weights: Tensor) -> Tensor:
    """The row of `median`, float64, without the shares: in a third of the time, by NumPy's sort, which keeps no order of ties."""
    if not values.is_cpu:
        return median(values.double(), weights)[0]
    exact = values.double().numpy()
    order = np.argsort(exact, axis=0)
    above = torch.from_numpy(weights.double().numpy()[order]).cumsum(dim=0).numpy()  # NumPy's takes four times as long
    ends = [np.minimum((above <= half).sum(axis=0, keepdims=True), len(exact) - 1) for half in (0.5 - 1e-9, 0.5 + 1e-9)]
    low, high = (np.take_along_axis(exact, np.take_along_axis(order, end, axis=0), axis=0)[0] for end in ends)
    return torch.from_numpy((low + high) / 2)


def winsorised(values: Tensor, weights: Tensor, factor: float = 5.0) -> Aggregate:
    """The mean of values that are first moved, in every coordinate, to at most r from its weighted median:

        Σ_j m_j (c + clip(w_j − c, −r, r)),   c = median of w_j,   r = factor·1.4826·median of |w_j − c|

    (1.4826 times the median deviation is the standard deviation of normal numbers.) factor = ∞ is the weighted mean. Who
    differs from all others in a few coordinates, as a backdoor has to, moves these no further than its neighbours do; a
    coordinate that fewer than half of the values, by weight, move stays at its median. The mean of what Tukey and McLaughlin
    called a Winsorised sample, 1963, with bounds from the median deviation (Hampel, 1974).

    >>> winsorised(torch.tensor([[0.0], [1.0], [2.0], [3.0], [999.0]]), torch.full((5,), 0.2), factor=1 / 1.4826)[0]
    tensor([2.])
    """
    exact, weights = values.double(), weights.double()
    centre = middle(exact, weights)
    apart = exact - centre
    length = apart.abs()
    reach = factor * 1.4826 * middle(length, weights) if factor < torch.inf else torch.inf
    kept = torch.where(length <= reach, 1.0, reach / length)
    shares = weights * kept.mean(dim=1)
    return (centre + weights @ (apart * kept)).to(values.dtype), shares / shares.sum()


def geometric_median(values: Tensor, weights: Tensor) -> Aggregate:
    """argmin_v Σ_j m_j ‖w_j − v‖, by Weiszfeld's iteration from the coordinate-wise median.

    Reference: Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning, 2022.
    """
    exact, weights = values.double(), weights.double()
    centre, shares = middle(exact, weights), weights
    for _ in range(STEPS):
        apart = (exact - centre).norm(dim=1)
        pull = weights / apart.clamp(min=1e-12 * max(1.0, float(apart.median())))
        shares = pull / pull.sum()
        before, centre = centre, shares @ exact
        if float((centre - before).norm()) <= CLOSE * float(centre.norm().clamp(min=CLOSE)):
            break
    return centre.to(values.dtype), shares


def krum(values: Tensor, weights: Tensor, share: float = 0.25) -> Aggregate:
    """The value with the least Σ ‖w_j − w_l‖² to its n − f − 2 nearest others, f = ⌊share·n⌋; weights do not count.

    Of one or two values none is the odd one out: their mean. Reference: Blanchard et al., Machine Learning with
    Adversaries: Byzantine Tolerant Gradient Descent, 2017.
    """
    if len(values) < 3:
        return _combined(values, weights.double()[:, None]), weights.double()
    shares = torch.zeros(len(values), dtype=torch.float64)
    shares[int(_krum_scores(_squares(values), int(share * len(values))).argmin())] = 1
    return _combined(values, shares[:, None]), shares


def bulyan(values: Tensor, weights: Tensor, share: float = 0.25) -> Aggregate:
    """Krum chooses θ = n − 2f values one after the other; per coordinate, the mean of the θ − 2f nearest their median.

    f = ⌊share·n⌋, at most (n − 3)/4 as the rule needs; f = 0 is the plain mean. Weights do not count. Reference: El Mhamdi,
    Guerraoui and Rouault, The Hidden Vulnerability of Distributed Learning in Byzantium, 2018.
    """
    n = len(values)
    f = max(0, min(int(share * n), (n - 3) // 4))
    left, squares = list(range(n)), _squares(values)
    while len(left) > 2 * f:
        among = torch.tensor(left)
        left.pop(int(_krum_scores(squares[among][:, among], f).argmin()))
    chosen = torch.tensor(sorted(set(range(n)) - set(left)), dtype=torch.int64)
    picked = values[chosen].double()
    nearest = (picked - picked.quantile(0.5, dim=0)).abs().argsort(dim=0, stable=True)[: len(chosen) - 2 * f]
    shares = torch.zeros(values.shape, dtype=torch.float64)
    own = torch.zeros_like(picked).scatter_(0, nearest, 1 / len(nearest))
    shares[chosen] = own
    return _combined(values, shares), shares.mean(dim=1)


def _squares(values: Tensor) -> Tensor:
    """‖w_j − w_l‖², (d, d), float64, with no share of itself: infinity on the diagonal."""
    exact = values.double()
    squares = torch.stack([(exact - row).square().sum(dim=1) for row in exact])
    return squares.fill_diagonal_(torch.inf)


def _krum_scores(squares: Tensor, f: int) -> Tensor:
    nearest = max(1, min(len(squares) - f - 2, len(squares) - 1))
    return squares.sort(dim=1).values[:, :nearest].sum(dim=1)


def _combined(values: Tensor, shares: Tensor) -> Tensor:
    """Σ_j share_j w_j in every coordinate, in float64, as the values' own dtype; what has no share is not read."""
    exact = torch.where(shares == 0, 0.0, values.double())
    return (exact * shares).sum(dim=0).to(values.dtype)
