"""Images of every kind, and input that cannot be used as an image."""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from model.drawing import draw
from PIL import Image

from amgc.model import ImageError
from amgc.model.inputs import Frame, images_from

FRAME = Frame(8, 8, 3)


def pixels(given: object, frame: Frame = FRAME) -> np.ndarray:
    """Return the pixels of the only given image, (h, w, c)."""
    (image,) = images_from(given)
    return frame.pixels(image).transpose(1, 2, 0)


def drawing() -> np.ndarray:
    return draw("cat", 1, side=8)[0]


def test_the_same_image_in_every_form_has_the_same_pixels(tmp_path):
    array = drawing()
    Image.fromarray(array).save(tmp_path / "a.png")
    encoded = (tmp_path / "a.png").read_bytes()
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    for given in (
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
        encoded,
        bytearray(encoded),
        Image.fromarray(array),
        array,
        array.astype(np.int64),
        array.astype(np.uint16) * 257,
        array / 255,
        (array / 255).astype(np.float32),
        tensor,
        tensor.float() / 255,
        [array],
        tensor[None],
        array[None],
        tmp_path,
    ):
        assert (pixels(given) == array).all(), type(given)


def test_several_images_come_in_order_and_have_names(tmp_path):
    arrays = draw("cat", 3, side=8)
    for number, array in enumerate(arrays):
        Image.fromarray(array).save(tmp_path / f"{number}.png")
    for given in (arrays, list(arrays), torch.from_numpy(arrays).permute(0, 3, 1, 2), tmp_path):
        found = images_from(given)
        assert all((FRAME.pixels(one).transpose(1, 2, 0) == array).all() for one, array in zip(found, arrays, strict=True))
    assert [one.name for one in images_from(arrays)] == ["image 1", "image 2", "image 3"]
    assert [one.name for one in images_from(tmp_path)] == [str(tmp_path / f"{number}.png") for number in range(3)]
    mixed = images_from([arrays[0], tmp_path / "1.png"])
    assert len(mixed) == 2 and mixed[1].name == str(tmp_path / "1.png")


@pytest.mark.parametrize("given", [3, None, np.zeros(5), torch.zeros(8, 8), np.zeros((1, 2, 3, 4, 5))])
def test_input_that_is_not_an_image_is_refused(given):
    with pytest.raises((TypeError, ValueError), match="image"):
        images_from(given)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.full((8, 8, 3), 2.0), "from 0 to 1"),
        (np.full((8, 8, 3), np.nan), "from 0 to 1"),
        (np.full((8, 8, 3), 300), "from 0 to 255"),
        (np.zeros((1, 8, 8, 2), np.uint8), "its shape"),
        (np.zeros((1, 1, 3), np.uint8), "1 × 1 pixels"),
        (np.zeros((2, 90, 3), np.uint8), "90 × 2 pixels"),
    ],
)
def test_an_unusable_array_is_named_with_the_reason(array, said):
    with pytest.raises(ImageError, match=f"^image 2 cannot be used: .*{said}"):
        for one in images_from([drawing(), array]):
            FRAME.pixels(one)


def saved(image: Image.Image, path: Path, **how: object) -> Path:
    image.save(path, **how)
    return path


def test_modes_are_turned_into_colours_that_look_the_same(tmp_path):
    grey = np.full((8, 8), 100, np.uint8)
    expected = {
        "grey": (saved(Image.fromarray(grey), tmp_path / "grey.png"), 100),
        "sixteen bits": (saved(Image.fromarray(grey.astype(np.uint16) * 257), tmp_path / "sixteen.png"), 100),
        "palette": (saved(Image.fromarray(np.dstack([grey] * 3)).quantize(4), tmp_path / "palette.png"), 100),
        "transparent": (saved(Image.fromarray(np.dstack([grey] * 3 + [grey * 0])), tmp_path / "clear.png"), 255),
        "cmyk": (saved(Image.fromarray(np.dstack([grey] * 3)).convert("CMYK"), tmp_path / "cmyk.jpg", quality=100), 100),
        "bilevel": (saved(Image.fromarray(grey * 0).convert("1"), tmp_path / "bilevel.png"), 0),
    }
    for name, (path, level) in expected.items():
        assert np.abs(pixels(path).astype(int) - level).max() <= 3, name


def test_a_photograph_is_turned_upright(tmp_path):
    array = np.zeros((8, 8, 3), np.uint8)
    array[:4] = 255  # white above
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    path = saved(Image.fromarray(array), tmp_path / "turned.jpg", exif=exif, quality=100)
    upright = pixels(path)
    assert upright[:, 4:].min() > 200 and upright[:, :4].max() < 50


def test_the_first_frame_of_an_animation_is_used_and_this_is_reported(tmp_path):
    frames = [Image.new("RGB", (8, 8), (level, 0, 0)) for level in (200, 100, 0)]
    path = saved(frames[0], tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    (image,) = images_from(path)
    assert abs(int(FRAME.pixels(image)[0].mean()) - 200) < 3 and image.animated
    (still,) = images_from(saved(frames[0], tmp_path / "still.gif"))
    assert FRAME.pixels(still) is not None and not still.animated


def large(width: int, height: int) -> bytes:
    """Return a black image of many pixels in a small file."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Image.new("1", (width, height)).save(file, format="PNG")
    return file.getvalue()


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("size", [(10_001, 10_000), (20_000, 20_000)])
def test_an_image_of_more_than_100_megapixels_is_refused_unread(tmp_path, size):
    (tmp_path / "large.png").write_bytes(large(*size))
    with pytest.raises(ImageError, match=r"large.png cannot be used: .*more than 100 million pixels; make it smaller"):
        pixels(tmp_path / "large.png")


def test_files_that_are_no_images_are_named_with_advice(tmp_path):
    whole = saved(Image.fromarray(draw("cat", 1, side=64)[0]), tmp_path / "whole.jpg").read_bytes()
    for name, content, said in (
        ("text.jpg", b"dear all", "it is none of JPEG"),
        ("truncated.jpg", whole[: len(whole) // 2], "repair it, or remove it"),
        ("empty.png", b"", "it is none of"),
        ("zeros.png", b"\x89PNG\r\n\x1a\n" + bytes(100), "remove it"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ImageError, match=f"{name} cannot be used: .*{said}"):
            pixels(tmp_path / name)
    with pytest.raises(ImageError, match=r"gone.png cannot be used: there is no such file"):
        pixels(tmp_path / "gone.png")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="contains no images"):
        images_from(tmp_path / "folder")


def test_learning_folders_skips_what_cannot_be_used_and_counts_it(make, tmp_path):
    folder = tmp_path / "cat"
    folder.mkdir()
    for number, array in enumerate(draw("cat", 6)):
        Image.fromarray(array).save(folder / f"{number}.png")
    (folder / "text.jpg").write_text("dear all")
    moving = [Image.fromarray(array) for array in draw("cat", 2, seed=5)]
    moving[0].save(folder / "moving.gif", save_all=True, append_images=moving[1:])
    model = make()
    with pytest.raises(ImageError, match=r"text\.jpg"):
        model.learn(folder, "cat")
    assert model.classes == {}
    learned = model.learn(folder, "cat", on_corrupt="skip")
    assert learned.added == {"cat": 7} and [Path(path).name for path, _ in learned.skipped] == ["text.jpg"]
    assert [Path(name).name for name in learned.animated] == ["moving.gif"]
    with pytest.raises(ValueError, match=r"none of the 1 images can be used.*text\.jpg"):
        model.learn(folder / "text.jpg", "text", on_corrupt="skip")
    with pytest.raises(ValueError, match="no images to learn from"):
        model.learn([], "nothing")


def test_one_bad_image_does_not_affect_the_predictions_of_the_others(make, tmp_path):
    model = make("cat", "dog")
    (tmp_path / "text.jpg").write_text("dear all")
    shown = [draw("cat", 1)[0], tmp_path / "text.jpg", draw("dog", 1)[0]]
    found = list(model.predict_each(shown))
    assert isinstance(found[1], ImageError) and [one.label for one in (found[0], found[2])] == [
        one.label for one in model.predict([shown[0], shown[2]])
    ]
    with pytest.raises(ImageError, match=r"text\.jpg"):
        model.predict(shown)


def test_a_frame_scales_cuts_and_greys(tmp_path):
    array = np.zeros((40, 80, 3), np.uint8)
    array[:, 20:60] = 200  # what remains of a wide image
    assert pixels(array, Frame(10, 10, 3))[:, 1:-1].min() == 200
    assert Frame(6, 10, 3).pixels(images_from(array)[0]).shape == (3, 6, 6)
    assert Frame(10, 10, 1).pixels(images_from(array)[0]).shape == (1, 10, 10)


@pytest.mark.parametrize("size", [(40_000, 4), (4, 900), (64, 6_401)])
def test_an_image_far_longer_than_wide_is_refused_before_it_is_scaled(tmp_path, size):
    """A small file may declare an image of millions of pixels in a row. Scaled to a height of 64, it would fill the memory."""
    Image.new("RGB", size).save(tmp_path / "thin.png")
    (found,) = Frame(64, 64, 3).each(images_from(str(tmp_path / "thin.png")))
    assert isinstance(found, ImageError) and "more than 100 times the other" in str(found)


def test_entries_of_a_folder_that_cannot_be_read_are_named_and_do_not_stop_the_others(make, tmp_path):
    place = tmp_path / "mixed"
    place.mkdir()
    Image.fromarray(draw("cat")[0]).save(place / "good.png")
    (place / "gone.png").symlink_to(tmp_path / "nowhere.png")
    os.mkfifo(place / "pipe.png")
    (place / "folder.png").mkdir()
    answers = list(make("cat", "dog").predict_each([place, tmp_path / "missing.png"]))
    said = {Path(one.path).name: one.reason for one in answers if isinstance(one, ImageError)}
    assert set(said) == {"gone.png", "pipe.png", "missing.png"} and len(answers) == 4
    assert (
        all("no such file" in said[name] for name in ("gone.png", "missing.png")) and "not a regular file" in said["pipe.png"]
    )
