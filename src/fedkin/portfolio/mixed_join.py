"""Newcomers of a run over estimators: others' estimators visit them, and nobody else fits anything."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import torch

from fedkin.clients import Traffic
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.models import ModelLike, estimators
from fedkin.models.estimators import Estimators
from fedkin.portfolio.effort import EFFORTS
from fedkin.portfolio.mixed import MEMBERS, VISITORS, Fits, bill_visits, blended_outcome, heard, weighed
from fedkin.portfolio.weights import Prior
from fedkin.result import Result
from fedkin.result.blended import Blends
from fedkin.run import Options
from fedkin.run.deployed import PSEUDO_SAMPLES


def join_mixed(result: Result, newcomers: Federation, model: ModelLike, options: Options) -> Result:
    """`join` where models share no weights. Members are the newcomer's own estimator, the mean of its kin's and that of all.

    At most twenty of the run's estimators visit a newcomer, those of the clients with the nearest statistics. Weights have the
    run's pooled weights as prior.
    """
    begun, traffic = time.perf_counter(), Traffic()
    spec = estimators.of(model, newcomers.names, newcomers.task, getattr(torch, options.dtype))
    run = result.models
    if not isinstance(spec, Estimators) or not isinstance(run, Blends):
        raise FedkinError("the run mixes estimators; give newcomers estimators, not one network for all")
    if "statistics" not in result.extras:
        raise FedkinError(
            f"{result.title} was made by an earlier version, which kept nothing for newcomers; make it again"
        )
    algorithm = result.config["algorithm"]
    fits = Fits(newcomers, spec, options.seed, *EFFORTS[str(algorithm["effort"])].cut(newcomers.train.sizes))
    statistics, whole, size = fits.statistics(), fits.whole(), len(result.names)
    peers = nearest_to(statistics, result.extras["statistics"].numpy())
    visitors = {name: run.fitted[name] for name in (result.names[j] for j in np.unique(peers))}
    theirs = [[visitors[result.names[j]] for j in own] for own in peers]
    bill_visits(traffic, statistics, whole, theirs)
    found = [heard(fits, k, theirs[k], result.sizes[own]) for k, own in enumerate(peers)]
    weights = np.zeros((len(newcomers), size))
    for k, own in enumerate(found):
        weights[k, peers[k]] = own.shares[1:] / own.shares[1:].sum()
    return blended_outcome(
        fits, options, weighed(fits, found, traffic, prior_of(result)), found,
        [np.array([size + k, *own]) for k, own in enumerate(peers)], (*result.names, *newcomers.names),
        {**visitors, **dict(zip(newcomers.names, whole))},
        np.concatenate([result.sizes, newcomers.train.sizes]), traffic, time.perf_counter() - begun, algorithm,
        {"kin_of_peers": torch.from_numpy(weights)}, {"title": "newcomers", "peers": result.names},
    )  # fmt: skip


def nearest_to(statistics: np.ndarray, peers: np.ndarray) -> np.ndarray:
    """The at most twenty peers (P, q) with the nearest statistics for each of (K, q), ascending, (K, p)."""
    distances = ((statistics[:, None] - peers[None]) ** 2).sum(axis=2)
    return np.sort(np.argsort(distances, axis=1, kind="stable")[:, :VISITORS], axis=1)


def prior_of(result: Result) -> Prior:
    """What the run has learned about its members."""
    pooled: Mapping[str, float] = result.facts["pooled"]
    gain = float(result.facts["mean_gain"]), float(result.facts.get("gain_samples", PSEUDO_SAMPLES))
    return Prior(np.ones(len(MEMBERS)), np.array([float(pooled[name]) for name in MEMBERS]), *gain)
