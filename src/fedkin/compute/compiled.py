"""Functions of tensors that run without Python's global lock."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

F = TypeVar("F", bound=Callable[..., object])


def script(function: F) -> F:
    """Compile by TorchScript. PyTorch calls it deprecated; a release without it runs the same functions as Python."""
    if not hasattr(torch.jit, "script"):
        return function
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        compiled: F = torch.jit.script(function)
    return compiled
