"""Which graph? The one under which held-out samples are predicted best (FedRelax, section II-A), for any method with a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedkin.algorithm import Algorithm
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.federation.folds import whole_training, without_fold
from fedkin.graphs import ClientGraph
from fedkin.models import ModelLike
from fedkin.run import train


@dataclass(frozen=True)
class GraphChoice:
    """The candidates and what clients lost on held-out samples under each."""

    losses: Mapping[str, np.ndarray]
    """Candidate → mean loss per held-out sample in each fold, (folds,)."""
    candidates: Mapping[str, ClientGraph | str]

    @property
    def name(self) -> str:
        """The candidate with the smallest mean loss; of equals, the first."""
        return min(self.losses, key=lambda name: float(np.mean(self.losses[name])))

    @property
    def graph(self) -> ClientGraph | str:
        """What to give to `train(graph=…)`."""
        return self.candidates[self.name]

    def __str__(self) -> str:
        width = max(len(name) for name in self.losses)
        return "\n".join(
            f"{'*' if name == self.name else ' '} {name:<{width}}  {np.mean(found):.6g} ± {np.std(found):.2g}"
            for name, found in self.losses.items()
        )


def choose_graph(
    federation: Federation,
    model: ModelLike,
    algorithm: Algorithm,
    candidates: Sequence[str] | Mapping[str, ClientGraph | str],
    folds: int = 3,
    seed: int = 0,
    **options: Any,
) -> GraphChoice:
    """Train with every candidate on folds inside the training samples, and compare the loss on what was held out.

    A candidate is a description (`"knn:5"`, `"statistics"`, `"empty"`: everyone alone) or a graph with a name. Every client cuts its own
    training and validation samples; graphs made from data are made without the fold. Test samples are not
    touched: they are not part of these runs. `options` are those of a run (rounds, dtype, …); the loss is of the model the method deploys
    after its last round. The cost is candidates × folds runs.
    """
    named = dict(candidates) if isinstance(candidates, Mapping) else {spec: spec for spec in candidates}
    if not named:
        raise FedkinError("no graph to choose from; give at least one, for example ['statistics', 'empty']")
    if folds < 2:
        raise FedkinError(f"folds = {folds}; at least 2 are needed")
    given = replace(whole_training(federation), source={})
    cut = [without_fold(given, folds, fold, seed) for fold in range(folds)]
    losses = {}
    for name, graph in named.items():
        found = []
        for part in cut:
            result = train(part, model, algorithm, graph, seed=seed, **{"progress": False, **options})
            sizes, own = part.validation.sizes, np.array(result.metrics["deployed"]["validation_loss"], dtype=float)
            found.append(float(np.average(own[sizes > 0], weights=sizes[sizes > 0])))
        losses[name] = np.array(found)
    return GraphChoice(losses, named)
