"""The model of a run: what the user gave, frozen where the options say so, with the values of its frozen part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedkin.algorithm import Algorithm
from fedkin.models import ModelLike, ModelSpec
from fedkin.models.frozen import carrying, freeze
from fedkin.result.frozen_file import FROZEN_HASH, read_frozen
from fedkin.run.options import Options
from fedkin.streams import Streams
from fedkin.task import Task


def model_of_run(
    algorithm: Algorithm,
    model: ModelLike,
    names: Sequence[str],
    task: Task,
    options: Options,
    began: tuple[Path, Mapping[str, Any]] | None = None,
) -> ModelSpec:
    """The spec of a run. `began`, directory and config.toml of one that goes on, keeps the frozen part it began with."""
    spec = freeze(algorithm.model_spec(model, tuple(names), task, getattr(torch, options.dtype)), options.frozen)
    spec = replace(spec, caches=options.caches)
    if began is None or not spec.layout.frozen:
        return spec.settled(Streams(options.seed))
    out, config = began
    return read_frozen(out, spec) if FROZEN_HASH in config["model"] else carrying(spec)
