"""A model as an ONNX file: onnxruntime predicts what the model predicts."""

from __future__ import annotations

import builtins
import json

import numpy as np
import pytest
import torch
from model.drawing import draw
from PIL import Image

from amgc.cli.main import main
from amgc.features import build
from amgc.features.onnx import IR, OPSET, Graph, _area
from amgc.features.weights import save_extractor
from amgc.model import Model, ModelError
from amgc.model import onnx as export
from amgc.model.inputs import Frame, Input
from amgc.model.onnx import export_onnx, resized

pytestmark = pytest.mark.cpus

onnxruntime = pytest.importorskip("onnxruntime")
SIZES = [(64, 64), (40, 40), (97, 131), (131, 64), (7, 5), (33, 200)]


def taught(path, features="patches", **options) -> Model:
    model = Model.create(path / "model", features, **options)
    model.learn_all({kind: draw(kind, 12) for kind in ("cat", "dog", "owl", "ñandú/鳥 🐦")})
    return model


@pytest.fixture(autouse=True)
def same_weights():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def lived(network: torch.nn.Module) -> torch.nn.Module:
    """Set batch norms to values as after training."""
    for layer in network.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.3)
            layer.running_var.uniform_(0.5, 2)
    return network


def blends(size: tuple[int, int], count: int = 3) -> np.ndarray:
    """Return images (n, h, w, 3) between two classes, so that no probability is rounded to 0 or 1."""
    rng = np.random.default_rng(sum(size))
    first, second = (np.stack(draw(kind, count, seed=5)).astype(float) for kind in ("cat", "dog"))
    mixed = (first + second) / 2 + rng.normal(0, 3, first.shape)
    resized = [Image.fromarray(one.clip(0, 255).astype(np.uint8)).resize(size[::-1]) for one in mixed]
    return np.stack([np.asarray(one) for one in resized])


def answers(path, images):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["probabilities", "label", "name"], {"images": images})


def check_same(model: Model, path) -> None:
    unsure = 0
    for size in SIZES:
        images = blends(size)
        shares, label, name = answers(path, images)
        for one, own, number, called in zip(model.predict(images, top=4), shares, label, name, strict=True):
            expected = dict(zip(one.labels, one.probabilities, strict=True))
            sharp = max(
                1, np.log(one.probabilities[0] / one.probabilities[-1])
            )  # float32 features: 1e-5 for each unit of score
            np.testing.assert_allclose(own, [expected[key] for key in sorted(expected)], rtol=0, atol=1e-5 * sharp)
            assert called == one.label == sorted(expected)[number]
            unsure += one.probabilities[0] < 0.999
    assert unsure, "probabilities of 0 and 1 would say nothing"


@pytest.mark.parametrize(
    "options",
    [
        {"filters": 12},
        {"filters": 12, "components": 3},
        {"filters": 7, "mirror": False, "size": 24, "sizes": (3, 5), "power": 1.0},
    ],
)
def test_patches_answer_the_same_in_onnxruntime(tmp_path, options):
    model = taught(tmp_path, **options)
    made = model.export_onnx(tmp_path / "model.onnx")
    assert made.difference <= 1e-4 and made.bytes == (tmp_path / "model.onnx").stat().st_size
    check_same(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == sorted(model.classes) == list(made.classes)


def test_larger_images_are_reduced_by_area_before_patches(tmp_path):
    model = taught(tmp_path, filters=6, size=50, side=36)
    model.export_onnx(tmp_path / "model.onnx")
    check_same(model, tmp_path / "model.onnx")
    line = torch.rand(1, 1, 50, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.interpolate(line, 36, mode="area")
    np.testing.assert_allclose(_area(50, 36) @ line[0, 0].numpy(), expected[0, 0].numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    "features, options",
    [("convnet", {"dim": 8}), pytest.param("resnet18", {"width": 0.0625}, marks=pytest.mark.slow)],
)
def test_networks_answer_the_same_in_onnxruntime(tmp_path, features, options):
    network = lived(build(features, image_shape=(1 if features == "convnet" else 3, 24, 24), **options))
    save_extractor(tmp_path / "network.safetensors", network)
    model = taught(tmp_path, tmp_path / "network.safetensors")
    model.export_onnx(tmp_path / "model.onnx")
    check_same(model, tmp_path / "model.onnx")


def test_a_network_of_timm_learns_answers_opens_and_answers_the_same_in_onnxruntime(tmp_path, timm):
    model = taught(tmp_path, "timm:mobilenetv3_small_050", pretrained=False, size=32)
    opened = Model.open(model.path)
    images = blends((32, 32))
    assert opened.classes == model.classes and opened.predict(images, top=4) == model.predict(images, top=4)
    made = opened.export_onnx(tmp_path / "model.onnx")
    assert made.difference <= 1e-4
    check_same(model, tmp_path / "model.onnx")


def test_grey_images_for_a_colour_network_of_timm_have_the_same_prediction_in_onnxruntime(tmp_path, timm):
    """Each channel has its own mean and standard deviation."""
    torch.save(lived(timm.create_model("resnet10t")).state_dict(), tmp_path / "published.pth")
    network = build("timm:resnet10t", image_shape=(1, 32, 32), weights=str(tmp_path / "published.pth"))
    assert len(network.mean) == 3
    save_extractor(tmp_path / "network.safetensors", network)
    model = taught(tmp_path, tmp_path / "network.safetensors")
    model.export_onnx(tmp_path / "model.onnx")
    check_same(model, tmp_path / "model.onnx")


@pytest.mark.parametrize("frame", [Frame(32, 32, 3), Frame(28, 32, 3), Frame(20, 20, 1), Frame(9, 12, 1)])
def test_images_are_resized_bit_identically_to_pillow(frame):
    graph = Graph()
    helper, kinds = graph.onnx.helper, graph.onnx.TensorProto
    inside = helper.make_tensor_value_info("images", kinds.UINT8, ["n", "h", "w", 3])
    outside = helper.make_tensor_value_info(resized(graph, "images", frame), kinds.DOUBLE, None)
    made = helper.make_graph(graph.nodes, "resize", [inside], [outside], graph.constants)
    whole = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
    session = onnxruntime.InferenceSession(whole.SerializeToString())
    rng = np.random.default_rng(0)
    for _ in range(40):
        height, width = rng.integers(4, 150, 2)
        images = rng.integers(0, 256, (2, height, width, 3), dtype=np.uint8)
        expected = np.stack([frame.pixels(Input("one", image)) for image in images])
        np.testing.assert_array_equal(session.run(None, {"images": images})[0], expected, err_msg=f"{height} × {width}")


def test_a_file_that_answers_otherwise_is_not_written(tmp_path, monkeypatch):
    model = taught(tmp_path, filters=6)
    (tmp_path / "model.onnx").write_text("what was there")
    right = export._head

    def wrong(now):
        weight, bias = right(now)
        return weight, bias + np.array([0.01, 0, 0, 0])

    monkeypatch.setattr(export, "_head", wrong)
    monkeypatch.setattr(export, "noise_images", lambda scale: [blends((64, 64))])
    with pytest.raises(ModelError, match="computes different predictions"):
        model.export_onnx(tmp_path / "model.onnx")
    monkeypatch.undo()
    monkeypatch.setattr("amgc.model.onnx.BITS", 5)  # coarse weights: pixels that are off by a few
    with pytest.raises(ModelError, match="computes different predictions"):
        model.export_onnx(tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_text() == "what was there"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.onnx"]


def test_a_model_that_cannot_be_exported_is_refused_with_the_reason(tmp_path, monkeypatch):
    with pytest.raises(ModelError, match="has no classes yet"):
        Model.create(tmp_path / "empty").export_onnx(tmp_path / "empty.onnx")
    model = taught(tmp_path, filters=6)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        model.export_onnx(tmp_path / "nowhere" / "model.onnx")

    def without(name, *rest):
        if name.startswith("onnxruntime"):
            raise ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime")
        return imported(name, *rest)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'amgc\[onnx\]'"):
        export_onnx(model._state, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.filterwarnings("error")
def test_the_command_writes_a_file_and_reports_its_difference_from_the_model(tmp_path, monkeypatch, capsys):
    taught(tmp_path, filters=6)
    monkeypatch.chdir(tmp_path)
    assert main(["export", "model", "--onnx", "model.onnx"]) == 0
    said = capsys.readouterr().out
    assert "model.onnx: 4 classes" in said and "differ from the model's by" in said
    assert answers(tmp_path / "model.onnx", blends((30, 50)))[0].shape == (3, 4)
