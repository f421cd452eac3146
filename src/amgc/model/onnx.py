"""Export a model as one ONNX file: resizing, normalisation, features and classifier.

The file is verified with onnxruntime before it replaces an existing one.

Images are resized exactly as Pillow does it. Its bilinear resizing is two matrix products, first across, then down. The weights
are a triangle as wide as the factor by which the image shrinks, rounded to 22 bits; each product is rounded to integers. All of
this is exact in float64. The weights depend on the size of the image, so they are computed in the graph.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amgc.core.incremental import IncrementalClassifier
from amgc.features.onnx import IR, OPSET, ExportError, Graph, features
from amgc.files import atomic
from amgc.model.extractors import encode
from amgc.model.folder import ModelError
from amgc.model.inputs import Frame, Input, Vectors
from amgc.model.state import State

TOLERANCE = 1e-5  # of probabilities, for each unit of difference between scores; float32 features do not allow less
FEATURE_TOLERANCE = 1e-4  # of features, relative to the largest; probabilities of 0 and 1 would hide wrong features
BITS = 22  # Pillow's PRECISION_BITS
GREY, GREY_BITS = (19595, 38470, 7471), 16  # Pillow's weights of red, green and blue, in 65536ths


@dataclass(frozen=True)
class Exported:
    """The result of `Model.export_onnx`.

    bytes : size of the file.
    difference : largest difference from the model's probabilities, over the test images.
    images : number of test images.
    """

    path: str
    bytes: int
    classes: tuple[str, ...]
    difference: float
    images: int


def export_onnx(state: State, path: str | os.PathLike[str]) -> Exported:
    """Write a model as ONNX, if onnxruntime computes the same predictions with it."""
    if state.classifier is None:
        raise ModelError("the model has no classes yet, so there is nothing to export; learn some first.")
    try:
        graph = _graph(state)
    except ExportError as error:
        raise ModelError(str(error)) from error
    with atomic(path) as temporary:
        content = _serialise(graph, state)
        temporary.write_bytes(content)
        tried = noise_vectors(state) if isinstance(state.extractor, Vectors) else noise_images(state.frame.scale)
        difference = _verify(graph, state, temporary, tried)
    return Exported(os.fspath(path), len(content), _names(state), difference, sum(map(len, tried)))


def _graph(state: State) -> Graph:
    """Build the graph from `images`, or `vectors`, to `probabilities`, `label` and `name`."""
    assert state.extractor is not None
    graph = Graph()
    if isinstance(state.extractor, Vectors):
        found = "vectors"
    else:
        found = features(graph, resized(graph, "images", state.frame), state.extractor)
    exact = graph.cast(found, np.float64, output="features")
    if isinstance(state.classifier, IncrementalClassifier) and (privacy := state.classifier.privacy_) is not None:
        if privacy.centre is not None:
            exact = graph.add("Sub", exact, np.array(privacy.centre))
        exact = graph.add("MatMul", exact, privacy.matrix(state.extractor.dim).numpy())
        norm = graph.add("ReduceL2", exact, np.array([1]), keepdims=1)
        exact = graph.add("Div", exact, graph.add("Max", norm, np.array(privacy.shortest)))
        whole, width = privacy.matrix(state.extractor.dim).shape[1], state.classifier.sums_.dim
        if width < whole:
            exact = graph.add("MatMul", exact, privacy.narrowing(whole)(width).numpy())
    weight, bias = _head(state)
    scores = graph.add("Add", graph.add("MatMul", exact, np.ascontiguousarray(weight.T)), bias)
    graph.cast(graph.add("Softmax", scores, axis=1), np.float32, output="probabilities")
    graph.add("ArgMax", scores, axis=1, keepdims=0, output="label")
    graph.add("Gather", np.array(_names(state), dtype=object), "label", output="name")
    return graph


def resized(graph: Graph, images: str, frame: Frame) -> str:
    """Resize and crop uint8 images (n, height, width, 3) as `Frame.pixels` does, to float64 (n, channels, side, side)."""
    shape = graph.add("Shape", images)
    height, width = (graph.add("Gather", shape, np.int64(axis)) for axis in (1, 2))
    shorter = graph.add("Min", height, width)
    down, across = (_weights(graph, length, shorter, frame) for length in (height, width))
    pixels = graph.cast(graph.add("Transpose", images, perm=[0, 3, 1, 2]), np.float64)
    pixels = _rounded(graph, graph.add("MatMul", pixels, graph.add("Transpose", across, perm=[1, 0])), BITS)
    pixels = _rounded(graph, graph.add("MatMul", down, pixels), BITS)
    if frame.channels == 1:
        weighted = graph.add("Mul", pixels, np.array(GREY, np.float64).reshape(3, 1, 1))
        pixels = _rounded(graph, graph.add("ReduceSum", weighted, np.array([1])), GREY_BITS)
    return pixels


def _weights(graph: Graph, length: str, shorter: str, frame: Frame) -> str:
    """Return the weights (side, length) of resizing and cropping along one axis, times 2^BITS."""
    new_length = graph.add("Div", graph.add("Mul", length, np.int64(frame.scale)), shorter)
    edge = graph.add("Mul", graph.cast(graph.add("Sub", new_length, np.int64(frame.scale)), np.float64), 0.5)
    first = graph.add("Add", graph.add("Round", edge), float(round((frame.scale - frame.side) / 2.0)))
    pixels = graph.cast(graph.add("Range", np.int64(0), length, np.int64(1)), np.float64)
    factor = graph.add("Div", graph.cast(length, np.float64), graph.cast(new_length, np.float64))
    place = graph.add("Add", first, np.arange(frame.side)[:, None] + 0.5)
    centre = graph.add("Mul", place, factor)
    distance = graph.add("Abs", graph.add("Add", graph.add("Sub", pixels, centre), 0.5))
    reach = graph.add("Div", 1.0, graph.add("Max", factor, 1.0))
    weight = graph.add("Max", graph.add("Sub", 1.0, graph.add("Mul", distance, reach)), 0.0)
    share = graph.add("Div", weight, graph.add("ReduceSum", weight, np.array([1])))
    return graph.add("Floor", graph.add("Add", graph.add("Mul", share, 2.0**BITS), 0.5))


def _rounded(graph: Graph, sums: str, bits: int) -> str:
    """Divide by 2^bits and round to integers."""
    return graph.add("Floor", graph.add("Add", graph.add("Mul", sums, 2.0**-bits), 0.5))


def _head(state: State) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return weights (K, d) and biases (K,) of the scores whose softmax are the probabilities."""
    classifier = state.classifier
    assert classifier is not None
    if isinstance(classifier, IncrementalClassifier):
        return classifier.coef_ / classifier.temperature_, classifier.intercept_ / classifier.temperature_
    return classifier.weight, classifier.bias


def _names(state: State) -> tuple[str, ...]:
    assert state.classifier is not None
    return tuple(map(str, state.classifier.classes_.tolist()))


def _serialise(graph: Graph, state: State, also: tuple[str, ...] = ()) -> bytes:
    """Return the contents of the file. `also` names further outputs, float64 (n, d)."""
    onnx, kinds, value = graph.onnx, graph.onnx.TensorProto, graph.onnx.helper.make_tensor_value_info
    outputs = [
        value("probabilities", kinds.FLOAT, ["n", len(_names(state))]),
        value("label", kinds.INT64, ["n"]),
        value("name", kinds.STRING, ["n"]),
        *(value(name, kinds.DOUBLE, ["n", "d"]) for name in also),
    ]
    inputs, doc = [value("images", kinds.UINT8, ["n", "height", "width", 3])], "Images (n, height, width, 3), RGB, upright,"
    about = {"classes": json.dumps(_names(state), ensure_ascii=False)}
    if isinstance(state.extractor, Vectors):
        inputs, doc = [value("vectors", kinds.FLOAT, ["n", state.extractor.dim])], "Vectors (n, d)"
    else:
        about["draft"] = str(2 * state.frame.scale)
    made = onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, "amgc", inputs, outputs, graph.constants),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR,
        producer_name="amgc",
        producer_version=state.manifest.amgc,
        doc_string=f"{doc} to probabilities of the classes in the metadata's `classes`.",
    )
    onnx.helper.set_model_props(made, about)
    try:
        content: bytes = made.SerializeToString()
    except Exception as error:  # above 2 GB; the exception depends on the version of protobuf
        raise ModelError(f"the model is larger than the 2 GB that an ONNX file may have: {error}") from error
    return content


def noise_images(scale: int) -> list[NDArray[np.uint8]]:
    """Return batches (n, height, width, 3) of several sizes: coarse and fine, dark and bright noise."""
    random = np.random.default_rng(0)
    sizes = [(scale, scale), (2 * scale + 3, 3 * scale + 1), (scale + 7, max(4, scale // 2)), (3 * scale, 2 * scale)]
    batches = []
    for height, width in sizes:
        several = []
        for coarse in (1, 4, 16):
            shape = (-(-height // coarse), -(-width // coarse), 3)
            low, high = sorted(random.choice(256, 2, replace=False))
            noise = random.integers(low, high + 1, shape, dtype=np.uint8)
            several.append(noise.repeat(coarse, 0).repeat(coarse, 1)[:height, :width])
        batches.append(np.stack(several))
    return batches


def noise_vectors(state: State) -> list[NDArray[Any]]:
    """Return batches (n, d), float32, of random vectors: near the class means (within their spread), and far from them."""
    assert isinstance(state.classifier, IncrementalClassifier)  # of a trained head the features are those of a network
    random, mean = np.random.default_rng(0), state.classifier.statistics_.mean.cpu().numpy()
    spread = mean.std(0) + 1e-3 * np.abs(mean).max()
    rows = mean[np.arange(12) % len(mean)]
    return [(rows + scale * spread * random.normal(size=rows.shape)).astype(np.float32) for scale in (0.1, 1.0, 3.0)]


def _verify(graph: Graph, state: State, written: Path, tried: Sequence[NDArray[Any]]) -> float:
    """Return the largest difference between the probabilities of file and model. Raise an error if it is too large."""
    import onnxruntime

    extractor, entry = state.extractor, "vectors" if isinstance(state.extractor, Vectors) else "images"
    assert extractor is not None and state.classifier is not None
    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    contents = (os.fspath(written), _serialise(graph, state, ("features",)))
    try:
        file, inside = (onnxruntime.InferenceSession(one, options, providers=["CPUExecutionProvider"]) for one in contents)
        answers = [file.run(None, {entry: images}) for images in tried]
        encoded = [inside.run(["features"], {entry: images})[0] for images in tried]
    except Exception as error:  # onnxruntime has its own exceptions, some of them RuntimeErrors
        raise ModelError(f"onnxruntime cannot run the exported model; nothing was written: {error}") from error
    differences = []
    for images, (shares, label, name), found in zip(tried, answers, encoded, strict=True):
        if isinstance(extractor, Vectors):
            own = images
        else:
            pixels = np.stack([state.frame.pixels(Input("a test image", image)) for image in images])
            own = encode(extractor, pixels).numpy()
        expected = state.classifier.predict_proba(own)
        allowed = TOLERANCE * np.maximum(1, -np.log(expected.min(1).clip(1e-300)))
        off = np.abs(shares - expected).max(1)
        missed = expected.max(1) - expected[np.arange(len(label)), label]  # 0 also if two classes are equally likely
        apart = float(np.abs(found - own).max() / max(1.0, float(np.abs(own).max())))
        named = [_names(state)[number] for number in label]
        if not (np.maximum(off, missed) <= allowed).all() or not apart <= FEATURE_TOLERANCE or list(name) != named:
            raise ModelError(
                f"the exported model computes different predictions; nothing was written. Probabilities differ by "
                f"{off.max():.1g} (allowed: {allowed.min():.1g}), features by {apart:.1g} of the largest "
                f"(allowed: {FEATURE_TOLERANCE:g})."
            )
        differences.append(float(off.max()))
    return max(differences)
