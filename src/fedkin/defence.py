"""Defence: what `robust` or client-level `privacy` asks for, around the coupling of a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedkin.clients import Clients
from fedkin.couplings import Coupling, aggregation
from fedkin.couplings.noisy import Noisy
from fedkin.couplings.robust import NormBounded, Robust, RobustRule, clipping, of_clipped, replacing
from fedkin.couplings.trust import by_direction, by_evidence
from fedkin.errors import FedkinError, unknown
from fedkin.local.transfer import TRANSFER, in_pieces
from fedkin.models import Layout
from fedkin.privacy.settings import Privacy
from fedkin.streams import Streams

EVIDENCE, DIRECTION, NORM = "evidence", "direction", "norm"
RULES: dict[str, tuple[Callable[..., RobustRule], float | None, tuple[float, float]]] = {
    "clip": (clipping, 1.0, (0, np.inf)),
    "trimmed": (lambda share: replacing(partial(aggregation.trimmed_mean, share=share)), 0.25, (0, 0.5)),
    "median": (lambda: replacing(aggregation.median), None, (0, 0)),
    "winsor": (lambda factor: replacing(partial(aggregation.winsorised, factor=factor)), 5.0, (0, np.inf)),
    "krum": (lambda share: replacing(partial(aggregation.krum, share=share)), 0.25, (0, 0.5)),
    "bulyan": (lambda share: replacing(partial(aggregation.bulyan, share=share)), 0.25, (0, 0.5)),
    "geometric-median": (lambda: replacing(aggregation.geometric_median), None, (0, 0)),
}
"""Name → the rule of a strength, the usual strength (None: it has none) and the range it may have."""
BOUND = 3.0
"""Of the clipping after weights fell by trust: times the median distance."""
COORDINATES = 8.0
"""Of `winsor` after that, where trust is by direction: a backdoor goes along with the others but for a few coordinates."""
STRENGTHS: dict[str, tuple[float | None, tuple[float, float]]] = {
    **{name: (usual, range_) for name, (_, usual, range_) in RULES.items()},
    NORM: (2.0, (0, np.inf)),
    EVIDENCE: (1.0, (0, np.inf)),
    DIRECTION: (1.0, (0, np.inf)),
}


def parsed(robust: str) -> tuple[str, float | None]:
    """The name and the strength of a defence: "clip" is ("clip", 1.0), "clip:2" is ("clip", 2.0)."""
    name, _, number = robust.partition(":")
    if name not in STRENGTHS:
        raise unknown("defence", name, list(STRENGTHS))
    usual, (low, high) = STRENGTHS[name]
    if not number:
        return name, usual
    try:
        strength = float(number)
    except ValueError:
        strength = np.nan
    if usual is None or not low <= strength <= high:
        range_ = "it has no strength" if usual is None else f"give a number from {low:g} to {high:g}"
        raise FedkinError(f"robust={robust!r}: {range_}, for example robust={name!r}")
    return name, strength


def rule_of(robust: str) -> RobustRule:
    """The rule of a defence that looks at rows alone."""
    name, strength = parsed(robust)
    make = RULES[name][0]
    return make() if strength is None else make(strength)


def rule_for_letters(robust: str) -> RobustRule:
    """The rule of a client that knows its own row and its neighbours' letters, and nothing of how they came about."""
    name, strength = parsed(robust)
    if name in (EVIDENCE, DIRECTION):
        return clipping(BOUND)  # weights have fallen already, or nothing is known of directions
    return clipping(strength or 0.0) if name == NORM else rule_of(robust)


@dataclass(frozen=True)
class Noising:
    """Clients `ids` are hidden as a whole: their updates clipped, and noise added that fits the coupling of the round."""

    privacy: Privacy
    ids: np.ndarray
    round: int

    def around(self, coupling: Coupling, trained: Tensor, before: Tensor, columns: Tensor | None = None) -> Coupling:
        """The private form of a coupling of `trained` rows (K, B), which clients began at `before`."""
        start, seed = before if columns is None else before[:, columns], self.privacy.insecure_noise_seed
        word = None if seed is None else Streams(seed).integer("coupling noise", self.round)
        return Noisy(coupling, start, self.ids, self.privacy.clip, self.privacy.client_noise, word)


@dataclass(frozen=True)
class Defence:
    """A defence for one round: it may ask the clients what they think of each other's models (`evidence`)."""

    robust: str
    clients: Clients
    private: tuple[str, ...]
    """Tensors that never leave a client: it tries other models with its own in their place."""
    layout: Layout
    home: Mapping[str, Any] = field(default_factory=dict)
    """What questions say of tensors that the run keeps at home (`Setting.at_home`)."""

    def around(self, coupling: Coupling, trained: Tensor, before: Tensor, columns: Tensor | None = None) -> Coupling:
        """The robust form of a coupling of `trained` rows (K, B), which clients began at `before`."""
        name, strength = parsed(self.robust)
        start = before if columns is None else before[:, columns]
        if name == NORM:
            return NormBounded(coupling, start, strength or 0.0)
        if name == EVIDENCE:
            return Robust(
                coupling, clipping(BOUND), by_evidence(lambda pairs: self.tried(trained, pairs), strength or 0.0)
            )
        if name == DIRECTION:
            rule = of_clipped(rule_of(f"winsor:{COORDINATES}"), BOUND)
            return Robust(coupling, rule, by_direction(start, strength or 0.0))
        return Robust(coupling, rule_of(self.robust))

    def tried(self, models: Tensor, pairs: sp.csr_array) -> tuple[sp.csr_array, np.ndarray]:
        """The loss of model j on client i's validation samples (training samples, where it has none), on the given pairs, and
        its noise (K,).

        A client that does not answer finds all models alike.
        """
        shared = models[:, ~self.layout.mask(self.private)] if self.private else models
        losses, noise, degrees = pairs.copy(), np.zeros(pairs.shape[0]), np.diff(pairs.indptr)
        for degree in np.unique(degrees[degrees > 0]):
            asked = np.flatnonzero(degrees == degree)
            for some in in_pieces(len(asked), int(degree) * shared.shape[1] * shared.element_size()):
                ids = asked[some]
                peers = np.stack([pairs.indices[slice(*pairs.indptr[k : k + 2])] for k in ids])
                tried = {"models": shared[torch.as_tensor(peers.astype(np.int64))]}
                told = self.clients.ask(TRANSFER, ids, tried, {"private": self.private, "held_out": True, **self.home})
                for k, found in zip(told.ids, told["transfer"].cpu().numpy()):
                    losses.data[slice(*losses.indptr[k : k + 2])] = found
                noise[told.ids] = told["noise"].cpu().numpy()
        return losses, noise
