"""The feature cache never returns wrong features, and leaves no incomplete files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amgc.features.cache import cached_features, clear, extract_features
from amgc.features.extractor import Extractor, freeze_batchnorm
from amgc.features.registry import build

pytestmark = pytest.mark.cpus


def scaled(pixels: Tensor) -> Tensor:
    return pixels.float() / 255


@pytest.fixture
def network() -> Extractor:
    torch.manual_seed(0)
    return build("convnet", image_shape=(1, 8, 8))


@pytest.fixture
def passes(network: Extractor) -> list[int]:
    """Return a list of the sizes of batches that go through the network."""
    sizes: list[int] = []
    network.register_forward_hook(lambda _module, inputs, _output: sizes.append(len(inputs[0])))
    return sizes


def cached(network: Extractor, pixels: Any, directory: Path, **change: Any) -> Tensor:
    return cached_features(network, pixels, **{"preprocess": scaled, "directory": directory, "batch_size": 4, **change})


def stored(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


def test_features_are_those_of_the_network_in_evaluation_mode(network: Extractor, pixels: Any, tmp_path: Path) -> None:
    features = cached(network.train(), pixels, tmp_path)
    assert features.dtype == torch.float32 and features.shape == (10, network.dim)
    with torch.no_grad():
        torch.testing.assert_close(features, network.eval()(scaled(pixels.pixels)))


def test_the_second_time_the_network_is_not_run(network: Extractor, pixels: Any, passes: list[int], tmp_path: Path) -> None:
    first = cached(network, pixels, tmp_path)
    assert passes == [4, 4, 2]
    assert torch.equal(cached(network, pixels, tmp_path), first)
    assert passes == [4, 4, 2]


def test_never_more_than_a_batch_is_in_memory(network: Extractor, pixels: Any, tmp_path: Path) -> None:
    cached(network, pixels, tmp_path, batch_size=3)
    assert pixels.largest == 3


@pytest.mark.parametrize("what", ["weight", "running_mean", "pixel", "label", "preprocess", "order"])
def test_whatever_changes_makes_a_new_entry(
    what: str, network: Extractor, pixels: Any, passes: list[int], tmp_path: Path
) -> None:
    cached(network, pixels, tmp_path)
    preprocess = scaled
    if what in ("weight", "running_mean"):
        layer = next(layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d))
        with torch.no_grad():
            getattr(layer, what)[0] += 1e-3
    elif what == "pixel":
        pixels.pixels[9, 0, 7, 7] ^= 1
    elif what == "label":
        pixels.labels[9] += 1
    elif what == "order":
        pixels.pixels = pixels.pixels.flip(0)
    else:
        preprocess = lambda raw: raw.float() / 256  # noqa: E731
    changed = cached(network, pixels, tmp_path, preprocess=preprocess)
    assert len(passes) == 6 and len(stored(tmp_path)) == 2
    assert torch.equal(changed, extract_features(network, pixels, preprocess=preprocess, batch_size=4))


def test_the_same_weights_under_other_options_make_a_new_entry(pixels: Any, tmp_path: Path) -> None:
    one, other = (build("resnet18", image_shape=(1, 8, 8), width=0.125, stem=stem) for stem in ("cifar", "imagenet3"))
    other.load_state_dict(one.state_dict())  # the stems differ in a pool, which has no weights
    assert not torch.equal(cached(one, pixels, tmp_path), cached(other, pixels, tmp_path))
    assert len(stored(tmp_path)) == 2


def test_the_same_weights_from_a_file_use_the_same_entry(network: Extractor, pixels: Any, tmp_path: Path) -> None:
    torch.save(network.state_dict(), tmp_path / "net.pth")
    again = build("convnet", image_shape=(1, 8, 8), weights=str(tmp_path / "net.pth"))
    assert torch.equal(cached(network, pixels, tmp_path / "cache"), cached(again, pixels, tmp_path / "cache"))
    assert len(stored(tmp_path / "cache")) == 1


@pytest.mark.parametrize("damage", ["truncate", "flip", "foreign", "empty", "renamed"])
def test_a_damaged_file_is_computed_again_with_a_warning(damage: str, network: Extractor, pixels: Any, tmp_path: Path) -> None:
    first = cached(network, pixels, tmp_path)
    (path,) = stored(tmp_path)
    content = path.read_bytes()
    if damage == "renamed":  # a whole file, but of other images
        pixels.pixels[0] = 0
        cached(network, pixels, tmp_path)
        (other,) = set(stored(tmp_path)) - {path}
        path.replace(other)
        path, first = other, extract_features(network, pixels, preprocess=scaled, batch_size=4)
    else:
        flipped = content[:-1] + bytes([content[-1] ^ 1])
        bad = {"truncate": content[: len(content) // 2], "flip": flipped, "foreign": b"hello", "empty": b""}[damage]
        path.write_bytes(bad)
    with pytest.warns(UserWarning, match="computed again"):
        assert torch.equal(cached(network, pixels, tmp_path), first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(cached(network, pixels, tmp_path), first)


def test_a_folder_that_cannot_be_written_costs_the_cache_but_not_the_features(
    network: Extractor, pixels: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="could not be cached"):
        assert len(cached(network, pixels, tmp_path / "file" / "cache")) == 10


def test_modes_gradients_and_fixed_batch_norms_are_as_before(network: Extractor, pixels: Any, tmp_path: Path) -> None:
    freeze_batchnorm(network.train())
    before = [layer.training for layer in network.modules()]
    features = cached(network, pixels, tmp_path)
    assert [layer.training for layer in network.modules()] == before and torch.is_grad_enabled()
    head = nn.Linear(network.dim, 3)
    for rows in (features, cached(network, pixels, tmp_path)):
        head(rows).sum().backward()  # an inference tensor would refuse


def test_a_random_preprocess_is_refused(network: Extractor, pixels: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="features cannot be cached"):
        cached(network, pixels, tmp_path, preprocess=lambda raw: scaled(raw) + torch.rand(1))
    assert not stored(tmp_path)


def test_no_images_give_no_rows_and_no_file(network: Extractor, empty: Any, tmp_path: Path) -> None:
    assert cached(network, empty, tmp_path).shape == (0, network.dim)
    assert not stored(tmp_path)


def test_clear_deletes_features_and_unfinished_ones_and_nothing_else(network: Extractor, pixels: Any, tmp_path: Path) -> None:
    cached(network, pixels, tmp_path)
    (tmp_path / ".features-abc.safetensors.x.partial").touch()
    (tmp_path / "model.safetensors").touch()
    assert clear(tmp_path) == 2
    assert [path.name for path in stored(tmp_path)] == ["model.safetensors"]
    assert clear(tmp_path / "nowhere") == 0


def test_a_batch_size_of_nothing_is_an_error(network: Extractor, pixels: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        cached(network, pixels, tmp_path, batch_size=0)
