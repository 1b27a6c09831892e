"""Noise that nobody else can draw again, and the account of what was answered with it."""

from __future__ import annotations

import hashlib
import math
import secrets
import threading

import numpy as np
from scipy.special import ndtri
from torch import Tensor

from fedkin.errors import FedkinError
from fedkin.privacy.accounting import accountants


def secret_normal(shape: tuple[int, ...]) -> np.ndarray:
    """N(0, 1) numbers from the operating system's entropy, not from a run's seed, which the server knows.

    Noise that can be redrawn can be subtracted. Uniform numbers of 53 bits go through the inverse of Φ.
    """
    words = np.frombuffer(secrets.token_bytes(8 * math.prod(shape)), dtype=np.uint64) >> np.uint64(11)
    return ndtri((words.astype(np.float64) + 0.5) * 2.0**-53).reshape(shape)


class Scratch(threading.local):
    """Memory in which a thread makes random numbers, for all streams: of their own it would fall out of the cache."""

    def __init__(self) -> None:
        self.zeros, self.words = b"", bytearray()
        self.radius = self.angle = np.empty(0, dtype=np.float32)

    def grow(self, count: int) -> None:
        """Room for so many words and half as many pairs of numbers."""
        if len(self.zeros) < 4 * count:
            self.zeros, self.words = bytes(4 * count), bytearray(4 * count + 15)
            self.radius, self.angle = np.empty((2, (count + 1) // 2), dtype=np.float32)


SCRATCH = Scratch()


class SecretStream:
    """Random numbers of one client that nobody else can draw again: AES in counter mode, its key from the operating system.

    `insecure` is a word to make the key of instead, for tests: whoever knows it can subtract the noise.
    """

    def __init__(self, insecure: int | None = None) -> None:
        accountants()  # the same extra brings the cipher
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        key = secrets.token_bytes(16) if insecure is None else hashlib.blake2b(str(insecure).encode()).digest()[:16]
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def _words(self, count: int) -> np.ndarray:
        """Uniform 32-bit words as int32, (count,), until this thread calls for more."""
        SCRATCH.grow(count)
        self._cipher.update_into(memoryview(SCRATCH.zeros)[: 4 * count], SCRATCH.words)
        return np.frombuffer(SCRATCH.words, dtype=np.int32, count=count)

    def fill(self, out: Tensor, scale: float) -> None:
        """Write N(0, scale²) numbers into a flat float32 tensor, by the method of Box and Muller.

        With u uniform in (−1, 1) and φ uniform, scale·√(−ln u²)·(cos φ, sin φ) are two of them. In NumPy, whose logarithms, sines
        and cosines of float32 take half as long as PyTorch's.
        """
        found = out.numpy()
        half, rest = (found.size + 1) // 2, found.size // 2
        words = self._words(2 * half)
        radius, angle = SCRATCH.radius[:half], SCRATCH.angle[:half]
        radius[:] = np.bitwise_or(words[:half], 1, out=words[:half])  # odd: never 0
        radius *= 2.0**-31
        np.log(np.square(radius, out=radius), out=radius)
        radius *= -(scale**2)
        np.sqrt(radius, out=radius)
        angle[:] = words[half:]
        angle *= math.pi * 2.0**-31
        np.cos(angle, out=found[:half])
        found[:half] *= radius
        np.sin(angle[:rest], out=found[half:])
        found[half:] *= radius[:rest]

    def chosen(self, rows: int, columns: int, rate: float) -> np.ndarray:
        """A (rows, columns) mask whose entries are true with probability `rate`, to within 2⁻³²."""
        words = self._words(rows * columns).view(np.uint32)
        return (words < math.ceil(rate * 2**32) if rate < 1 else words == words).reshape(rows, columns)


def spend(spent: Tensor, epsilon: float, delta: float, limit: tuple[float, float] | None, client: str) -> None:
    """Add one (ε, δ) answer to what a client has `spent` (2,), in place; refuse it if the sum would pass the limit.

    Basic composition: answers with (ε_i, δ_i) are together (Σε_i, Σδ_i)-differentially private.
    """
    after = spent[0].item() + epsilon, spent[1].item() + delta
    if limit is not None and (after[0] > limit[0] or after[1] > limit[1]):
        raise FedkinError(
            f"client {client!r} has spent its privacy budget: with this answer ε = {after[0]:g}, δ = {after[1]:g}, and it "
            f"allows ε = {limit[0]:g}, δ = {limit[1]:g}"
        )
    spent[0], spent[1] = after
