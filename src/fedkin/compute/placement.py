"""Placement: on which device rows and samples live, and in which precision networks are computed there.

Code inside `placement.here()` makes its tensors on the device, because that is torch's default device there: `torch.zeros`,
`torch.as_tensor(array)` and the like need not say so. On the CPU it is no context at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from fedkin.errors import FedkinError

PRECISIONS = ("float32", "bfloat16-mixed")
COMMON = ("cpu", "cuda", "mps", "auto")


@dataclass(frozen=True)
class Placement:
    """A device by its name in torch, and a precision of `PRECISIONS`."""

    device: str = "cpu"
    precision: str = "float32"

    @property
    def on_host(self) -> bool:
        return self.device == "cpu"

    def here(self) -> AbstractContextManager[Any]:
        """Inside of it torch makes tensors on the device."""
        return nullcontext() if self.device == "cpu" else torch.device(self.device)

    def mixed(self) -> AbstractContextManager[Any]:
        """Inside of it products and convolutions are computed in bfloat16, where that is the precision."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(torch.device(self.device).type, torch.bfloat16)

    @classmethod
    def chosen(cls, device: str, precision: str, dtype: str, elsewhere: bool = False) -> Placement:
        """What a run asks for, checked: a device that is not there, or cannot do it, is refused in one line.

        "auto" is the first CUDA device, else Apple's (mps), else the CPU. `elsewhere`: other processes compute, on
        devices that this one need not have.
        """
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        try:
            kind = torch.device(device).type
        except RuntimeError:
            raise FedkinError(f"device {device!r} is none; use one of: {', '.join(COMMON)}, cuda:1") from None
        if not elsewhere:
            _refuse_absent(device, kind)
        if kind == "mps" and dtype == "float64":
            raise FedkinError("device 'mps' has no float64; use dtype='float32', or device='cpu'")
        if precision != "float32":
            if dtype != "float32":
                raise FedkinError(
                    f"precision {precision!r} keeps rows in float32, but dtype is {dtype!r}; leave out one"
                )
            capable = torch.amp.is_autocast_available(kind) and (
                kind != "cuda" or elsewhere or torch.cuda.is_bf16_supported()
            )
            if not capable:
                raise FedkinError(f"device {device!r} cannot compute in bfloat16; use precision='float32'")
        return cls(device, precision)


def on_device(values: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The same by name, tensors on a device; what is there already is not copied."""
    return {name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in values.items()}


HOST = Placement()
"""The CPU, in float32."""


def _refuse_absent(device: str, kind: str) -> None:
    """One line where torch sees no such device."""
    if kind == "cpu":
        return
    module = getattr(torch, kind, None)
    count = 0
    if kind == "mps":
        count = int(torch.backends.mps.is_available())
    elif module is not None and hasattr(module, "is_available") and module.is_available():
        count = int(module.device_count()) if hasattr(module, "device_count") else 1
    number = torch.device(device).index or 0
    if number >= count:
        seen = f"torch sees {count} of them" if count else "torch sees none"
        raise FedkinError(f"device {device!r} is not there ({seen}); use device='cpu' or 'auto'")
