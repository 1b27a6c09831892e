"""Random streams named by (seed, purpose, round, client), never by the order of calls.

Every random number in fedkin comes from such a stream, and a client's stream depends on its *name*, not on its position.
So the same seed gives the same numbers however clients are ordered, sharded or spread over machines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedkin.errors import FedkinError

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(z: np.ndarray) -> np.ndarray:
    """The splitmix64 finaliser: a bijection of 64-bit words that spreads every input bit over all output bits."""
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _digest(*parts: object) -> int:
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def client_keys(names: Sequence[str]) -> np.ndarray:
    """One 64-bit word per client, a hash of its name. Shape (K,)."""
    hashes = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names]
    return np.frombuffer(b"".join(hashes), dtype="<u8").astype(np.uint64)


def parse_seeds(text: str | int | Sequence[int], first: int = 0) -> tuple[int, ...]:
    """How many seeds, counted from the first, or the seeds themselves.

    >>> parse_seeds("3"), parse_seeds(2, first=7), parse_seeds("1,5"), parse_seeds([4, 2])
    ((0, 1, 2), (7, 8), (1, 5), (4, 2))
    """
    try:
        if isinstance(text, str) and "," in text:
            text = [int(part) for part in text.split(",")]
        seeds = tuple(range(first, first + int(text))) if isinstance(text, str | int) else tuple(map(int, text))
    except (TypeError, ValueError):
        raise FedkinError(f"seeds is {text!r}; give how many, or a list such as 1,2,5") from None
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise FedkinError(f"seeds is {text!r}; at least one is needed, none negative, each once")
    return seeds


@dataclass(frozen=True)
class Streams:
    """All random streams of one run.

    >>> a = Streams(0).generator("cohort", 3).random()
    >>> a == Streams(0).generator("cohort", 3).random()
    True
    >>> a == Streams(1).generator("cohort", 3).random()
    False
    """

    seed: int

    def generator(self, purpose: str, *key: object) -> np.random.Generator:
        """A NumPy generator for (purpose, *key): for example ("init", 0) or ("kmeans", round)."""
        return np.random.default_rng(_digest(self.seed, purpose, *key))

    def integer(self, purpose: str, *key: object) -> int:
        """A 63-bit integer for (purpose, *key), to seed another library's generator."""
        return _digest(self.seed, purpose, *key) >> 1

    def words(self, purpose: str, round: int, keys: np.ndarray) -> np.ndarray:
        """One 64-bit word per client for (purpose, round). `keys` come from `client_keys`. Shape (K,)."""
        with np.errstate(over="ignore"):
            return _mix(keys + np.uint64(_digest(self.seed, purpose, round)) * _GOLDEN)


def uniform_words(words: np.ndarray, count: int) -> np.ndarray:
    """`count` pseudo-random 64-bit words per client from one word each. Shape (K, count)."""
    with np.errstate(over="ignore"):
        steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        return _mix(words[:, None] + steps[None, :])


def permutations(words: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """One random permutation per client. Shape (K, max size); row k is a permutation of 0…size_k−1, then the rest in any order.

    >>> permutations(np.array([1, 2], dtype=np.uint64), np.array([3, 2])).shape
    (2, 3)
    """
    longest = int(sizes.max(initial=0))
    keys = uniform_words(words, longest)
    keys[np.arange(longest)[None, :] >= sizes[:, None]] = np.iinfo(np.uint64).max
    return np.argsort(
        keys, axis=1
    )  # words of 64 bits are all different: a stable sort takes four times as long for nothing
