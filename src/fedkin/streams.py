"""Random streams named by (seed, purpose, round, client), never by the order of calls.

Every random number in fedkin comes from such a stream, and a client's stream depends on its *name*, not on its position.
So the same seed gives the same numbers however clients are ordered, sharded or spread over machines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
    return np.frombuffer(
        b"".join(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names), dtype="<u8"
    ).astype(np.uint64)


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
    """One random permutation per client. Shape (K, max size); row k is a permutation of 0…size_k−1, then the rest.

    >>> permutations(np.array([1, 2], dtype=np.uint64), np.array([3, 2])).shape
    (2, 3)
    """
    longest = int(sizes.max(initial=0))
    keys = uniform_words(words, longest)
    keys[np.arange(longest)[None, :] >= sizes[:, None]] = np.iinfo(np.uint64).max
    return np.argsort(keys, axis=1, kind="stable")
