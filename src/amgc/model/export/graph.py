"""ONNX graphs, written node by node."""

from __future__ import annotations

from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

Value: TypeAlias = float | np.ndarray | np.generic
OPSET, IR = 20, 10  # what torch exports; onnxruntime reads them from 1.17, of 2024, on


def import_onnx() -> ModuleType:
    """onnx, or an error that says how to get it."""
    try:
        import onnx
        import onnx.compose
        import onnx.inliner
        import onnxruntime  # noqa: F401 (what is exported is checked with it)
    except ImportError as error:
        raise ImportError(
            f"export needs onnx and onnxruntime, an extra: pip install 'amgc[onnx]'. (What is missing: {error})"
        ) from error
    return onnx


class Graph:
    """Nodes in the order in which they are computed; values go by their names.

    Operators of the graph that take two values broadcast as numpy does. Numbers and arrays become constants: floats in
    float64, unless they are arrays of another type.
    """

    def __init__(self) -> None:
        self.onnx = import_onnx()
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, operator: str, *inputs: str | Value, output: str = "", **attributes: Any) -> str:
        """A node with one output; returns that output's name."""
        named = [one if isinstance(one, str) else self.constant(one) for one in inputs]
        output = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, named, [output], **attributes))
        return output

    def constant(self, value: Value) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(value).reshape(np.shape(value)), name))
        return name

    def cast(self, value: str, kind: type[np.generic], output: str = "") -> str:
        return self.add("Cast", value, to=self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind)), output=output)

    def inline(self, other: Any, value: str) -> str:
        """The nodes of another graph of one input and one output, applied to `value`."""
        inner = self.onnx.compose.add_prefix_graph(other, "network/")
        self.nodes.append(self.onnx.helper.make_node("Identity", [value], [inner.input[0].name]))
        self.nodes += inner.node
        self.constants += inner.initializer
        return str(inner.output[0].name)
