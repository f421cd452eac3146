"""Weight files: fitting weights are loaded, errors name what does not fit, and no code in a file is executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from amgc import files, tensor_files
from amgc.features.extractor import Extractor
from amgc.features.registry import build, extractors
from amgc.features.weights import load_extractor, load_weights, read_weights, save_extractor

pytestmark = pytest.mark.cpus

SHAPE = (3, 16, 16)
SMALL = {"width": 0.125}


def same(first: Extractor, second: Extractor) -> bool:
    one, other = first.state_dict(), second.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.fixture
def network() -> Extractor:
    torch.manual_seed(0)
    network = build("resnet18", image_shape=SHAPE, **SMALL)
    network(torch.randn(4, *SHAPE))  # moves the running statistics
    return network


@pytest.mark.parametrize("name", [name for name in extractors() if name not in ("timm", "patches", "layers")])
def test_a_saved_extractor_comes_back_with_its_options_and_the_same_features(name: str, tmp_path: Path) -> None:
    saved = build(name, image_shape=SHAPE)
    saved(torch.randn(4, *SHAPE))
    save_extractor(tmp_path / "net.safetensors", saved)
    loaded = load_extractor(tmp_path / "net.safetensors")
    assert (loaded.name, loaded.image_shape, loaded.dim) == (saved.name, saved.image_shape, saved.dim)
    images = torch.randn(2, *SHAPE)
    assert torch.equal(loaded.eval()(images), saved.eval()(images))


def test_a_saved_extractor_does_not_tell_the_path_of_its_first_weights(network: Extractor, tmp_path: Path) -> None:
    save_extractor(tmp_path / "one.safetensors", network)
    second = build("resnet18", image_shape=SHAPE, weights=str(tmp_path / "one.safetensors"), **SMALL)
    save_extractor(tmp_path / "two.safetensors", second)
    assert str(tmp_path).encode() not in (tmp_path / "two.safetensors").read_bytes()
    assert same(load_extractor(tmp_path / "two.safetensors"), network)


def test_a_file_of_ours_says_how_images_were_normalised(network: Extractor, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    for mean, std in (((0.5, 0.4, 0.3), (0.2, 0.2, 0.1)), (None, None)):
        network.mean, network.std = mean, std
        save_extractor(path, network)
        loaded = load_extractor(path)
        assert (loaded.mean, loaded.std) == (mean, std)
    network.mean, network.std = (0.5,), (0.2,)
    torch.save(network.state_dict(), tmp_path / "net.pth")
    load_weights(network, tmp_path / "net.pth")
    assert (network.mean, network.std) == ((0.5,), (0.2,)), "a foreign file says nothing"


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("timm", "hf-hub:owner/model"),
        ("timm", "hf_hub:owner/model"),
        ("timm", "local-dir:/home/somebody"),
        ("timm", "HF-HUB:owner/model"),
        ("timm", "owner/model"),
        ("timm", "..\\model"),
        ("timm", "resnet18@main"),
        ("timm", "resnet18\n"),
        ("timm:hf-hub:owner/model", ""),
        ("timm:resnet18", "resnet18"),
    ],
)
def test_a_file_that_names_a_place_to_get_a_model_from_is_refused_before_anything_is_built(
    name: str, model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    header = {"extractor": name, "image_shape": SHAPE, "options": {"model": model, "pretrained": True}}
    tensor_files.write(tmp_path / "net.safetensors", "extractor", header, {"x": torch.zeros(1)})
    monkeypatch.setattr("amgc.features.weights.blank", lambda *_, **__: pytest.fail("something was built"))
    with pytest.raises(files.FileFormatError, match="not a plain name of timm"):
        load_extractor(tmp_path / "net.safetensors")


@pytest.mark.parametrize("change", [{"options": {"model": 3}}, {"options": []}, {"extractor": 3}, {"image_shape": None}])
def test_a_header_of_another_form_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    header = {"extractor": "convnet", "image_shape": SHAPE, "options": {}, **change}
    tensor_files.write(tmp_path / "net.safetensors", "extractor", header, {"x": torch.zeros(1)})
    with pytest.raises(files.FileFormatError, match="by another version of amgc"):
        load_extractor(tmp_path / "net.safetensors")


@pytest.mark.parametrize("name", ["patches", "convnet"])
@pytest.mark.parametrize("shape", [(10**30, 8, 8), (1, 10**30, 8), (10**9, 8, 8), (1e400, 8, 8)])
def test_absurd_sizes_of_images_are_refused_before_anything_is_built(name: str, shape: Any, tmp_path: Path) -> None:
    header = {"extractor": name, "image_shape": shape, "options": {}}
    tensor_files.write(tmp_path / "net.safetensors", "extractor", header, {"x": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"image_shape must be|damaged|another version"):
        load_extractor(tmp_path / "net.safetensors")


@pytest.mark.any_cpu
@pytest.mark.parametrize("wrong", [([0.5], [0.0]), ([0.5], None), (["x"], [1.0]), ([], []), ([float("nan")], [1.0]), (3, 3)])
def test_a_file_with_an_impossible_normalisation_is_refused(wrong: Any, network: Extractor, tmp_path: Path) -> None:
    network.mean, network.std = wrong
    save_extractor(tmp_path / "net.safetensors", network)
    with pytest.raises(files.FileFormatError, match="do not fit together"):
        load_extractor(tmp_path / "net.safetensors")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"epoch": 3, "state_dict": state},
        lambda state: {"model": {f"module.{key}": value for key, value in state.items()}},
        lambda state: {**state, "fc.weight": torch.zeros(10, 64), "fc.bias": torch.zeros(10)},
        lambda state: {key: value for key, value in state.items() if "num_batches" not in key},
    ],
    ids=["plain", "checkpoint", "data parallel", "with classifier", "without counters"],
)
def test_a_torch_file_loads_in_the_forms_that_are_published(wrap: Any, network: Extractor, tmp_path: Path) -> None:
    torch.save(wrap(network.state_dict()), tmp_path / "net.pth")
    loaded = build("resnet18", image_shape=SHAPE, weights=str(tmp_path / "net.pth"), **SMALL)
    images = torch.randn(2, *SHAPE)
    assert torch.equal(loaded.eval()(images), network.eval()(images))


def test_a_safetensors_file_of_another_program_loads(network: Extractor, tmp_path: Path) -> None:
    safetensors.torch.save_file(network.state_dict(), tmp_path / "net.safetensors")
    assert same(build("resnet18", image_shape=SHAPE, weights=str(tmp_path / "net.safetensors"), **SMALL), network)


def test_half_precision_weights_load_into_float32(network: Extractor, tmp_path: Path) -> None:
    half = {key: value.half() if value.is_floating_point() else value for key, value in network.state_dict().items()}
    torch.save(half, tmp_path / "net.pth")
    load_weights(network, tmp_path / "net.pth")
    assert all(parameter.dtype == torch.float32 for parameter in network.parameters())


def refused(network: Extractor, state: dict[str, Tensor], path: Path) -> str:
    torch.save(state, path)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    with pytest.raises(ValueError) as caught:
        load_weights(network, path)
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())
    return str(caught.value)


def test_missing_and_unexpected_weights_are_named_and_nothing_is_loaded(network: Extractor, tmp_path: Path) -> None:
    state = {key: value + 1 for key, value in network.state_dict().items() if not key.startswith("bn1.r")}
    message = refused(network, {**state, "layer5.weight": torch.zeros(1)}, tmp_path / "net.pth")
    assert "2 missing (bn1.running_mean, bn1.running_var)" in message
    assert "1 unexpected (layer5.weight)" in message


def test_the_weights_of_another_stem_are_refused_with_both_shapes(network: Extractor, tmp_path: Path) -> None:
    other = build("resnet18", image_shape=SHAPE, stem="imagenet", **SMALL)
    message = refused(network, other.state_dict(), tmp_path / "net.pth")
    assert "conv1.weight is (8, 3, 7, 7) instead of (8, 3, 3, 3)" in message
    assert "stem='cifar'" in message


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("kept", [0, 5, 100, 0.5, 0.99])
def test_a_truncated_file_is_refused(network: Extractor, suffix: str, kept: float, tmp_path: Path) -> None:
    path = tmp_path / f"net{suffix}"
    if suffix == ".pth":
        torch.save(network.state_dict(), path)
    else:
        save_extractor(path, network)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept if kept >= 1 else kept * len(whole))])
    with pytest.raises(files.FileFormatError, match=path.name):
        read_weights(path)


def test_a_flipped_byte_in_our_own_file_is_noticed(network: Extractor, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    save_extractor(path, network)
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with pytest.raises(files.FileFormatError, match="checksum"):
        build("resnet18", image_shape=SHAPE, weights=str(path), **SMALL)


class Evil:
    """An object that writes a file if it is unpickled in the ordinary way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path: Path) -> None:
    torch.save({"conv1.weight": torch.zeros(1), "x": Evil(tmp_path / "ran")}, tmp_path / "net.pth")
    with pytest.raises(files.FileFormatError, match="more than tensors"):
        read_weights(tmp_path / "net.pth")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [[torch.zeros(1)], {"epoch": 3}, torch.zeros(2), {1: torch.zeros(1)}])
def test_a_file_without_named_tensors_is_refused(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "net.pth")
    with pytest.raises(files.FileFormatError, match="no state dict"):
        read_weights(tmp_path / "net.pth")


def test_a_foreign_file_and_a_missing_one_are_named(tmp_path: Path) -> None:
    (tmp_path / "photo.pth").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    with pytest.raises(files.FileFormatError, match=r"photo\.pth.*cannot be read as weights"):
        read_weights(tmp_path / "photo.pth")
    with pytest.raises(FileNotFoundError, match=r"no weights file .*gone\.pth"):
        build("resnet18", image_shape=SHAPE, weights=str(tmp_path / "gone.pth"))


def test_a_file_of_another_kind_is_not_taken_for_weights(tmp_path: Path) -> None:
    tensor_files.write(tmp_path / "x.safetensors", "class statistics", {}, {"mean": torch.zeros(1)})
    with pytest.raises(files.FileFormatError, match="class statistics"):
        build("convnet", image_shape=SHAPE, weights=str(tmp_path / "x.safetensors"))
