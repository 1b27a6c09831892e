"""Recurrent networks for sequences: a forecaster of several steps, and a reader of text. Each is features + classifier."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedkin.errors import FedkinError
from fedkin.models.networks import network, two_parts
from fedkin.task import Task


class Encoder(nn.Module):
    """GRU over the past values, (n, T) or (n, T, c) → the last state of every layer, (n, layers · hidden)."""

    def __init__(self, channels: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.gru = nn.GRU(channels, hidden, layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        state = self.gru(x.reshape(*x.shape[:2], -1))[1]
        return state.transpose(0, 1).reshape(len(x), -1)


class Decoder(nn.Module):
    """GRU from the encoder's state, (n, layers · hidden) → (n, steps, channels), one step after the other.

    Each step reads the value it has just predicted (0 before the first), in training as in testing: never the target.
    """

    def __init__(self, channels: int, hidden: int, layers: int, steps: int) -> None:
        super().__init__()
        self.gru = nn.GRU(channels, hidden, layers, batch_first=True)
        self.readout = nn.Linear(hidden, channels)
        self.steps = steps

    def forward(self, features: Tensor) -> Tensor:
        state = features.reshape(len(features), self.gru.num_layers, -1).transpose(0, 1).contiguous()
        value, predicted = features.new_zeros((len(features), 1, self.gru.input_size)), []
        for _ in range(self.steps):
            seen, state = self.gru(value, state)
            value = self.readout(seen)
            predicted.append(value)
        return torch.cat(predicted, dim=1)


@network("gru-forecaster")
def gru_forecaster(task: Task, hidden: int = 64, layers: int = 2) -> nn.Module:
    """A GRU encoder and an autoregressive GRU decoder (FedSKA, METR-LA): T past values → the coming ones.

    Inputs (T,) or (T, c), targets (steps,) or (steps, c'); the decoder reads and writes the targets' channels.
    """
    if task.estimator != "regressor" or len(task.input_shape) not in (1, 2) or len(task.output_shape) not in (1, 2):
        raise FedkinError(
            "model 'gru-forecaster' takes a series (T,) or (T, c) to (steps,) or (steps, c) numbers, but the task is "
            f"{task.kind} from {task.input_shape} to {task.output_shape}"
        )
    ins, outs = ((*shape, 1)[1] for shape in (task.input_shape, task.output_shape))
    return two_parts([Encoder(ins, hidden, layers)], Decoder(outs, hidden, layers, task.output_shape[0]))


class Reader(nn.Module):
    """Embedding and LSTM over the codes of characters, (n, T) → the last output, (n, hidden)."""

    def __init__(self, characters: int, width: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.lstm(self.embedding(x))[0]
        return outputs[:, -1]


@network("lstm-text")
def lstm_text(task: Task, hidden: int = 256, layers: int = 1, width: int = 8) -> nn.Module:
    """Guess the next character: embedding 8, one LSTM layer of 256, linear (FedSKA and LEAF, Shakespeare).

    The paper has one layer, its released code two ("lstm-text:256,2").
    """
    if not task.classes or not task.tokens or len(task.input_shape) != 1:
        raise FedkinError(
            "model 'lstm-text' takes texts: a classification task of tokens (T,), where each token is a class"
        )
    return two_parts([Reader(task.outputs, width, hidden, layers)], nn.Linear(hidden, task.outputs))
