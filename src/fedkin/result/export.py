"""Taking the models away: one file per client, with a card that says where it comes from."""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn

from fedkin.errors import FedkinError, unknown
from fedkin.files import whole, write_atomic, write_json
from fedkin.result.raw_inputs import with_preparation
from fedkin.task import Scale

if TYPE_CHECKING:
    from fedkin.result import Result

Format = Literal["onnx", "torch"]
SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
TOP_INFLUENCES = 10


def export(result: Result, directory: str | Path, format: Format | None = None) -> Path:
    """Write every client's deployed model as safetensors with a JSON card, and `index.json` (client → files).

    `format="onnx"` adds an ONNX graph, `format="torch"` a `torch.export` program (.pt2); both take a batch of any size. The ONNX
    graph of a run on a table takes the table's own columns and prepares them itself (`fedkin.result.raw_inputs`).
    """
    if format is not None and format not in SUFFIXES:
        raise unknown("export format", format, list(SUFFIXES))
    if format == "onnx":
        missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
        if missing:
            raise FedkinError(
                f"ONNX export needs {' and '.join(missing)}; install with: pip install {' '.join(missing)}"
            )
    out = Path(directory)
    index = {}
    for k, (client, stem) in enumerate(zip(result.names, file_stems(result.names))):
        module = result.models[client]
        if not isinstance(module, nn.Module):
            raise FedkinError(f"client {client!r} deploys a {type(module).__name__}; only networks can be exported")
        written = [out / f"{stem}.safetensors", out / f"{stem}.json"]
        _write_weights(module, written[0])
        if format is not None:
            written.append(out / f"{stem}{SUFFIXES[format]}")
            _write_program(module, result, format, written[-1], client)
        write_json(written[1], card(result, k, [path.name for path in written]))
        index[client] = [path.name for path in written]
    write_json(out / "index.json", index)
    return out


def file_stems(names: Sequence[str]) -> list[str]:
    """File names for clients: what a file system may not take becomes "_", and no two (in any case) are the same.

    >>> file_stems(["site-3", "a/b", "a:b", "../x", "A_b"])
    ['site-3', 'a_b', 'a_b-2', '_x', 'A_b-3']
    """
    found: list[str] = []
    for name in names:
        stem = re.sub(r"[^\w.-]+", "_", name).lstrip(".")[:80] or "client"
        taken, number, chosen = {other.lower() for other in found} | {"index"}, 1, stem
        while chosen.lower() in taken:
            number += 1
            chosen = f"{stem}-{number}"
        found.append(chosen)
    return found


def card(result: Result, k: int, files: Sequence[str]) -> dict[str, Any]:
    """What a client's model is: its data, method, round, accuracy, and who influenced it."""
    config, task = result.config, result.task
    counts = None
    if result.label_counts is not None:
        counts = {str(label): int(n) for label, n in zip(task.classes, result.label_counts[k])}
    return {
        "client": result.names[k],
        "files": list(files),
        "model": config["model"],
        "task": {"kind": task.kind, "input_shape": task.input_shape, "classes": task.classes, "metric": task.metric},
        "scale": None if task.scale is None else asdict(task.scale),
        "data": {"train_samples": int(result.sizes[k]), "label_counts": counts, **config["data"]},
        "method": {"title": result.title, **config["algorithm"]},
        "round": result.facts.get("rounds"),
        "deploys": result.choice[k],
        "combines": result.facts.get("auto", {}).get(result.names[k]),
        "metrics": {
            when: {name: values[k] for name, values in table.items()} for when, table in result.metrics.items()
        },
        "influenced_by": influences(result, k),
        "inputs": result.facts.get("inputs"),
        "run": config["run"],
        "versions": config.get("versions", {}),
    }


def influences(result: Result, k: int) -> list[dict[str, Any]] | None:
    """The clients with the largest shares in client k's model, itself included; None where it was not tracked."""
    if result.influence is None:
        return None
    row = result.influence[k]
    order = np.argsort(-row, kind="stable")[:TOP_INFLUENCES]
    return [{"client": result.names[j], "share": round(float(row[j]), 6)} for j in order if row[j] > 0]


def _write_weights(module: nn.Module, path: Path) -> None:
    from safetensors.torch import save

    write_atomic(
        path, save({name: tensor.detach().clone().contiguous() for name, tensor in module.state_dict().items()})
    )


def example_input(module: nn.Module, result: Result) -> torch.Tensor:
    """Two made-up inputs of the right shape and number type."""
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    return torch.zeros((2, *result.task.input_shape), dtype=torch.int64 if result.task.tokens else dtype)


class InUnits(nn.Module):
    """A model of standardised targets that speaks in their own units."""

    def __init__(self, model: nn.Module, scale: Scale) -> None:
        super().__init__()
        self.model, self.scale = model, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale.told(self.model(x))


def _write_program(module: nn.Module, result: Result, format: Format, path: Path, client: str) -> None:
    """The model as a program that runs without fedkin, over batches of any size."""
    batch: Mapping[int, Any] = {0: torch.export.Dim.DYNAMIC}
    if result.task.scale is not None:
        module = InUnits(module, result.task.scale)
    try:
        program = torch.export.export(module.eval(), (example_input(module, result),), dynamic_shapes=(batch,))
        if format == "torch":
            with whole(path) as file:
                torch.export.save(program, file)
        else:
            content, inputs = _to_onnx(program), result.facts.get("inputs")
            write_atomic(path, with_preparation(content, inputs) if inputs else content)
    except FedkinError:
        raise
    except Exception as problem:
        first = str(problem).strip().split("\n")[0]
        raise FedkinError(f"client {client!r}: the model cannot be exported as {format}: {first}") from problem


def _to_onnx(program: torch.export.ExportedProgram) -> bytes:
    exporter = logging.getLogger("torch.onnx")
    before = exporter.level
    exporter.setLevel(logging.ERROR)  # it warns of packages that no model here needs
    try:
        translated = torch.onnx.export(program, input_names=["input"], output_names=["output"], verbose=False)
    finally:
        exporter.setLevel(before)
    assert translated is not None
    return bytes(translated.model_proto.SerializeToString())
