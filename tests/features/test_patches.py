"""The patches extractor against plain loops in float64, and what it reads of the images of task 1."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from amgc.data import Images
from amgc.features import build
from amgc.features import patches as module
from amgc.features.builtin import PatchesOptions
from amgc.features.patches import Patches
from amgc.features.weights import load_extractor, save_extractor

pytestmark = pytest.mark.cpus


def photos(count: int, shape: tuple[int, int, int], seed: int = 0) -> Images:
    """Return images of noise on a gradient, with smooth and rough regions."""
    rng = np.random.default_rng(seed)
    channels, height, width = shape
    slope = np.linspace(0, 180, width) * np.linspace(0.2, 1, height)[:, None]
    rough = rng.uniform(0, 60, (count, channels, 1, 1))
    pixels = np.clip(slope + rng.normal(0, 1, (count, *shape)) * rough + rng.uniform(0, 40, (count, 1, 1, 1)), 0, 255)
    return Images.of(pixels.astype(np.uint8), np.zeros(count, np.int64))


def made(shape: tuple[int, int, int], count: int = 12, seed: int = 0, **options: Any) -> Patches:
    network = build("patches", image_shape=shape, **options)
    assert isinstance(network, Patches)
    network.fit(photos(count, shape), generator=torch.Generator().manual_seed(seed))
    return network.eval()


def pixels(network: Patches, count: int, seed: int = 1) -> torch.Tensor:
    return photos(count, network.image_shape, seed).take(torch.arange(count)).float()


def reference(network: Patches, image: np.ndarray) -> np.ndarray:
    """Return the features of one image (c, h, w), computed patch by patch and filter by filter."""
    chosen = network.settled
    parts = []
    for place, side in enumerate(chosen.sizes):
        weight = network.get_buffer(f"weight{place}").double().numpy()
        averaged = [pooled(image, weight, side, chosen)]
        if chosen.mirror:
            averaged.append(pooled(image[:, :, ::-1], weight, side, chosen))
        powers = np.mean(averaged, axis=0) ** chosen.power
        if chosen.components:
            mixing = network.get_buffer(f"mixing{place}").double().numpy()
            powers = np.stack([powers[..., k].reshape(-1) @ mixing[k] for k in range(len(mixing))], axis=1)
        parts.append(powers.reshape(-1))
    features = np.concatenate(parts)
    return (features - network.centre.double().numpy()) / network.deviation.double().numpy()


def test_an_image_and_its_mirror_image_have_the_same_features_in_colour_only() -> None:
    for channels, same in ((3, True), (1, False)):
        network = made((channels, 12, 13), filters=20)
        images = pixels(network, 4)
        assert torch.allclose(network(images), network(images.flip(3)), atol=1e-4) == same


def pooled(image: np.ndarray, weight: np.ndarray, side: int, chosen: PatchesOptions) -> np.ndarray:
    """Return the averages over cells, (2, grid, grid, filters)."""
    _, height, width = image.shape
    rows = range(0, height - side + 1, chosen.stride)
    columns = range(0, width - side + 1, chosen.stride)
    sums = np.zeros((2, chosen.grid, chosen.grid, weight.shape[1]))
    counts = np.zeros((chosen.grid, chosen.grid))
    for i, y in enumerate(rows):
        for j, x in enumerate(columns):
            patch = image[:, y : y + side, x : x + side].reshape(-1)
            normal = (patch - patch.mean()) / (patch.std() + chosen.contrast)
            response = normal @ weight[:-1] + weight[-1]
            cell = i * chosen.grid // len(rows), j * chosen.grid // len(columns)
            sums[0][cell] += np.maximum(response - chosen.threshold, 0)
            sums[1][cell] += np.maximum(-response - chosen.threshold, 0)
            counts[cell] += 1
    return sums / counts[:, :, None]


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 12, 12), {"filters": 10, "sizes": (6,)}),
        ((1, 8, 8), {"filters": 5}),
        ((1, 13, 9), {"filters": 7, "sizes": (4,), "grid": 3}),
        ((3, 14, 17), {"filters": 9, "sizes": (3, 5), "stride": 2, "mirror": True}),
        ((3, 11, 11), {"filters": 70, "sizes": (5,), "grid": 1, "power": 1.0, "mirror": True}),
        ((2, 10, 12), {"filters": 6, "sizes": (4, 3, 1), "threshold": 0.5, "power": 0.25, "contrast": 1.0}),
        ((1, 9, 9), {"filters": 8, "sizes": (9,), "grid": 1, "draw": "gaussian"}),
        ((3, 13, 11), {"filters": 9, "sizes": (3, 4), "grid": 3, "components": 5}),
        ((1, 8, 8), {"filters": 6, "sizes": (5,), "grid": 4, "components": 1, "power": 0.5}),
    ],
)
def test_features_are_those_of_plain_loops(shape: tuple[int, int, int], options: dict[str, Any]) -> None:
    network = made(shape, **options)
    images = pixels(network, 3)
    expected = np.stack([reference(network, image.double().numpy()) for image in images])
    each = network.settled.components or 2 * network.settled.grid**2
    assert network.dim == expected.shape[1] == each * network.settled.filters
    np.testing.assert_allclose(network(images).numpy(), expected, atol=2e-3)  # in units of deviations
    assert np.abs(expected).max() > 0.5


def test_filters_are_whitened_patches_of_length_one() -> None:
    """Z and F are computed again from the patches, by another decomposition."""
    network = made((3, 9, 9), filters=11, sizes=(4,), whitening=0.2)
    found = network._sample(photos(12, (3, 9, 9)), torch.Tensor.float, torch.Generator().manual_seed(0))[0].double().numpy()
    whitening = np.linalg.inv(sqrtm(np.cov(found.T, bias=True) + 0.2 * np.eye(48)))
    weight = network.get_buffer("weight0").double().numpy()
    filters = np.linalg.solve(whitening, weight[:-1])
    np.testing.assert_allclose(np.linalg.norm(filters, axis=0), 1, atol=1e-4)
    np.testing.assert_allclose(weight[-1], -found.mean(0) @ weight[:-1], atol=1e-4)
    whitened = (found - found.mean(0)) @ whitening
    whitened /= np.linalg.norm(whitened, axis=1, keepdims=True)
    assert (whitened @ filters).max(0) == pytest.approx(np.ones(11), abs=1e-4)


def sqrtm(matrix: np.ndarray) -> np.ndarray:
    left, values, right = np.linalg.svd(matrix)
    return (left * np.sqrt(values)) @ right


def test_gaussian_filters_are_no_patches_but_as_long() -> None:
    network = made((3, 9, 9), filters=40, sizes=(4,), draw="gaussian")
    found = network._sample(photos(12, (3, 9, 9)), torch.Tensor.float, torch.Generator().manual_seed(0))[0].double().numpy()
    whitening = np.linalg.inv(sqrtm(np.cov(found.T, bias=True) + 0.1 * np.eye(48)))
    filters = np.linalg.solve(whitening, network.get_buffer("weight0").double().numpy()[:-1])
    whitened = (found - found.mean(0)) @ whitening
    whitened /= np.linalg.norm(whitened, axis=1, keepdims=True)
    np.testing.assert_allclose(np.linalg.norm(filters, axis=0), 1, atol=1e-4)
    assert (whitened @ filters).max() < 0.95


def test_task_1_is_standardised() -> None:
    network = made((1, 10, 10), count=400, filters=12)
    features = network(photos(400, (1, 10, 10)).take(torch.arange(400)).float())
    assert features.mean(0).abs().max() < 1e-3
    np.testing.assert_allclose(features.std(0).numpy(), 1, atol=0.2)  # drawn a little towards the average


def test_components_are_the_principal_ones_of_each_filter() -> None:
    whole, few = (made((1, 10, 10), count=300, filters=3, grid=2, components=kept) for kept in (0, 3))
    images = photos(300, (1, 10, 10)).take(torch.arange(300)).float()
    averages = (whole(images) * whole.deviation + whole.centre).double().view(300, 8, 3).numpy()
    found = few(images).double().view(300, 3, 3).numpy()
    for place in range(3):
        centred = averages[:, :, place] - averages[:, :, place].mean(0)
        left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
        agree = np.abs(left[:, 2::-1].T @ found[:, :, place]) / np.linalg.norm(found[:, :, place], axis=0)
        np.testing.assert_allclose(agree, np.eye(3), atol=1e-3)
        assert sizes[2] > 1.01 * sizes[3] > 0, "otherwise the components are not determined"


@pytest.mark.parametrize("components", [0, 3])
@pytest.mark.parametrize("count", [1, 2])
def test_hardly_any_images_give_finite_features(count: int, components: int) -> None:
    network = made((3, 8, 8), count=count, filters=80, components=components)
    assert bool(network(pixels(network, 5)).isfinite().all())
    assert (network.centre == 0).all() == (count == 1), "the mean of one image would be that image's features"


def test_images_without_any_contrast_give_finite_features() -> None:
    network = build("patches", image_shape=(1, 8, 8), filters=4)
    blank = Images.of(np.full((3, 1, 8, 8), 7, np.uint8), np.zeros(3, np.int64))
    network.fit(blank, preprocess=torch.Tensor.float, generator=torch.Generator().manual_seed(0))
    assert bool(network(pixels(made((1, 8, 8), filters=4), 2)).isfinite().all())


def test_a_seed_decides_the_filters() -> None:
    one, same, other = (made((3, 12, 12), filters=6, seed=seed) for seed in (3, 3, 4))
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, same.state_dict()[name])
    assert not torch.equal(one.get_buffer("weight0"), other.get_buffer("weight0"))


def test_fitted_again_it_forgets_the_first_images() -> None:
    once, again = made((3, 12, 12), filters=6, seed=1), made((3, 12, 12), count=9, filters=6, seed=2)
    again.fit(photos(12, (3, 12, 12)), generator=torch.Generator().manual_seed(1))
    assert torch.equal(once(pixels(once, 3)), again(pixels(again, 3)))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("room", [module.CPU_ROOM, (1, 1), (10_000, 2_000), module.GPU_ROOM])
def test_neither_batches_nor_blocks_nor_threads_change_features(
    room: tuple[int, int], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = made((3, 12, 13), filters=150, sizes=(3, 4), mirror=True, grid=2 + threads // 2, components=threads - 1)
    images = pixels(network, 11)
    expected = torch.cat([network(image[None]) for image in images])
    before = torch.get_num_threads()
    monkeypatch.setattr(module, "CPU_ROOM", room)
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            together = network(images)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(together, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(network(images.contiguous(memory_format=torch.channels_last)), expected, atol=1e-4, rtol=0)
    assert not torch.equal(expected[0], expected[1])
    assert network(images[:0]).shape == (0, network.dim), "a process may have no share of a batch"


def test_large_images_are_reduced_by_area() -> None:
    network = made((3, 48, 32), filters=6, side=24, sizes=(5,))
    assert network.size == (24, 16)
    images = pixels(network, 2)
    halves = images.reshape(2, 3, 24, 2, 16, 2).mean((3, 5))
    small = build("patches", image_shape=(3, 24, 16), filters=6, sizes=(5,))
    small.load_state_dict(network.state_dict())
    torch.testing.assert_close(network(images), small(halves), atol=1e-3, rtol=0)


def test_small_images_get_small_patches_and_few_filters_and_large_ones_long_steps() -> None:
    def chosen(*shape: int) -> tuple[Any, ...]:
        settled = build("patches", image_shape=shape).settled  # type: ignore[attr-defined]
        return settled.sizes, settled.stride, settled.filters

    assert chosen(1, 8, 8) == ((3,), 1, 216)
    assert chosen(1, 28, 28) == ((5,), 1, 600)
    assert chosen(3, 32, 32) == ((5,), 1, 1600)
    assert chosen(3, 64, 64) == chosen(3, 224, 224) == ((5,), 2, 1600)


def test_an_unfitted_extractor_refuses_images() -> None:
    with pytest.raises(RuntimeError, match="not fitted yet"):
        build("patches", image_shape=(3, 12, 12), filters=2)(torch.zeros(1, 3, 12, 12))


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((3, 5, 12), {"sizes": (6,)}, "do not fit into images of 5 × 12"),
        ((3, 7, 7), {"sizes": (6,), "grid": 3}, "smaller grid"),
        ((3, 9, 9), {"filters": 1, "sizes": (2, 3)}, "filters must be at least 2"),
        ((3, 9, 9), {"filters": -1}, "filters must be from 0 to 1,000,000"),
        ((3, 9, 9), {"sizes": (0,)}, "sizes must be at least 1"),
        ((3, 9, 9), {"components": 9}, "components must be at most 2 × grid² = 8"),
        ((3, 9, 9), {"components": -1}, "components must be finite and not negative"),
        ((3, 9, 9), {"power": 0.0}, "power"),
        ((3, 9, 9), {"threshold": math.nan}, "threshold"),
        ((3, 9, 9), {"draw": "noise"}, "patches, gaussian"),
    ],
)
def test_impossible_values_are_errors(shape: tuple[int, int, int], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build("patches", image_shape=shape, **options)


@pytest.mark.parametrize("components", [0, 3])
def test_saved_and_loaded_it_gives_the_same_features(tmp_path: Path, components: int) -> None:
    network = made((3, 12, 10), filters=9, sizes=(4, 3), mirror=True, components=components)
    save_extractor(tmp_path / "patches.safetensors", network)
    again = load_extractor(tmp_path / "patches.safetensors")
    assert not again.needs_fit
    images = pixels(network, 2)
    assert torch.equal(network(images), again(images))
    assert (again.mean, again.std) == ((0.0,) * 3, (1 / 255,) * 3)


def test_there_is_nothing_to_train() -> None:
    assert list(made((1, 8, 8), filters=2).parameters()) == []


class Counting:
    """Images that record which of them were read, and how many at once."""

    def __init__(self, count: int, shape: tuple[int, int, int]) -> None:
        self.labels, self.shape = torch.zeros(count, dtype=torch.int64), shape
        self.read: set[int] = set()
        self.most = 0

    def take(self, indices: torch.Tensor) -> torch.Tensor:
        self.read.update(indices.tolist())
        self.most = max(self.most, len(indices))
        drawn = torch.Generator().manual_seed(int(indices[0]))
        return torch.randint(256, (len(indices), *self.shape), generator=drawn, dtype=torch.uint8)


def test_fitting_reads_a_bounded_number_of_images_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLED", 300)
    monkeypatch.setattr(module, "MEASURED", 100)
    monkeypatch.setattr(module, "PATCHES", 500)
    images, network = Counting(100_000, (1, 8, 8)), build("patches", image_shape=(1, 8, 8), filters=4)
    network.fit(images, preprocess=torch.Tensor.float, generator=torch.Generator().manual_seed(0))
    assert 300 <= len(images.read) <= 400
    assert images.most <= module.BATCH
    assert bool(network(torch.rand(3, 1, 8, 8) * 255).isfinite().all())
