"""GraphFilter: a graph denoiser applied to stacked rows (the server step of FedPnP)."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import scipy  # its parts are imported when they are first used
import torch

from fedkin.compute.memory import uninitialised
from fedkin.couplings import denoisers, solvers
from fedkin.couplings.coupling import Coupling
from fedkin.couplings.denoisers import Denoiser, Response, Strength
from fedkin.errors import FedkinError, unknown
from fedkin.graphs import ClientGraph, spectrum
from fedkin.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Sequence

Fidelity = Literal["size_weighted", "none", "row_normalised", "literal"]

DENSE_LIMIT = 3_000
"""Up to this many clients the filter is one K×K matrix, applied every round; above, nothing of that size is formed."""

RANK_LIMIT = 500
"""The most modes computed for the hard filter above the dense limit."""


class GraphFilter(Coupling):
    """Ψ = M Ω, with M made of a response h over the graph's spectrum, H = V diag(h(λ)) Vᵀ, and the client sizes.

    `denoiser` is a registered name (soft, hard, heat, tikhonov) or a function h(λ, strength); `sizes` (K,) are the
    clients' numbers of samples (default: equal), ζ = sizes / Σ sizes, Z = diag(K·ζ). `fidelity` says where they enter:

    * `size_weighted`: in the penalty that ties Ψ to Ω. soft and tikhonov: (Z + β₁L + β₂L²)⁻¹ Z; hard:
      U(UᵀZU)⁻¹UᵀZ with U the kept modes; any other: H(ζ∘Ω) / Hζ. Rows of M sum to 1; at strength 0 (τ = K) every client
      keeps its row, at strength → ∞ (τ = 1) all get the mean Σ ζ_j w_j.
    * `none`: HΩ. `row_normalised`: H(ζ∘Ω) / Hζ for every denoiser. `literal`: H(ζ∘Ω), equation 13 as printed.

    `factor2` doubles β (equation 10 instead of 12). Up to 3,000 clients M is formed; above, conjugate gradient,
    Chebyshev polynomials or Lanczos work on the sparse Laplacian.

    >>> pair = ClientGraph([[0, 1], [1, 0]])
    >>> GraphFilter(pair, "tikhonov", 0.5).matrix()
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """

    def __init__(
        self,
        graph: ClientGraph,
        denoiser: str | Response | Denoiser = "soft",
        strength: Strength = 1.0,
        sizes: Sequence[float] | np.ndarray | None = None,
        fidelity: Fidelity = "size_weighted",
        factor2: bool = False,
    ) -> None:
        self.graph, self.clients = graph, len(graph)
        self.denoiser = denoiser if isinstance(denoiser, Denoiser) else denoisers.find_denoiser(denoiser)
        self.denoiser.check(strength, self.clients)
        self.strength = strength
        if fidelity not in get_args(Fidelity):
            raise unknown("fidelity", fidelity, get_args(Fidelity))
        self.fidelity = fidelity
        if factor2:
            if self.denoiser.penalty is None:
                raise FedkinError(f"factor2 doubles β, which the denoiser {self.denoiser.name!r} does not have")
            beta1, beta2 = self.denoiser.penalty(strength)
            self.strength = (2 * beta1, 2 * beta2)
        self.zeta = shares(sizes, graph)
        self._uniform = bool(np.ptp(self.zeta) == 0)
        weighted, penalty, rank = fidelity == "size_weighted", self.denoiser.penalty is not None, self.denoiser.rank
        self._penalised, self._projects = weighted and penalty, weighted and rank
        """Whether it is solved as (Z + β₁L + β₂L²)⁻¹Z, or projects on modes."""
        self._divides = fidelity == "row_normalised" or (weighted and not penalty and not rank)
        self._dense = self.clients <= DENSE_LIMIT
        self._typed: dict[torch.dtype, torch.Tensor] = {}
        if not (self.denoiser.penalty or self.denoiser.rank):  # a function we do not know: try it before any training
            self.response(graph.eigen()[0] if self._dense else np.linspace(0, graph.lambda_bound(), 64))
        if self.denoiser.rank and not self._dense:
            self._modes_kept()  # raises where they are too many
        if self._divides:
            self._denominator  # noqa: B018  (raises where it is near zero)

    def response(self, lambdas: np.ndarray | None = None) -> np.ndarray:
        """h(λ) at `lambdas` (default: the eigenvalues of the graph)."""
        return self.denoiser.evaluate(self.graph.eigen()[0] if lambdas is None else np.asarray(lambdas), self.strength)

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        rows = self._check(rows)
        if self._dense:
            if rows.dtype not in self._typed:
                self._typed[rows.dtype] = torch.as_tensor(self._operator).to(rows.dtype)
            operator = self._typed[rows.dtype]
            return torch.mm(operator, rows, out=uninitialised((len(operator), rows.shape[1]), rows.dtype, rows.device))
        if self._penalised:
            return self._filter(rows)
        if self._projects:
            return self._project(rows)
        zeta, one = torch.as_tensor(self.zeta)[:, None].to(rows.dtype), self.fidelity == "none"
        filtered = self._filter(rows if one else zeta * rows)
        return filtered / torch.as_tensor(self._denominator)[:, None].to(rows.dtype) if self._divides else filtered

    def matrix(self) -> np.ndarray:
        return self._operator.copy() if self._dense else super().matrix()

    def trace(self, probes: int = 16) -> float:
        """trace(M)/K: 1 for local training, 1/K for full averaging. Above the dense limit estimated (Hutchinson) from
        `probes` random signs per client."""
        if self._dense:
            return float(np.trace(self._operator)) / self.clients
        signs = Streams(0).generator("hutchinson").integers(0, 2, size=(self.clients, probes)) * 2.0 - 1.0
        probe = torch.as_tensor(signs).float()  # an estimate has no use for more digits
        return float((probe * self.apply(probe)).sum(dtype=torch.float64)) / (probes * self.clients)

    def __repr__(self) -> str:
        return f"GraphFilter({self.denoiser.name}, strength={self.strength}, {self.fidelity}, {self.clients} clients)"

    # ---- formulas ----------------------------------------------------------------------------------------------------

    @cached_property
    def _denominator(self) -> np.ndarray:
        """Hζ, shape (K,), refused where it is too small to divide by."""
        if self._dense:
            lambdas, vectors = self.graph.eigen()
            values = (vectors * self.denoiser.evaluate(lambdas, self.strength)) @ (vectors.T @ self.zeta)
        else:
            values = self._filter(torch.as_tensor(self.zeta[:, None]))[:, 0].cpu().numpy()
        small = np.flatnonzero(abs(values) < 1e-8 * abs(values).max())
        if len(small) or not values.any():
            name = self.graph.names[small[0] if len(small) else 0]
            raise FedkinError(
                f"client {name!r}: the denoiser {self.denoiser.name!r} leaves it no weight to divide by; use "
                "fidelity='none' or another strength"
            )
        return values

    # ---- small graphs: one matrix ------------------------------------------------------------------------------------

    def _spectral(self) -> np.ndarray:
        """H = V diag(h(λ)) Vᵀ, shape (K, K)."""
        values, vectors = self.graph.eigen()
        return (vectors * self.denoiser.evaluate(values, self.strength)) @ vectors.T

    @cached_property
    def _operator(self) -> np.ndarray:
        """M, shape (K, K)."""
        z = self.clients * self.zeta
        if self._penalised and not self._uniform:
            # (Z + VpVᵀ)⁻¹ = VS (S VᵀZV S + S²p)⁻¹ SVᵀ with S = (1 + p)^{-1/2}: well conditioned for any strength.
            values, vectors = self.graph.eigen()
            beta1, beta2 = self._betas
            p = beta1 * values + beta2 * values**2
            scaled = vectors / np.sqrt(1 + p)
            system = (scaled.T * z) @ scaled
            system[np.diag_indices_from(system)] += p / (1 + p)
            return scaled @ scipy.linalg.solve(system, scaled.T * z, assume_a="pos")
        if self._projects and not self._uniform:
            values, vectors = self.graph.eigen()
            kept = vectors[:, self.denoiser.evaluate(values, self.strength) > 0]
            return kept @ scipy.linalg.solve(kept.T * z @ kept, kept.T * z, assume_a="pos")
        spectral = self._spectral()
        if self._divides:
            return spectral * self.zeta / self._denominator[:, None]
        return spectral * self.zeta if self.fidelity == "literal" else spectral

    # ---- large graphs: no K×K ----------------------------------------------------------------------------------------

    @property
    def _betas(self) -> tuple[float, float]:
        assert self.denoiser.penalty is not None
        return self.denoiser.penalty(self.strength)

    @cached_property
    def _ordered(self) -> solvers.Ordered:
        return solvers.Ordered(self.graph.laplacian())

    @cached_property
    def _solve(self) -> solvers.Columns:
        if self.denoiser.penalty is not None:
            weighted = self.fidelity == "size_weighted"
            z = self.clients * self.zeta if weighted else np.ones(self.clients)
            return solvers.conjugate_gradient(self._ordered, z, *self._betas)
        return solvers.chebyshev(self._ordered, self.response, self.graph.lambda_bound())

    def _filter(self, rows: torch.Tensor) -> torch.Tensor:
        """HΩ, or (Z + …)⁻¹ZΩ where sizes are in the penalty."""
        if self.denoiser.rank:
            modes = self._modes.to(rows.dtype)
            return modes @ (modes.T @ rows)
        return self._ordered.blocked(self._solve, rows)

    def _project(self, rows: torch.Tensor) -> torch.Tensor:
        """U(UᵀZU)⁻¹UᵀZΩ."""
        modes, z = self._modes, torch.as_tensor(self.clients * self.zeta)[:, None]
        weighted = (z * modes).to(rows.dtype)
        gram = modes.T @ (z * modes)
        return modes.to(rows.dtype) @ torch.linalg.solve(gram, (weighted.T @ rows).double()).to(rows.dtype)

    def _modes_kept(self) -> int:
        """τ, or the number of components where that is larger."""
        count = max(int(self.strength), int(self.graph.components().max()) + 1)  # type: ignore[arg-type]
        if count > RANK_LIMIT:
            raise FedkinError(
                f"denoiser 'hard' would keep {count:,} modes of {self.clients:,} clients (limit {RANK_LIMIT} above "
                f"{DENSE_LIMIT:,} clients); use a smaller τ, a connected graph, or the denoiser soft"
            )
        return count

    @cached_property
    def _modes(self) -> torch.Tensor:
        """The kept modes, shape (K, τ), float64."""
        count = self._modes_kept()
        return torch.as_tensor(spectrum.smallest(self.graph.laplacian(), count, self.graph.components())[1])


def shares(sizes: Sequence[float] | np.ndarray | None, graph: ClientGraph) -> np.ndarray:
    """ζ = sizes / Σ sizes, shape (K,)."""
    if sizes is None:
        return np.full(len(graph), 1 / len(graph))
    values = np.asarray(sizes, dtype=np.float64)
    if values.shape != (len(graph),):
        raise FedkinError(f"sizes must be one number per client: shape ({len(graph)},), not {values.shape}")
    bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if len(bad):
        raise FedkinError(f"client {graph.names[bad[0]]!r}: its size must be a positive number, not {values[bad[0]]}")
    return values / values.sum()
