"""Pixels to features: patches node by node, networks by torch's own exporter."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import torch
from numpy.typing import NDArray

from amgc.features.extractor import Extractor
from amgc.features.patches import Patches
from amgc.model.export.graph import OPSET, Graph
from amgc.model.results import ModelError


def features(graph: Graph, pixels: str, extractor: Extractor) -> str:
    """Features (n, dim), float32, of pixels (n, c, side, side)."""
    assert extractor.mean is not None and extractor.std is not None
    centre, spread = (np.array(each, np.float32).reshape(-1, 1, 1) for each in (extractor.mean, extractor.std))
    scaled = graph.add("Mul", graph.cast(pixels, np.float32), 1 / (255 * spread))
    images = graph.add("Sub", scaled, centre / spread)
    return _patches(graph, images, extractor) if isinstance(extractor, Patches) else _network(graph, images, extractor)


def _patches(graph: Graph, images: str, extractor: Patches) -> str:
    """What `amgc.features.patches` computes, written plainly."""
    if extractor.size != extractor.image_shape[1:]:
        down, across = (_area(*pair) for pair in zip(extractor.image_shape[1:], extractor.size, strict=True))
        images = graph.add("MatMul", graph.add("MatMul", down, images), np.ascontiguousarray(across.T))
    chosen = extractor.settled
    flat = graph.add("Flatten", images, axis=1)
    banks = []
    for number, (side, _) in enumerate(extractor.banks):
        weight = extractor.get_buffer(f"weight{number}").numpy()
        views = [
            _averaged(graph, graph.add("Gather", flat, index, axis=1), weight, extractor, side)
            for index in _windows(extractor, side)[: 2 if chosen.mirror else 1]
        ]
        total = views[0] if len(views) == 1 else graph.add("Mul", graph.add("Add", *views), np.float32(0.5))
        banks.append(graph.add("Flatten", graph.add("Pow", total, np.float32(chosen.power)), axis=1))
    together = graph.add("Concat", *banks, axis=1)
    return graph.add("Div", graph.add("Sub", together, extractor.centre.numpy()), extractor.deviation.numpy())


def _averaged(graph: Graph, windows: str, weight: NDArray[np.float32], extractor: Patches, side: int) -> str:
    """Averages over cells (n, 2, cells, K) of how far the responses to windows (n, places, c side²) exceed the threshold."""
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
    """Where the pixels of each window (places, c side²) are in an image (c, h, w) laid out flat, and in its mirror image."""
    (height, width), channels = extractor.size, extractor.image_shape[0]
    place = np.arange(channels * height * width).reshape(channels, height, width)
    found = []
    for seen in (place, place[:, :, ::-1]):
        each = np.lib.stride_tricks.sliding_window_view(seen, (side, side), axis=(1, 2))
        some = each[:, :: extractor.settled.stride, :: extractor.settled.stride]
        found.append(some.transpose(1, 2, 0, 3, 4).reshape(-1, channels * side**2))
    return found


def _cells(extractor: Patches, side: int) -> NDArray[np.float32]:
    """The matrix (grid², places) that averages over cells."""
    grid = extractor.settled.grid
    y, x = (np.arange(n) * grid // n for n in ((size - side) // extractor.settled.stride + 1 for size in extractor.size))
    member = np.eye(grid**2)[(y[:, None] * grid + x).ravel()].T
    return np.asarray(member / member.sum(1, keepdims=True), np.float32)


def _area(length: int, fewer: int) -> NDArray[np.float32]:
    """The matrix (fewer, length) of interpolation by area: pixels that a new one touches count alike."""
    new, old = np.arange(fewer)[:, None], np.arange(length)
    touched = (old >= new * length // fewer) & (old < -(-(new + 1) * length // fewer))
    return np.asarray(touched / touched.sum(1, keepdims=True), np.float32)


def _network(graph: Graph, images: str, extractor: Extractor) -> str:
    """Any network that torch can export, for any number of images."""
    example = torch.zeros(2, *extractor.image_shape)
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)  # that there is no torchvision is no news
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about torch's own inside
            count = torch.export.Dim("n")
            made = torch.onnx.export(
                extractor, (example,), dynamo=True, dynamic_shapes=({0: count},), opset_version=OPSET, verbose=False
            )
    except ImportError as error:
        raise ImportError(f"exporting a network needs onnxscript, an extra: pip install 'amgc[onnx]' ({error}).") from error
    except Exception as error:  # whatever a network does that torch cannot express
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"torch cannot export the network {extractor.name}: {reason}") from error
    finally:
        log.setLevel(before)
    assert made is not None
    return graph.inline(graph.onnx.inliner.inline_local_functions(made.model_proto).graph, images)
