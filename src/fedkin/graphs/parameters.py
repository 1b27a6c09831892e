"""SGD and Adam on one flat vector, with all they remember in the open: a server's own parameters, saved and resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedkin.compute.steps import step_rule

GraphOptimiser = Literal["sgd", "adam"]


@dataclass(frozen=True)
class Parameters:
    """θ (P,) and Adam's running means of the gradient and of its square."""

    theta: Tensor
    mean: Tensor
    square: Tensor
    steps: Tensor

    @classmethod
    def at(cls, theta: Tensor) -> Parameters:
        """A starting point."""
        return cls(theta, torch.zeros_like(theta), torch.zeros_like(theta), torch.zeros(1, dtype=torch.int64))

    @classmethod
    def read(cls, arrays: Mapping[str, Tensor], name: str) -> Parameters:
        """From a state's arrays."""
        return cls(*(arrays[f"{name}_{field}"] for field in cls.__dataclass_fields__))

    def arrays(self, name: str) -> dict[str, Tensor]:
        """For a state's arrays."""
        return {f"{name}_{field}": getattr(self, field) for field in self.__dataclass_fields__}

    def moved(self, slope: Tensor, rate: float, how: GraphOptimiser) -> Parameters:
        """One step down the slope (P,).

        >>> Parameters.at(torch.zeros(2)).moved(torch.tensor([2.0, -1.0]), 0.1, "sgd").theta
        tensor([-0.2000,  0.1000])
        >>> Parameters.at(torch.zeros(2)).moved(torch.tensor([2.0, -1.0]), 0.1, "adam").theta
        tensor([-0.1000,  0.1000])
        """
        theta, rule = self.theta[None].clone(), step_rule(how, self.theta[None], rate)
        known = {"mean": self.mean, "square": self.square, "count": self.steps.double()}
        for name, value in rule.state.items():
            value[0] = known[name]
        rule.step(theta, slope[None].clone())
        mean, square = (rule.state[name][0] if rule.state else known[name] for name in ("mean", "square"))
        return Parameters(theta[0], mean, square, self.steps + 1)
