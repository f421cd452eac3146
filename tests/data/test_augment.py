"""Batched augmentation against references for single images."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Generator, Tensor
from torch.nn import functional

from amgc.data import Augment, BatchRandom, Dataset, Images, load
from amgc.data.augment import brightness, crop_boxes, flip, normalise, pad_crop, resized_crop, rotations

pytestmark = pytest.mark.cpus


def batch(count: int = 64, channels: int = 3, size: int = 8) -> Tensor:
    return torch.randint(1, 256, (count, channels, size, size), generator=seeded(9)).to(torch.uint8)


def seeded(seed: int) -> Generator:
    return torch.Generator().manual_seed(seed)


def batch_random(seed: int) -> BatchRandom:
    return BatchRandom(seeded(seed))


def test_every_pad_crop_is_a_window_of_the_padded_image_and_all_windows_occur() -> None:
    images, found = batch(300), set()
    padded = functional.pad(images, (2, 2, 2, 2))
    for row, crop in enumerate(pad_crop(images, 2, batch_random(0))):
        places = [
            place
            for place in product(range(5), repeat=2)
            if torch.equal(crop, padded[row, :, place[0] : place[0] + 8, place[1] : place[1] + 8])
        ]
        assert len(places) == 1
        found.add(places[0])
    assert len(found) == 25


def test_flip_mirrors_about_half_of_the_images_and_leaves_the_others() -> None:
    images = batch(1000)
    flipped = flip(images, batch_random(0))
    mirrored = (flipped == images.flip(3)).flatten(1).all(1)
    same = (flipped == images).flatten(1).all(1)
    assert bool((mirrored ^ same).all())
    assert 430 < int(mirrored.sum()) < 570  # 4.4 standard deviations


def test_brightness_multiplies_each_image_by_one_number_in_the_range_and_stops_at_white() -> None:
    images = torch.full((500, 1, 2, 2), 100, dtype=torch.uint8)
    images[:, :, 1] = 255
    changed = brightness(images, 63 / 255, batch_random(0))
    factor = changed[:, 0, 0, 0] / 100
    assert float(factor.min()) >= 1 - 63 / 255 - 1e-6 and float(factor.max()) <= 1 + 63 / 255 + 1e-6
    assert float(factor.max() - factor.min()) > 0.45
    torch.testing.assert_close(changed[:, 0, 1, 1], (255 * factor).clamp(max=255))


def test_resized_crop_equals_cutting_and_scaling_each_image() -> None:
    images = batch(40, size=20)
    result = resized_crop(images, 12, batch_random(4))
    boxes = crop_boxes(40, 20, 20, batch_random(4), (0.08, 1.0), (3 / 4, 4 / 3))
    for image, crop, (top, left, tall, wide) in zip(images, result, boxes.tolist(), strict=True):
        window = image[None, :, top : top + tall, left : left + wide].float()
        expected = functional.interpolate(window, (12, 12), mode="bilinear", align_corners=False)[0]
        torch.testing.assert_close(crop, expected, atol=0.02, rtol=0)  # grey values; coordinates are float32


def test_crop_windows_lie_within_the_image_and_have_the_stated_area_and_shape() -> None:
    box = crop_boxes(2000, 40, 56, batch_random(0), (0.08, 1.0), (3 / 4, 4 / 3))
    top, left, tall, wide = box.T
    assert int(top.min()) >= 0 and int(left.min()) >= 0
    assert int((top + tall).max()) <= 40 and int((left + wide).max()) <= 56
    area = (tall * wide) / (40 * 56)
    assert 0.06 < float(area.min()) < 0.1 and float(area.max()) > 0.9
    ratio = (wide / tall).log().abs()
    assert float(ratio.max()) < math.log(4 / 3) + 0.12  # rounding to whole pixels


def test_where_no_window_fits_the_centre_is_taken() -> None:
    box = crop_boxes(3, 4, 400, batch_random(0), (0.9, 1.0), (3 / 4, 4 / 3))
    assert box.tolist() == [[0, 198, 4, 5]] * 3


def test_rotations_turn_every_image_four_times_and_number_the_turns() -> None:
    images, labels = batch(3), torch.tensor([7, 0, 2])
    turned, new = rotations(images, labels)
    assert new.tolist() == [28, 29, 30, 31, 0, 1, 2, 3, 8, 9, 10, 11]
    for row, turn in product(range(3), range(4)):
        expected = np.rot90(images[row].numpy(), turn, axes=(1, 2))
        assert np.array_equal(turned[4 * row + turn].numpy(), expected)
    with pytest.raises(ValueError, match="square"):
        rotations(torch.zeros(1, 3, 4, 5), torch.zeros(1))


def test_normalise_is_the_usual_formula() -> None:
    images, mean, std = batch(), (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    expected = (images.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    result = normalise(images, mean, std)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, expected.float(), atol=2e-6, rtol=1e-5)


def test_a_network_trained_elsewhere_gets_its_own_normalisation() -> None:
    augment, (mean, std) = Augment.of(load("digits")), ((0.4,), (0.2,))
    assert augment.normalised(None, None) is augment
    assert augment.normalised(mean, std) == dataclasses.replace(augment, mean=mean, std=std)
    features = Augment(0, (), ())
    assert features.normalised(mean, std) is features
    for wrong in (((0.5,), (0.2,)), ((0.5,) * 3, (0.2,) * 2)):
        with pytest.raises(ValueError, match="the network was made for other images"):
            Augment(8, (0.5,) * 3, (0.25,) * 3).normalised(*wrong)


def test_grey_images_are_repeated_for_a_network_of_three_channels() -> None:
    augment = Augment(8, (0.5,), (0.25,), padding=2).normalised((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
    grey = batch(channels=1)
    coloured = grey.repeat(1, 3, 1, 1)
    assert torch.equal(augment.plain(grey), augment.plain(coloured))
    assert torch.equal(augment(grey, seeded(1)), augment(coloured, seeded(1)))


def test_images_without_mean_and_std_are_refused() -> None:
    with pytest.raises(ValueError, match="mine: images of 3 channels need as many numbers"):
        Augment.of(dataclasses.replace(_dataset("mine", 8), mean=(0.5,), std=(0.5,)))


@pytest.mark.parametrize("resized", [False, True])
def test_the_same_generator_state_gives_the_same_batch(resized: bool) -> None:
    size = 6 if resized else 8
    augment = Augment(size, (0.5,) * 3, (0.25,) * 3, padding=2, flip=True, brightness=0.25, resized=resized)
    images, generator = batch(), seeded(3)
    before = images.clone()
    augment(images, generator)
    state = generator.get_state()
    second = augment(images, generator)
    assert torch.equal(images, before), "the input is not changed"
    generator.set_state(state)
    assert torch.equal(augment(images, generator), second)
    assert not torch.equal(augment(images, generator), second)
    assert second.shape == (64, 3, size, size) and second.dtype == torch.float32


WAYS: dict[str, Callable[[Tensor, BatchRandom], Tensor]] = {
    "pad_crop": lambda images, batch_random: pad_crop(images, 2, batch_random),
    "flip": flip,
    "brightness": lambda images, batch_random: brightness(images, 0.25, batch_random),
    "resized_crop": lambda images, batch_random: resized_crop(images, 6, batch_random),
    "crop_boxes": lambda images, batch_random: crop_boxes(len(images), 20, 30, batch_random, (0.08, 1.0), (3 / 4, 4 / 3)),
    "crop_boxes, none fits": lambda images, batch_random: crop_boxes(
        len(images), 8, 20, batch_random, (0.5, 1.0), (3 / 4, 4 / 3)
    ),
    "padded": Augment(8, (0.5,) * 3, (0.25,) * 3, padding=2, flip=True, brightness=0.25),
    "resized": Augment(6, (0.5,) * 3, (0.25,) * 3, flip=True, brightness=0.25, resized=True),
}


@pytest.mark.parametrize("cuts", [(0, 32, 64), (0, 19, 64), (0, 1, 63, 64), (0, 0, 64)])
@pytest.mark.parametrize("way", WAYS)
def test_processes_that_share_a_batch_augment_each_image_as_one_process_that_holds_it_all(
    way: str, cuts: tuple[int, ...]
) -> None:
    images, alone = batch(64), seeded(3)
    generators = [seeded(3) for _ in cuts[1:]]
    for _ in range(2):  # the generators are in step for the next batch as well
        parts = [
            WAYS[way](images[start:stop], BatchRandom(generator, start, total=64))
            for start, stop, generator in zip(cuts, cuts[1:], generators, strict=False)
        ]
        assert torch.equal(torch.cat(parts), WAYS[way](images, BatchRandom(alone)))


def test_numbers_of_one_process_are_those_of_the_bare_generator() -> None:
    ours, plain = batch_random(1), seeded(1)
    assert torch.equal(ours.uniform((5, 2)), torch.rand(5, 2, generator=plain))
    assert torch.equal(ours.integers((2, 5), 9, dim=1), torch.randint(9, (2, 5), generator=plain))
    assert torch.equal(ours.uniform((5,), 2, 3), torch.rand(5, generator=plain) + 2)


def test_a_part_that_does_not_lie_in_its_batch_is_an_error() -> None:
    with pytest.raises(ValueError, match="images 60 to 69 lie outside of a batch of 64"):
        flip(batch(10), BatchRandom(seeded(0), 60, total=64))
    for start, total in ((-1, 64), (3, None)):
        with pytest.raises(ValueError, match="a part has a start from 0 on and a total"):
            BatchRandom(seeded(0), start, total)


def test_the_global_generator_is_not_used() -> None:
    state = torch.get_rng_state()
    Augment(8, (0.5,) * 3, (0.25,) * 3, padding=2, flip=True, brightness=0.2)(batch(), seeded(0))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_batch_equals_one_image_at_a_time_with_pillow() -> None:
    images, count = batch(32, size=32), 32
    ours = Augment(32, (0.0,) * 3, (1.0,) * 3, padding=4, flip=True, brightness=63 / 255)(images, seeded(5))
    generator = seeded(5)
    tops, lefts = torch.randint(9, (2, count), generator=generator).tolist()
    mirrored = (torch.rand(count, generator=generator) < 0.5).tolist()
    factors = ((torch.rand(count, generator=generator) * 2 - 1) * (63 / 255) + 1).tolist()
    for row in range(count):
        image = ImageOps.expand(Image.fromarray(images[row].permute(1, 2, 0).numpy()), 4)
        image = image.crop((lefts[row], tops[row], lefts[row] + 32, tops[row] + 32))
        image = ImageOps.mirror(image) if mirrored[row] else image
        expected = np.asarray(ImageEnhance.Brightness(image).enhance(factors[row])).transpose(2, 0, 1)
        assert np.abs(ours[row].numpy() * 255 - expected).max() < 1.01  # Pillow cuts to whole grey values


def _dataset(name: str, size: int, channels: int = 3) -> Dataset:
    images = Images.of(torch.zeros(2, channels, size, size, dtype=torch.uint8), [0, 1])
    return Dataset(images, images, ("a", "b"), name, (0.5,) * channels, (0.25,) * channels)


def test_a_source_has_its_own_augmentation_or_that_of_a_general_rule() -> None:
    plain = _dataset("mine", 64)
    assert Augment.of(plain) == Augment(64, (0.5,) * 3, (0.25,) * 3, padding=8, flip=True)
    assert Augment.of(_dataset("mine", 5, channels=1)) == Augment(5, (0.5,), (0.25,), padding=1)
    said = dataclasses.replace(plain, augmentation={"size": 48, "resized": True})
    assert Augment.of(said) == Augment(48, (0.5,) * 3, (0.25,) * 3, resized=True)
    assert Augment.of(dataclasses.replace(plain, augmentation={})) == Augment(64, (0.5,) * 3, (0.25,) * 3)


def test_digits_are_shifted_by_one_pixel() -> None:
    assert Augment.of(load("digits")) == Augment(8, (0.3051,), (0.3757,), padding=1)


def test_resized_images_are_tested_on_their_centre() -> None:
    augment = Augment(224, (0.5,) * 3, (0.25,) * 3, flip=True, resized=True)
    images = batch(2, size=256)
    expected = normalise(images[:, :, 16:240, 16:240], (0.5,) * 3, (0.25,) * 3)
    assert torch.equal(augment.plain(images), expected)
    assert augment(images, seeded(0)).shape == (2, 3, 224, 224)


def test_digits_and_grey_images_are_not_mirrored() -> None:
    assert not Augment.of(load("digits")).flip
    assert not Augment.of(_dataset("npz:letters", 28, channels=1)).flip
    assert Augment.of(_dataset("folder:photos", 64)).flip


def test_normalised_digits_have_mean_zero_and_variance_one() -> None:
    dataset = load("digits")
    plain = Augment.of(dataset).plain(dataset.train.take(range(len(dataset.train))))
    assert abs(float(plain.mean())) < 1e-3 and abs(float(plain.std()) - 1) < 1e-3


def test_images_that_are_not_square_keep_their_shape() -> None:
    images = Images.of(batch()[:2, :, :5], [0, 1])
    augment = Augment.of(Dataset(images, images, ("a", "b"), "npz:x", (0.5,) * 3, (0.25,) * 3))
    assert augment(images.take([0]), seeded(0)).shape == augment.plain(images.take([0])).shape == (1, 3, 5, 8)


def test_features_pass_as_they_are() -> None:
    features = Images.of(torch.randn(4, 5), [0, 0, 1, 1])
    augment = Augment.of(Dataset(features, features, ("a", "b"), "npz:f"))
    x = features.take([0, 3])
    assert torch.equal(augment(x, seeded(0)), x) and torch.equal(augment.plain(x), x)


@pytest.mark.parametrize("channels", [1, 3])
def test_normalise_is_the_formula_and_leaves_the_images_as_they_are(channels: int) -> None:
    mean, std = (0.5, 0.25, 0.1), (0.2, 0.3, 0.4)
    images = torch.rand(2, channels, 4, 5) * 255
    before = images.clone()
    found = normalise(images, mean, std)
    centre, spread = (torch.tensor(one, dtype=torch.float64)[:, None, None] for one in (mean, std))
    torch.testing.assert_close(found.double(), (before.double() / 255 - centre) / spread, rtol=1e-5, atol=1e-5)
    assert torch.equal(images, before)
