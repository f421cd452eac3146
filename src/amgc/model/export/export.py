"""The whole file: graph, class names, check."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amgc.estimator import AMGCClassifier
from amgc.files import atomic
from amgc.model.export.features import features
from amgc.model.export.graph import IR, OPSET, Graph, import_onnx
from amgc.model.export.pictures import framed
from amgc.model.extractors import encode
from amgc.model.pictures import Picture
from amgc.model.results import ModelError
from amgc.model.state import State

TOLERANCE = 1e-5  # of probabilities, for each unit that the scores are apart: float32 features make scores no more exact
FEATURE_TOLERANCE = 1e-4  # of features, beside the largest: probabilities of 0 and 1 hide what is wrong with them


@dataclass(frozen=True)
class Exported:
    """What was written: its size, and how far its probabilities were from the model's at most, over the pictures tried."""

    path: str
    bytes: int
    classes: tuple[str, ...]
    difference: float
    pictures: int


def export_onnx(now: State, path: str | os.PathLike[str]) -> Exported:
    """Write a model as ONNX, after onnxruntime has given the model's own answers with it."""
    import_onnx()
    if now.classifier is None:
        raise ModelError("the model knows no class yet, so there is nothing to export; learn some first.")
    graph = _graph(now)
    with atomic(path) as temporary:
        content = _file(graph, now)
        temporary.write_bytes(content)
        tried = trial_pictures(now.frame.scale)
        difference = _checked(graph, now, temporary, tried)
    return Exported(os.fspath(path), len(content), _names(now), difference, sum(map(len, tried)))


def _graph(now: State) -> Graph:
    """images → probabilities, label, name."""
    assert now.extractor is not None and now.classifier is not None
    graph = Graph()
    found = features(graph, framed(graph, "images", now.frame), now.extractor)
    exact = graph.cast(found, np.float64, output="features")
    weight, bias = _head(now)
    scores = graph.add("Add", graph.add("MatMul", exact, np.ascontiguousarray(weight.T)), bias)
    graph.cast(graph.add("Softmax", scores, axis=1), np.float32, output="probabilities")
    graph.add("ArgMax", scores, axis=1, keepdims=0, output="label")
    graph.add("Gather", np.array(_names(now), dtype=object), "label", output="name")
    return graph


def _head(now: State) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights (K, d) and biases (K,) of scores whose softmax are the probabilities."""
    classifier = now.classifier
    assert classifier is not None
    if isinstance(classifier, AMGCClassifier):
        return classifier.coef_ / classifier.temperature_, classifier.intercept_ / classifier.temperature_
    return classifier.weight, classifier.bias


def _names(now: State) -> tuple[str, ...]:
    assert now.classifier is not None
    return tuple(map(str, now.classifier.classes_.tolist()))


def _file(graph: Graph, now: State, also: tuple[str, ...] = ()) -> bytes:
    """The file's content; `also` names float64 values (n, d) that are put out besides."""
    onnx, count = graph.onnx, len(_names(now))
    kinds = onnx.TensorProto
    value = onnx.helper.make_tensor_value_info
    outputs = [
        value("probabilities", kinds.FLOAT, ["n", count]),
        value("label", kinds.INT64, ["n"]),
        value("name", kinds.STRING, ["n"]),
        *(value(name, kinds.DOUBLE, ["n", "d"]) for name in also),
    ]
    inputs = [value("images", kinds.UINT8, ["n", "height", "width", 3])]
    made = onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, "amgc", inputs, outputs, graph.constants),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR,
        producer_name="amgc",
        producer_version=now.manifest.amgc,
        doc_string="Images (n, height, width, 3), RGB, upright, to probabilities of the classes in the metadata's `classes`.",
    )
    about = {"classes": json.dumps(_names(now), ensure_ascii=False), "draft": str(2 * now.frame.scale)}
    onnx.helper.set_model_props(made, about)
    try:
        content: bytes = made.SerializeToString()
    except Exception as error:  # protobuf's own, by version: above 2 GB
        raise ModelError(f"the model does not fit into one ONNX file, which may have 2 GB: {error}") from error
    return content


def trial_pictures(scale: int) -> list[NDArray[np.uint8]]:
    """Batches (n, height, width, 3) of several sizes: noise, coarse and fine, dark and light; none is anybody's picture."""
    chance = np.random.default_rng(0)
    sizes = [(scale, scale), (2 * scale + 3, 3 * scale + 1), (scale + 7, max(4, scale // 2)), (3 * scale, 2 * scale)]
    batches = []
    for height, width in sizes:
        several = []
        for coarse in (1, 4, 16):
            shape = (-(-height // coarse), -(-width // coarse), 3)
            low, high = sorted(chance.choice(256, 2, replace=False))
            noise = chance.integers(low, high + 1, shape, dtype=np.uint8)
            several.append(noise.repeat(coarse, 0).repeat(coarse, 1)[:height, :width])
        batches.append(np.stack(several))
    return batches


def _checked(graph: Graph, now: State, written: Path, tried: list[NDArray[np.uint8]]) -> float:
    """How far the file's probabilities are from the model's at most; an error if that is too far."""
    import onnxruntime

    assert now.extractor is not None and now.classifier is not None
    quiet: Any = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    try:
        file = onnxruntime.InferenceSession(os.fspath(written), quiet, providers=["CPUExecutionProvider"])
        inside = onnxruntime.InferenceSession(_file(graph, now, ("features",)), quiet, providers=["CPUExecutionProvider"])
        answers = [file.run(None, {"images": images}) for images in tried]
        encoded = [inside.run(["features"], {"images": images})[0] for images in tried]
    except Exception as error:  # onnxruntime has its own exceptions, some of them RuntimeErrors
        raise ModelError(f"onnxruntime cannot run the exported model, so nothing was written: {error}") from error
    differences = []
    for images, (shares, label, name), found in zip(tried, answers, encoded, strict=True):
        pixels = np.stack([now.frame.pixels(Picture("a trial picture", image)) for image in images])
        own = encode(now.extractor, pixels).numpy()
        expected = now.classifier.predict_proba(own)
        allowed = TOLERANCE * np.maximum(1, -np.log(expected.min(1).clip(1e-300)))
        off = np.abs(shares - expected).max(1)
        missed = expected.max(1) - expected[np.arange(len(label)), label]  # by the label, unless two are equally likely
        apart = float(np.abs(found - own).max() / max(1.0, float(np.abs(own).max())))
        named = [_names(now)[number] for number in label]
        if not (np.maximum(off, missed) <= allowed).all() or not apart <= FEATURE_TOLERANCE or list(name) != named:
            raise ModelError(
                f"the exported model does not answer as the model does, so nothing was written: probabilities differ by "
                f"{off.max():.1g} ({allowed.min():.1g} is allowed), features by {apart:.1g} of the largest "
                f"({FEATURE_TOLERANCE:g} is allowed)."
            )
        differences.append(float(off.max()))
    return max(differences)
