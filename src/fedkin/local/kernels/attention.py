"""Attention of stacked clients: as products and a softmax. Torch's fused program for it is one that vmap calls client by client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class Unfused(TorchFunctionMode):
    """Inside of it attention is softmax(q kᵀ/√d + mask) v, operation by operation, whichever way a model asks for it."""

    met = False
    """Whether a model has asked for it. (All of torch's functions come by here, which takes time.)"""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func is functional.scaled_dot_product_attention:
            self.met = True
            return _attention(*args, **named)
        if func is functional.multi_head_attention_forward:  # it fuses where nobody wants to see the weights
            self.met = True
            wanted = named.get("need_weights", True)
            found, weights = func(*args, **{**named, "need_weights": True})
            return found, weights if wanted else None
        return func(*args, **named)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Torch's own, operation by operation; the arguments are those of `scaled_dot_product_attention`."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, -torch.inf).to(query.dtype)
    unfused: Any = torch.ops.aten._scaled_dot_product_attention_math
    found: Tensor = unfused(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]
    return found
