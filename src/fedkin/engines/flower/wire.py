"""Messages: a JSON head and named tensors (safetensors). Reading one cannot run code, and its size is bounded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.errors import FedkinError

HEAD_LIMIT = 2**22
"""Bytes a head may have: names, settings, reasons."""
TENSOR_TYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)


@dataclass(frozen=True)
class Message:
    """What travels between server and site."""

    head: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def encode(self) -> tuple[str, bytes]:
        from safetensors.torch import save

        head = json.dumps(self.head, default=_plain)
        return head, save({key: value.detach().clone().contiguous() for key, value in self.tensors.items()})

    @classmethod
    def decode(cls, head: Any, body: Any, limit: int | None = None) -> Message:
        """Read a message; FedkinError if it is too large or not one. (What has a limit is from a site: no NaN in it.)"""
        from safetensors import SafetensorError
        from safetensors.torch import load

        if not isinstance(head, str) or not isinstance(body, bytes):
            raise FedkinError("sent something that is no message of fedkin")
        if len(head) > HEAD_LIMIT or (limit is not None and len(body) > limit):
            raise FedkinError(f"sent {len(head) + len(body):,} bytes; what was asked allows {limit or HEAD_LIMIT:,}")
        try:
            facts = json.loads(head, parse_constant=None if limit is None else _no_number)
            tensors = dict(sorted(load(body).items()))  # the format keeps no order of its own
        except RecursionError as problem:
            raise FedkinError("sent a message that cannot be read: it is nested too deeply") from problem
        except (ValueError, SafetensorError, KeyError, RuntimeError, TypeError, OverflowError) as problem:
            line = " ".join(str(problem).split())[:300]
            raise FedkinError(f"sent a message that cannot be read: {line}") from problem
        if not isinstance(facts, dict):
            raise FedkinError("sent a message without a head")
        for key, value in tensors.items():
            if value.dtype not in TENSOR_TYPES:
                raise FedkinError(f"sent {key!r} as {value.dtype}, which no task uses")
        return cls(facts, tensors)

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors under "prefix/", without it."""
        return {key.removeprefix(f"{prefix}/"): v for key, v in self.tensors.items() if key.startswith(f"{prefix}/")}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{key}": value for key, value in tensors.items()}


def split_shared(shared: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Plain values and tensors apart."""
    tensors = {key: value for key, value in shared.items() if isinstance(value, Tensor)}
    return {key: value for key, value in shared.items() if key not in tensors}, tensors


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise FedkinError(f"a {type(value).__name__} cannot be sent to a site; use numbers, text or tensors")
