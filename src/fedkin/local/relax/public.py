"""Public points: unlabelled inputs at which clients compare their predictions."""

from __future__ import annotations

import numpy as np

from fedkin.errors import FedkinError, unknown
from fedkin.local.shard import Shard

SOURCES = ("auto", "given", "drawn", "normal", "uniform")


def parse_source(text: str) -> tuple[str, tuple[float, float]]:
    """The source of public points and its two numbers.

    >>> parse_source("normal"), parse_source("uniform:0,16")
    (('normal', (0.0, 1.0)), ('uniform', (0.0, 16.0)))
    """
    name, _, option = text.partition(":")
    if name not in SOURCES:
        raise unknown("source of public points", name, SOURCES)
    if not option:
        return name, (-1.0, 1.0) if name == "uniform" else (0.0, 1.0)
    try:
        first, second = (float(part) for part in option.split(","))
    except ValueError:
        first = second = float("nan")
    good = first < second if name == "uniform" else second > 0
    if name not in ("normal", "uniform") or not (np.isfinite(first) and np.isfinite(second) and good):
        raise FedkinError(f"public {text!r} is not understood; write normal:mean,std or uniform:low,high")
    return name, (first, second)


def sampled(source: str, numbers: tuple[float, float], shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Points of a stated distribution, every entry independent: N(mean, std²) or U(low, high)."""
    return rng.uniform(*numbers, size=shape) if source == "uniform" else rng.normal(*numbers, size=shape)


def own_points(shard: Shard, k: int, text: str, size: int, common: bool, clients: int) -> tuple[np.ndarray, bool]:
    """The public points (m, *input) of client k of a shard, and whether they are the same for all clients.

    given: those of the federation; normal, uniform: `size` made-up points; auto: given ones where there are any, else
    made up, N(0, I). drawn: some of the client's own training inputs, which its neighbours will see, so it takes this
    word (for a common set every client contributes size/K of them, and they still have to be put together).
    """
    federation, name, streams = shard.federation, shard.names[k], shard.streams
    source, numbers = parse_source(text)
    given = federation.public or {}
    if source == "auto":
        source = "given" if given else "normal"
    if source == "given":
        everyone = (common and "*" in given) or name not in given
        whose = "*" if everyone else name
        if whose not in given or (common and whose != "*"):
            missing = "no common public points (public={'*': points})" if common else "no public points"
            raise FedkinError(
                f"client {name!r} has {missing}; give them to the federation, or make them up: public='normal'"
            )
        points = np.asarray(given[whose])
        if points.shape[1:] != shard.task.input_shape or not len(points):
            raise FedkinError(
                f"client {name!r}: its public points have shape {points.shape}, "
                f"but one or more of shape {shard.task.input_shape} are needed"
            )
        return points, everyone
    if source == "drawn":
        inputs = federation.train[k][0]
        count = min(len(inputs), -(-size // clients) if common else size)
        chosen = streams.generator("public", name).permutation(len(inputs))[:count]
        return inputs[np.sort(chosen)], False
    if shard.task.tokens:
        raise FedkinError(
            f"client {name!r}: inputs are tokens, which cannot be made up; give public points, or say that neighbours may "
            "see real inputs: public='drawn'"
        )
    rng = streams.generator("public") if common else streams.generator("public", name)
    return sampled(source, numbers, (size, *shard.task.input_shape), rng), common
