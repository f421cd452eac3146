"""EfficientNet-Lite with numpy: the same features as the network of torch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from amgc import tensor_files
from amgc.data.augment import normalise
from amgc.features import build
from amgc.features.extractor import Extractor
from amgc.features.lite import Lite, is_installed
from amgc.features.lite_arrays import LiteArrays, can_compute
from amgc.features.lite_layout import VARIANTS, Layout, same
from amgc.features.registry import KIND
from amgc.features.weights import save_extractor
from amgc.files import FileFormatError

pytestmark = pytest.mark.cpus


def pictures(channels: int, size: int) -> list[NDArray[np.uint8]]:
    """A smooth picture, noise, and one colour."""
    rng = np.random.default_rng(0)
    smooth = 127 + 100 * np.sin(np.linspace(0, 6, channels * size * size)).reshape(channels, size, size)
    noise = rng.integers(0, 256, (channels, size, size))
    return [smooth.astype(np.uint8), noise.astype(np.uint8), np.full((channels, size, size), 90, np.uint8)]


def both(name: str, path: Path, channels: int, size: int, **options: object) -> tuple[Extractor, LiteArrays]:
    if not is_installed(name):
        pytest.skip(f"{VARIANTS[name].package} is not installed")
    network = build(name, image_shape=(channels, size, size), **options).eval().requires_grad_(False)
    save_extractor(path, network)
    arrays = LiteArrays.read(path)
    assert arrays is not None
    return network, arrays


@pytest.mark.parametrize(
    ("name", "channels", "size", "options"),
    [
        ("lite0", 3, 224, {}),
        ("lite0", 3, 97, {"stages": (3, 7, 8), "textures": (1, 5), "unit": False}),
        ("lite0", 1, 64, {"stages": (5,), "textures": ()}),
        ("lite1", 3, 96, {"stages": (), "textures": (2,)}),
        ("lite2", 3, 75, {}),
    ],
)
def test_the_features_are_those_of_the_network_of_torch(name, channels, size, options, tmp_path):
    network, arrays = both(name, tmp_path / "network.safetensors", channels, size, **options)
    for pixels in pictures(channels, size):
        with torch.no_grad():
            expected = network(normalise(torch.from_numpy(pixels)[None], network.mean, network.std))[0].numpy()
        found = arrays.features(pixels)
        assert found.dtype == np.float32 and found.shape == (network.dim,)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-6 * np.abs(expected).max())


def test_the_layout_has_the_shapes_of_the_networks_weights():
    for name in VARIANTS:
        if is_installed(name):
            network = build(name, image_shape=(3, 64, 64), stages=(2, 8), textures=())
            assert isinstance(network, Lite)
            found = {layer: tuple(tensor.shape) for layer, tensor in network.state_dict().items() if layer.endswith(".weight")}
            assert found == {f"{layer}.weight": shape for layer, shape in network.layout.shapes().items()}


@pytest.mark.parametrize(("size", "kernel", "stride"), [(7, 3, 2), (8, 3, 2), (8, 5, 2), (9, 5, 1), (1, 5, 2), (2, 3, 2)])
def test_padding_gives_as_many_pixels_as_in_tensorflow(size, kernel, stride):
    before, after = same(size, kernel, stride)
    assert (before + size + after - kernel) // stride + 1 == -(-size // stride) and 0 <= after - before <= 1


def test_other_extractors_and_resized_images_need_torch(tmp_path):
    for name, options in (("convnet", {}), ("lite0", {"resize": 64})):
        if name != "lite0" or is_installed("lite0"):
            network = build(name, image_shape=(3, 32, 32), **options)
            assert not can_compute(network.name, network.options)
            save_extractor(tmp_path / f"{name}.safetensors", network)
            assert LiteArrays.read(tmp_path / f"{name}.safetensors") is None


@pytest.mark.parametrize("fault", ["shape", "type", "missing", "std", "channels", "options"])
def test_a_file_that_does_not_fit_is_refused(fault, tmp_path):
    path = tmp_path / "network.safetensors"
    both("lite0", path, 3, 32, stages=(1,), textures=())
    header, arrays = tensor_files.read_arrays(path, KIND)
    if fault == "shape":
        arrays["blocks.0.depthwise.weight"] = arrays["blocks.0.depthwise.weight"][:, :, :1]  # would be broadcast
    elif fault == "type":
        arrays["stem.bias"] = arrays["stem.bias"].astype(np.float64)
    elif fault == "missing":
        del arrays["blocks.0.project.bias"]
    elif fault == "std":
        header["std"] = [0.5, 0.0, 0.5]
    elif fault == "channels":
        header["image_shape"] = [2, 32, 32]
    else:
        header["options"]["stages"] = "all"
    tensor_files.write_arrays(path, KIND, header, arrays)
    with pytest.raises(FileFormatError, match=str(path)):
        LiteArrays.read(path)


def test_a_layout_ends_with_the_last_stage_that_is_used():
    from amgc.features.builtin import LiteOptions

    whole, part = (Layout.of("lite0", dataclasses.replace(LiteOptions(), stages=stages)) for stages in ((5, 8), (5,)))
    assert whole.top and not part.top and part.blocks == whole.blocks[: len(part.blocks)] and part.far == whole.far
    assert (whole.dim, part.dim, part.far) == (40 + 80 + 2 * 112 + 1280, 40 + 80 + 2 * 112, range(120, 232))
