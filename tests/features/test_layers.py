"""The extractor `layers`: its features against float64 formulas, what its network learns, and what `fit` leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from features.test_patches import photos
from torch.nn.functional import conv2d

from amgc import ClassStatistics, solve_head
from amgc.data import Images, load
from amgc.features import build, layers
from amgc.features.layers import JITTER, Averages, Layers, augmented
from amgc.features.weights import load_extractor, save_extractor

pytestmark = pytest.mark.cpus


def made(shape: tuple[int, int, int], images: Images | None = None, seed: int = 0, **options: Any) -> Layers:
    network = build("layers", image_shape=shape, **{"filters": 4, "widths": (6, 8), "steps": 3, "networks": 1} | options)
    assert isinstance(network, Layers)
    network.fit(images or photos(12, shape), generator=torch.Generator().manual_seed(seed))
    return network


def one_of(network: Layers, place: int = 0) -> Averages:
    found = network.averages[place]
    assert isinstance(found, Averages)
    return found


def pixels(network: Layers, count: int) -> torch.Tensor:
    return photos(count, network.image_shape, 1).take(torch.arange(count)).float()


def reference(network: Layers, image: np.ndarray, place: int = 0) -> np.ndarray:
    """Return the features of one of its networks for one image (c, h, w), in float64 and without modules."""
    averages = one_of(network, place)
    state = {name: tensor.double() for name, tensor in averages.network.state_dict().items()}

    def norm(maps: torch.Tensor, name: str) -> torch.Tensor:
        mean, variance = (state[f"{name}.running_{of}"][:, None, None] for of in ("mean", "var"))
        normal = (maps - mean) / (variance + 1e-5).sqrt()
        if f"{name}.weight" not in state:
            return normal
        return normal * state[f"{name}.weight"][:, None, None] + state[f"{name}.bias"][:, None, None]

    def conv(maps: torch.Tensor, name: str, stride: int = 1) -> torch.Tensor:
        return conv2d(maps[None], state[f"{name}.weight"], stride=stride, padding=1)[0]

    def cells(maps: np.ndarray, grid: int) -> np.ndarray:
        rows, columns = (np.array_split(np.arange(size), grid) for size in maps.shape[1:])
        assert all(len({len(part) for part in parts}) == 1 for parts in (rows, columns)), "cells of equal size"
        return np.stack([maps[:, r][:, :, c].mean((1, 2)) for r in rows for c in columns], 1).reshape(-1)

    def powers(view: np.ndarray) -> np.ndarray:
        start = norm(torch.from_numpy(view.copy()).double(), "input")
        maps, found = norm(conv(start, "stem", 2 if min(view.shape[1:]) > 48 else 1), "stemmed").clamp_min(0), []
        for block in range(len(network.widths)):
            wide = conv(maps, f"blocks.{block}.widen").numpy()
            channels, height, width = wide.shape
            pooled = wide[:, : height // 2 * 2, : width // 2 * 2].reshape(channels, height // 2, 2, width // 2, 2).max((2, 4))
            first = norm(torch.from_numpy(pooled), f"blocks.{block}.widened").clamp_min(0)
            maps = (norm(conv(first, f"blocks.{block}.mix"), f"blocks.{block}.mixed") + first).clamp_min(0)
            grid = 1 if block == len(network.widths) - 1 else 2
            found += [cells(first.numpy(), grid), cells(maps.numpy(), grid)]
        return np.concatenate(found)

    views = [image, image[:, :, ::-1]] if image.shape[0] == 3 else [image]
    found = np.mean([powers(view) for view in views], 0) ** 0.7
    return (found - averages.centre.double().numpy()) / averages.deviation.double().numpy()


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 16, 16), {}),
        ((1, 8, 8), {"widths": (4, 6, 10)}),
        ((3, 16, 24), {"widths": (4,)}),
        ((3, 64, 64), {"widths": (2, 4)}),
    ],
)
def test_features_are_those_of_the_formulas_then_those_of_patches(shape: tuple[int, int, int], options: dict[str, Any]) -> None:
    network = made(shape, **options)
    images = pixels(network, 3)
    places = range(len(network.averages))
    expected = np.stack([np.concatenate([reference(network, each.double().numpy(), n) for n in places]) for each in images])
    found = network(images)
    assert found.shape == (3, network.dim)
    np.testing.assert_allclose(found[:, : expected.shape[1]].numpy(), expected, atol=2e-3)  # in units of deviations
    torch.testing.assert_close(found[:, expected.shape[1] :], network.patches(images), atol=1e-4, rtol=0)
    assert np.abs(expected).max() > 0.5


def test_networks_differ_and_do_not_depend_on_the_number_of_threads() -> None:
    before, states = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            states.append(made((1, 8, 8), networks=3).averages.state_dict())
        finally:
            torch.set_num_threads(before)
    for name, tensor in states[0].items():
        if ".network." in name:
            assert torch.equal(tensor, states[1][name])
        else:  # moments, which all threads measure together
            torch.testing.assert_close(tensor, states[1][name])
    assert not torch.equal(states[0]["0.network.blocks.0.mix.weight"], states[0]["1.network.blocks.0.mix.weight"])


@pytest.mark.parametrize("threads", [1, 2])
def test_features_of_an_image_do_not_depend_on_the_others(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "PIECE", 2)
    network, before = made((3, 16, 16), networks=2), torch.get_num_threads()
    images = pixels(network, 7)
    alone = torch.cat([network(image[None]) for image in images])
    torch.set_num_threads(threads)
    try:
        torch.testing.assert_close(network(images), alone, atol=1e-4, rtol=0)
    finally:
        torch.set_num_threads(before)


def test_an_image_and_its_mirror_image_have_the_same_features_in_colour_only() -> None:
    for channels, same in ((3, True), (1, False)):
        network = made((channels, 16, 16))
        images = pixels(network, 4)
        assert torch.allclose(network(images), network(images.flip(3)), atol=1e-3) == same


def digits_score(**options: Any) -> float:
    """Return the accuracy of the closed form on all digits, with the features of a network that knows the first four."""
    data = load("digits")
    first = data.train.subset((data.train.labels < 4).nonzero().squeeze(1))
    network = made(data.train.shape, first, **{"widths": (4, 6)} | options)
    rows = [network(part.take(torch.arange(len(part))).float())[:, : one_of(network).dim] for part in (data.train, data.test)]
    statistics = ClassStatistics(one_of(network).dim, "shared").update(rows[0], data.train.labels)
    head, order = solve_head(statistics, margin=0.0, ridge="auto"), [statistics.index(label) for label in range(10)]
    scores = rows[1].double() @ head.weight[order].T + head.bias[order]
    return float((scores.argmax(1) == data.test.labels).float().mean())


def test_what_the_network_learns_of_four_digits_helps_with_the_other_six() -> None:
    before, after = (np.mean([digits_score(steps=steps, seed=seed) for seed in range(3)]) for steps in (1, 200))
    assert after > before + 0.015


@pytest.mark.parametrize("bfloat16", [False, True])
def test_the_network_learns_to_tell_the_classes_and_their_rotations_apart(
    bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "has_bfloat16", lambda: bfloat16)
    network = build("layers", image_shape=(1, 8, 8), filters=4, widths=(8, 16), steps=120, networks=1)
    losses: list[float] = []
    network.report = lambda step, steps, loss: losses.append(float(loss))  # type: ignore[method-assign]
    data = load("digits").train
    network.fit(data.subset((data.labels < 3).nonzero().squeeze(1)), generator=torch.Generator().manual_seed(0))
    assert len(losses) == 120 and losses[0] > 0.9 * np.log(12) and np.mean(losses[-10:]) < 0.6 * np.log(12)
    assert {tensor.dtype for tensor in network.averages.buffers() if tensor.is_floating_point()} == {torch.float32}


def test_a_seed_decides_the_network_and_nothing_else_does() -> None:
    torch.manual_seed(1)
    one = made((1, 8, 8), seed=3)
    before = torch.get_rng_state()
    same, other = made((1, 8, 8), seed=3), made((1, 8, 8), seed=4)
    assert not torch.equal(one_of(one).network.state_dict()["stem.weight"], one_of(other).network.state_dict()["stem.weight"])
    torch.testing.assert_close(one(pixels(one, 3)), same(pixels(one, 3)), atol=1e-3, rtol=0)
    torch.set_rng_state(before)
    again = build("layers", image_shape=(1, 8, 8), filters=4, widths=(6, 8), steps=1, networks=1)
    before = torch.get_rng_state()
    again.fit(photos(12, (1, 8, 8)), generator=torch.Generator().manual_seed(3))
    assert torch.equal(before, torch.get_rng_state()), "the global generator is the caller's"


def test_nothing_is_trained_after_the_fit() -> None:
    network = made((3, 8, 8))
    images = pixels(network, 2)
    expected = network(images)
    network.train()
    assert list(network.parameters()) == [] and not any(layer.training for layer in network.modules())
    assert torch.equal(network(images), expected)


def test_images_of_one_class_teach_rotations_only() -> None:
    network = made((1, 8, 8), photos(5, (1, 8, 8)), steps=2)
    assert bool(network(pixels(network, 2)).isfinite().all())


def test_augmentation_turns_by_quarters_and_keeps_size_and_range() -> None:
    image = torch.zeros(1, 3, 16, 16)
    image[:, :, :8] = 255.0  # bright above
    turn = torch.arange(4)
    found = augmented(image.repeat(4, 1, 1, 1), (16, 16), turn, True, torch.Generator().manual_seed(0))
    halves = [found[i] for i in range(4)]
    means = [(m[:, :6].mean(), m[:, 10:].mean(), m[:, :, :6].mean(), m[:, :, 10:].mean()) for m in halves]
    brightest = [int(torch.stack(each).argmax()) for each in means]
    assert brightest == [0, 2, 1, 3], "above, left, below, right: rot90 turns against the clock"
    assert found.shape == (4, 3, 16, 16)
    assert found.abs().max() <= 127.5 + 127.5 * (1 + JITTER) + 127.5 * JITTER


def test_augmentation_crops_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "JITTER", 0.0)
    image = np.arange(64).reshape(8, 8)
    whole = np.pad(image, 1, mode="reflect")
    windows = {tuple(whole[y : y + 4, x : x + 6].flat) for y in range(7) for x in range(5)}
    images = torch.from_numpy(image).float().repeat(500, 1, 1, 1)
    found = augmented(images, (4, 6), torch.zeros(500, dtype=torch.int64), False, torch.Generator().manual_seed(0))
    assert found.shape == (500, 1, 4, 6)
    assert {tuple(crop.flatten().round().int().tolist()) for crop in found} == windows


def test_saved_and_loaded_it_gives_the_same_features(tmp_path: Path) -> None:
    network = made((3, 16, 8), widths=(4, 6))
    save_extractor(tmp_path / "layers.safetensors", network)
    again = load_extractor(tmp_path / "layers.safetensors")
    assert not again.needs_fit
    images = pixels(network, 2)
    torch.testing.assert_close(network(images), again(images), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((3, 7, 12), {}, "halves images 3 times and needs at least 8 × 8 pixels, not 7 × 12"),
        ((1, 8, 8), {"widths": ()}, "widths must have at least one number"),
        ((1, 8, 8), {"widths": (1,)}, "widths must be at least 2"),
        ((1, 8, 8), {"steps": 0}, "steps must be at least 1"),
    ],
)
def test_impossible_values_are_errors(shape: tuple[int, int, int], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build("layers", image_shape=shape, **options)


def test_an_unfitted_extractor_refuses_images() -> None:
    with pytest.raises(RuntimeError, match="not fitted yet"):
        build("layers", image_shape=(3, 16, 16), filters=2)(torch.zeros(1, 3, 16, 16))
