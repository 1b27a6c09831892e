"""An ONNX model of a table that takes the table's own columns: preparation as nodes in front of the network.

Each column is an input of its name and of shape (n, 1): numbers as float64, NaN where missing; categories as text without
blanks around it, "" where missing. A column of dates comes as its parts, "admitted.year", "admitted.month",
"admitted.weekday" (Monday 0) and "admitted.days" (since 1970-01-01), numbers all of them, because ONNX reads no dates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedkin.federation.columns import ABSENT, InputColumn, is_float

ML = "ai.onnx.ml"
"""The domain of LabelEncoder, which turns text into codes."""
STRANGE = -1
"""The code of a category that was not in training: all zeros."""


def with_preparation(content: bytes, inputs: Sequence[Mapping[str, Any]]) -> bytes:
    """A model of one input "input" (n, M) as one that takes the raw columns and prepares them as in training."""
    import onnx
    from onnx import TensorProto, helper

    model = onnx.load_from_string(content)
    graph, columns = model.graph, [InputColumn.described(entry) for entry in inputs]
    (prepared,) = graph.input
    kind = prepared.type.tensor_type.elem_type
    nodes: list[onnx.NodeProto] = []
    taken: list[onnx.ValueInfoProto] = []
    parts: list[str] = []
    for k, column in enumerate(columns):
        text = column.categories is not None
        name = column.name if text else column.inputs[0]
        made = _codes(column, f"prepare/{k}", name) if text else _standardised(column, f"prepare/{k}", name)
        nodes += [*made, helper.make_node("Cast", [f"prepare/{k}/out"], [f"prepare/{k}/cast"], to=kind)]
        parts.append(f"prepare/{k}/cast")
        taken.append(helper.make_tensor_value_info(name, TensorProto.STRING if text else TensorProto.DOUBLE, ["n", 1]))
    nodes.append(helper.make_node("Concat", parts, [prepared.name], axis=1))
    former = list(graph.node)
    del graph.node[:], graph.input[:]
    graph.node.extend([*nodes, *former])
    graph.input.extend(taken)
    model.opset_import.append(helper.make_opsetid(ML, 3))
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _constant(name: str, values: np.ndarray) -> Any:
    from onnx import helper, numpy_helper

    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(values))


def _standardised(column: InputColumn, at: str, name: str) -> list[Any]:
    """(x − centre)/scale, where x is the fill for NaN and for whatever else stands for missing."""
    from onnx import helper

    numbers = [float(value) for value in column.sentinels if is_float(value)] if column.part is None else []
    nodes = [helper.make_node("IsNaN", [name], [f"{at}/missing0"])]
    for k, value in enumerate(numbers):
        nodes += [
            _constant(f"{at}/sentinel{k}", np.array(value)),
            helper.make_node("Equal", [name, f"{at}/sentinel{k}"], [f"{at}/is{k}"]),
            helper.make_node("Or", [f"{at}/missing{k}", f"{at}/is{k}"], [f"{at}/missing{k + 1}"]),
        ]
    return [
        *nodes,
        *(_constant(f"{at}/{key}", np.array(getattr(column, key), dtype=float)) for key in ("fill", "centre", "scale")),
        helper.make_node("Where", [f"{at}/missing{len(numbers)}", f"{at}/fill", name], [f"{at}/filled"]),
        helper.make_node("Sub", [f"{at}/filled", f"{at}/centre"], [f"{at}/centred"]),
        helper.make_node("Div", [f"{at}/centred", f"{at}/scale"], [f"{at}/out"]),
    ]


def _codes(column: InputColumn, at: str, name: str) -> list[Any]:
    """One-hot rows: text → code → 1 where it is a category's."""
    from onnx import helper

    categories = list(column.categories or ())
    codes = {category: code for code, category in enumerate(categories)}
    if ABSENT in codes:
        codes |= {word: codes[ABSENT] for word in ("", *column.sentinels) if word not in codes}
    keys, values = list(codes), list(codes.values())
    return [
        helper.make_node(
            "LabelEncoder",
            [name],
            [f"{at}/code"],
            domain=ML,
            keys_strings=keys,
            values_int64s=values,
            default_int64=STRANGE,
        ),
        _constant(f"{at}/codes", np.arange(len(categories), dtype=np.int64)[None]),
        helper.make_node("Equal", [f"{at}/code", f"{at}/codes"], [f"{at}/out"]),
    ]
