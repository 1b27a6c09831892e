"""A pretended accelerator: tensors that say they are on device "pretend", computed on the CPU, so that numbers are real.

An operation that mixes them with tensors of the host is refused as CUDA refuses it (a number without axes, and a host's index
into a device's tensor, are allowed there, too), and so is `.numpy()`. Works inside of `with Pretending():`, in one thread.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("pretend")
DEVICE = torch.device("pretend:0")
MOVES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
INDEXES = ("aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::index_put", "aten::_unsafe_index")


class Pretended(torch.Tensor):
    """A tensor on the pretended device; `inner` holds its numbers."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        how: dict[str, Any] = {"dtype": inner.dtype, "device": DEVICE}
        if inner.layout == torch.strided:  # a sparse matrix passes for a dense one: torch knows no sparse stand-ins
            how |= {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, requires_grad=inner.requires_grad, **how)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def tolist(self) -> Any:
        return self.inner.tolist()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    @property
    def data(self) -> Any:
        return Pretended(self.inner.detach())

    @data.setter
    def data(self, value: Any) -> None:
        self.inner = value.inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class Pretending(TorchDispatchMode):
    """Inside of it tensors can be made on the pretended device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
    ours = [t for t in tensors if isinstance(t, Pretended)]
    if ours and func not in MOVES:
        refuse_strangers(func, args, tensors)
    wanted = kwargs.get("device")
    target = None if wanted is None else torch.device(wanted).type
    if target == "pretend":
        kwargs = {**kwargs, "device": torch.device("cpu")}
    inner = tree_map(lambda t: t.inner if isinstance(t, Pretended) else t, (args, kwargs))
    found = func(*inner[0], **inner[1])
    stays = isinstance(args[0], Pretended) if func is MOVES[1] else target == "pretend" or (ours and target is None)
    known = {id(t.inner): t for t in ours}
    return (
        tree_map_only(torch.Tensor, lambda t: known[id(t)] if id(t) in known else Pretended(t), found)
        if stays
        else found
    )


def refuse_strangers(func: Any, args: Any, tensors: list[torch.Tensor]) -> None:
    checked = tensors
    if func._schema.name in INDEXES:  # indices may be the host's, but what is indexed and what is put there may not
        checked = [t for t in (args[0], *args[2:3]) if isinstance(t, torch.Tensor)]
    if any(not isinstance(t, Pretended) and t.dim() for t in checked):
        places = ", ".join(f"{'device' if isinstance(t, Pretended) else 'host'} {tuple(t.shape)}" for t in tensors)
        raise RuntimeError(f"{func} mixes devices: {places}")


def _empty_strided(size: Any, stride: Any, dtype: Any = None, **_: Any) -> torch.Tensor:
    made: torch.Tensor = Pretended(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))
    return made


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    plain = [t.inner if isinstance(t, Pretended) else t for t in (source, target)]
    plain[1].copy_(plain[0])
    return target


_library = torch.library.Library("aten", "IMPL")
_library.impl("empty_strided", _empty_strided, "PrivateUse1")
_library.impl("_copy_from", _copy_from, "PrivateUse1")
