"""A small transformer for text, built from its configuration: no weights are downloaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkin.errors import FedkinError
from fedkin.models.networks import network, two_parts
from fedkin.task import Task


class Attention(nn.Module):
    """Multi-head self-attention over (n, T, width): softmax(Q Kᵀ/√d) V, four linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(-2, -3) for layer in (self.query, self.key, self.value)
        )
        shares = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)
        out: Tensor = self.output((shares @ v).transpose(-2, -3).flatten(-2))
        return out


class Block(nn.Module):
    """x ← x + attention(norm(x));  x ← x + mlp(norm(x)), the mlp four times as wide."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(width, heads), nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return out


class Transformer(nn.Module):
    """Tokens (n, T) → what the last place has gathered from all others, (n, width)."""

    def __init__(self, tokens: int, length: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.blocks(self.embedding(x) + self.position)[..., -1, :])
        return out


@network("transformer-text")
def transformer_text(task: Task, layers: int = 2, width: int = 64, heads: int = 4) -> nn.Module:
    """Guess the next token by a small transformer: layers, width and heads are its options ("transformer-text:2,64,4")."""
    if not task.classes or not task.tokens or len(task.input_shape) != 1:
        raise FedkinError(
            "model 'transformer-text' takes texts: a classification task of tokens (T,), where each token is a class"
        )
    if width % heads:
        raise FedkinError(f"model 'transformer-text': its width {width} must be a multiple of its {heads} heads")
    return two_parts(
        [Transformer(task.outputs, task.input_shape[0], layers, width, heads)], nn.Linear(width, task.outputs)
    )
