"""Build an ONNX graph, and the part of it that computes features."""

from __future__ import annotations

import logging
import warnings
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from amgc.features.extractor import Extractor
from amgc.features.layers import Layers
from amgc.features.patches import Patches

Value: TypeAlias = float | np.ndarray | np.generic
OPSET, IR = 20, 10  # as torch exports them; onnxruntime reads them since 1.17 (2024)


class ExportError(ValueError):
    """A network cannot be exported."""


def import_onnx() -> ModuleType:
    """Import onnx, or raise an error that says how to install it."""
    try:
        import onnx
        import onnx.compose
        import onnx.inliner
        import onnxruntime  # noqa: F401 (needed to verify the file)
    except ImportError as error:
        raise ImportError(f"the export needs onnx and onnxruntime: pip install 'amgc[onnx]' ({error}).") from error
    return onnx


class Graph:
    """An ONNX graph under construction. Values are referred to by name; numbers and arrays become constants."""

    def __init__(self) -> None:
        self.onnx = import_onnx()
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, operator: str, *inputs: str | Value, output: str = "", **attributes: Any) -> str:
        """Add a node with one output and return the name of the output."""
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

    def inline(self, other: Any, value: str, prefix: str = "") -> str:
        """Apply another graph, with one input and one output, to `value`."""
        inner = self.onnx.compose.add_prefix_graph(other, f"network/{prefix}")
        self.nodes.append(self.onnx.helper.make_node("Identity", [value], [inner.input[0].name]))
        self.nodes += inner.node
        self.constants += inner.initializer
        return str(inner.output[0].name)


def features(graph: Graph, pixels: str, extractor: Extractor) -> str:
    """Normalise pixels (n, c, side, side) and compute their features (n, dim), float32."""
    assert extractor.mean is not None and extractor.std is not None
    centre, spread = (np.array(each, np.float32).reshape(-1, 1, 1) for each in (extractor.mean, extractor.std))
    scaled = graph.add("Mul", graph.cast(pixels, np.float32), 1 / (255 * spread))
    images = graph.add("Sub", scaled, centre / spread)
    if isinstance(extractor, Layers):
        shape = extractor.image_shape[0], *extractor.patches.size
        small = _reduced(graph, images, extractor.patches)
        averages = [_network(graph, small, one, shape, extractor.name, f"{n}/") for n, one in enumerate(extractor.averages)]
        return graph.add("Concat", *averages, _patches(graph, images, extractor.patches), axis=1)
    if isinstance(extractor, Patches):
        return _patches(graph, images, extractor)
    return _network(graph, images, extractor, extractor.image_shape, extractor.name)


def _patches(graph: Graph, images: str, extractor: Patches) -> str:
    """Compute the same as `amgc.features.patches`."""
    images, chosen = _reduced(graph, images, extractor), extractor.settled
    flat = graph.add("Flatten", images, axis=1)
    banks = []
    for number, (side, _) in enumerate(extractor.banks):
        weight = extractor.get_buffer(f"weight{number}").numpy()
        views = [
            _averaged(graph, graph.add("Gather", flat, index, axis=1), weight, extractor, side)
            for index in _windows(extractor, side)[: 2 if chosen.mirror else 1]
        ]
        total = views[0] if len(views) == 1 else graph.add("Mul", graph.add("Add", *views), np.float32(0.5))
        powers = graph.add("Pow", total, np.float32(chosen.power))
        if chosen.components:
            mixing = extractor.get_buffer(f"mixing{number}").numpy().reshape(-1, 2, chosen.grid**2, chosen.components)
            powers = graph.add("Einsum", powers, mixing, equation="nsck,kscd->ndk")
        banks.append(graph.add("Flatten", powers, axis=1))
    together = graph.add("Concat", *banks, axis=1)
    return graph.add("Div", graph.add("Sub", together, extractor.centre.numpy()), extractor.deviation.numpy())


def _reduced(graph: Graph, images: str, extractor: Patches) -> str:
    """Reduce large images to the size that the extractor sees."""
    if extractor.size == extractor.image_shape[1:]:
        return images
    down, across = (_area(*pair) for pair in zip(extractor.image_shape[1:], extractor.size, strict=True))
    return graph.add("MatMul", graph.add("MatMul", down, images), np.ascontiguousarray(across.T))


def _averaged(graph: Graph, windows: str, weight: NDArray[np.float32], extractor: Patches, side: int) -> str:
    """Average over cells, (n, 2, cells, K), by how much responses to windows (n, places, c side²) exceed the threshold."""
    chosen = extractor.settled
    exact = graph.cast(windows, np.float64)
    mean = graph.add("ReduceMean", exact, np.array([2]))
    square = graph.add("ReduceMean", graph.add("Mul", exact, exact), np.array([2]))
    variance = graph.add("Max", graph.add("Sub", square, graph.add("Mul", mean, mean)), 0.0)
    scale = graph.add("Div", 1.0, graph.add("Add", graph.add("Sqrt", variance), chosen.contrast))
    centred = graph.add("Sub", windows, graph.cast(mean, np.float32))
    normal = graph.add("Mul", centred, graph.cast(scale, np.float32))
    response = graph.add("Add", graph.add("MatMul", normal, weight[:-1]), weight[-1])
    cells = _cells(extractor, side)
    parts = []
    for signed in (response, graph.add("Neg", response)):
        above = graph.add("Relu", graph.add("Sub", signed, np.float32(chosen.threshold)))
        parts.append(graph.add("Unsqueeze", graph.add("MatMul", cells, above), np.array([1])))
    return graph.add("Concat", *parts, axis=1)


def _windows(extractor: Patches, side: int) -> list[NDArray[np.int64]]:
    """Return the indices (places, c side²) of each window's pixels in a flattened image (c, h, w) and in its mirror image."""
    (height, width), channels = extractor.size, extractor.image_shape[0]
    place = np.arange(channels * height * width).reshape(channels, height, width)
    found = []
    for seen in (place, place[:, :, ::-1]):
        each = np.lib.stride_tricks.sliding_window_view(seen, (side, side), axis=(1, 2))
        some = each[:, :: extractor.settled.stride, :: extractor.settled.stride]
        found.append(some.transpose(1, 2, 0, 3, 4).reshape(-1, channels * side**2))
    return found


def _cells(extractor: Patches, side: int) -> NDArray[np.float32]:
    """Return the matrix (grid², places) that averages over cells."""
    grid = extractor.settled.grid
    y, x = (np.arange(n) * grid // n for n in ((size - side) // extractor.settled.stride + 1 for size in extractor.size))
    member = np.eye(grid**2)[(y[:, None] * grid + x).ravel()].T
    return np.asarray(member / member.sum(1, keepdims=True), np.float32)


def _area(length: int, fewer: int) -> NDArray[np.float32]:
    """Return the matrix (fewer, length) of torch's interpolation with mode="area"."""
    new, old = np.arange(fewer)[:, None], np.arange(length)
    touched = (old >= new * length // fewer) & (old < -(-(new + 1) * length // fewer))
    return np.asarray(touched / touched.sum(1, keepdims=True), np.float32)


def _network(graph: Graph, images: str, network: nn.Module, shape: tuple[int, int, int], name: str, prefix: str = "") -> str:
    """Export a network with torch, for any number of images of this shape, and insert its graph."""
    example = torch.zeros(2, *shape)
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)  # it warns that torchvision is not installed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations within torch
            count = torch.export.Dim("n")
            made = torch.onnx.export(
                network, (example,), dynamo=True, dynamic_shapes=({0: count},), opset_version=OPSET, verbose=False
            )
    except ImportError as error:
        raise ImportError(f"exporting a network needs onnxscript: pip install 'amgc[onnx]' ({error}).") from error
    except Exception as error:  # anything in the network that torch cannot export
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExportError(f"torch cannot export the network {name}: {reason}") from error
    finally:
        log.setLevel(before)
    assert made is not None
    return graph.inline(graph.onnx.inliner.inline_local_functions(made.model_proto).graph, images, prefix)
