"""Image files of every kind become upright RGB images of one size; errors name unreadable files."""

from __future__ import annotations

import errno
import io
import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image, ImageFile

from amgc import files
from amgc.data import decode as module
from amgc.data.decode import CorruptImageError, decode
from amgc.data.image_files import Files, list_images


def saved(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)
    return path


def test_every_mode_becomes_the_same_rgb(tmp_path: Path) -> None:
    grey = np.add.outer(np.arange(0, 128, 8), np.arange(0, 128, 8)).astype(np.uint8)  # 16 × 16
    colour = np.stack([grey, grey[::-1], grey.T // 2], axis=-1)
    rgb, gray = Image.fromarray(colour), Image.fromarray(grey)
    as_rgb = np.repeat(grey[None], 3, axis=0)
    opaque = rgb.copy()
    opaque.putalpha(255)
    kinds = {
        "rgb.png": (rgb, colour.transpose(2, 0, 1), 0),
        "rgba.png": (opaque, colour.transpose(2, 0, 1), 0),
        "cmyk.tif": (rgb.convert("CMYK"), colour.transpose(2, 0, 1), 1),
        "grey.png": (gray, as_rgb, 0),
        "greyalpha.png": (gray.convert("LA"), as_rgb, 0),
        "palette.png": (gray.convert("P"), as_rgb, 0),
        "16bit.png": (Image.fromarray(grey.astype(np.uint16) * 257), as_rgb, 0),
        "16bit.tif": (Image.fromarray(grey.astype(np.uint16) * 257), as_rgb, 0),
        "32bit.tif": (Image.fromarray(grey.astype(np.int32) * 257), as_rgb, 0),
        "float.tif": (Image.fromarray(grey.astype(np.float32) / 255), as_rgb, 0),
        "bilevel.png": (gray.convert("1", dither=Image.Dither.NONE), np.where(as_rgb > 127, 255, 0), 0),
    }
    for name, (image, expected, tolerance) in kinds.items():
        found = decode(saved(tmp_path / name, image), 16)
        assert found.shape == (3, 16, 16) and found.dtype == np.uint8
        assert np.abs(found.astype(int) - expected).max() <= tolerance, name


def test_a_cmyk_jpeg_is_not_a_negative(tmp_path: Path) -> None:
    path = saved(tmp_path / "print.jpg", Image.new("RGB", (16, 16), (200, 40, 60)).convert("CMYK"), quality=95)
    assert Image.open(path).mode == "CMYK"
    assert np.abs(decode(path, 16).mean((1, 2)) - [200, 40, 60]).max() < 6


def test_transparency_is_put_on_white(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    assert decode(saved(tmp_path / "clear.png", clear), 4).min() == 255
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([0, 0, 0, 90, 90, 90])
    palette.putpixel((0, 0), 1)
    found = decode(saved(tmp_path / "hole.gif", palette, transparency=0), 4)
    assert found[:, 0, 0].tolist() == [90, 90, 90] and found[:, 1, 1].tolist() == [255, 255, 255]


def converted() -> dict[str, tuple[Image.Image, np.ndarray]]:
    """Return images of several modes and their values in RGB, by the definitions."""
    rng = np.random.default_rng(0)
    grey, deep = rng.integers(0, 256, (23, 37), dtype=np.uint8), rng.integers(0, 65536, (23, 37), dtype=np.uint16)
    real, alpha = rng.random((23, 37), dtype=np.float32), 255 * rng.integers(0, 2, (23, 37), dtype=np.uint8)
    palette = Image.fromarray(grey % 4).convert("P")
    palette.putpalette([0, 0, 0, 50, 60, 70, 80, 90, 100, 110, 120, 130])
    palette.info["transparency"] = 2
    colours = np.array([[0, 0, 0], [50, 60, 70], [255, 255, 255], [110, 120, 130]], np.uint8)
    clear = np.where(alpha == 255, grey, 255)

    def three(values: np.ndarray) -> np.ndarray:
        return np.repeat(values.astype(np.uint8)[..., None], 3, axis=2)

    return {
        "16 bits": (Image.fromarray(deep), three(np.rint(deep / 257))),
        "float": (Image.fromarray(real), three(np.rint(real.astype(np.float64) * 255))),
        "grey": (Image.fromarray(grey), three(grey)),
        "transparent": (Image.merge("LA", [Image.fromarray(grey), Image.fromarray(alpha)]), three(clear)),
        "palette": (palette, colours[grey % 4]),
    }


@pytest.mark.parametrize("mode", list(converted()))
@pytest.mark.parametrize("rows", [1, 2, 7, 1000])
def test_converting_a_few_rows_at_a_time_changes_no_pixel(mode: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    image, expected = converted()[mode]
    monkeypatch.setattr(module, "STRIP", rows * image.width)
    assert np.array_equal(np.asarray(module.to_rgb(image)), expected)
    for size in (8, 23, 40):
        width = int(size * 37 / 23)
        large = Image.fromarray(expected).resize((width, 23), Image.Resampling.BILINEAR)
        large = large.resize((width, size), Image.Resampling.BILINEAR)
        left = round((width - size) / 2)
        assert np.array_equal(np.asarray(module.shorter_side(image, size)), np.asarray(large)[:, left : left + size])


def test_a_large_image_of_16_bits_is_never_in_memory_as_floating_point_numbers(tmp_path: Path) -> None:
    path = saved(tmp_path / "deep.png", Image.fromarray(np.full((3000, 2000), 300, np.uint16)))
    tracemalloc.start()  # counts arrays, but not Pillow's images
    try:
        decode(path, 8)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3000 * 2000 * np.dtype(np.float64).itemsize


def test_an_image_that_is_given_is_not_turned_itself() -> None:
    image = Image.new("RGB", (20, 10))
    image.getexif()[0x0112] = 6
    assert module.read_image(image, "mine")[0].size == (10, 20) and image.size == (20, 10)


def test_a_photograph_that_was_taken_sideways_stands_upright(tmp_path: Path) -> None:
    image = Image.new("RGB", (20, 10), (0, 0, 0))
    image.paste((255, 255, 255), (0, 0, 10, 10))  # white left half
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by 90°: the left side is the top
    found = decode(saved(tmp_path / "phone.png", image, exif=exif), 10)
    assert found[:, :4].min() > 200 and found[:, 6:].max() < 50


@pytest.mark.parametrize("shape", [(40, 25), (25, 40), (7, 31), (16, 16), (3, 200)])
def test_the_shorter_side_is_scaled_and_the_centre_cut_out(shape: tuple[int, int], tmp_path: Path) -> None:
    width, height = shape
    pixels = np.random.RandomState(0).randint(0, 256, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    found = decode(saved(tmp_path / "x.png", image), 16)
    long = int(16 * max(shape) / min(shape))
    large = image.resize((16, long) if width <= height else (long, 16), Image.Resampling.BILINEAR)
    expected = np.asarray(large)
    start = round((long - 16) / 2)
    expected = expected[start : start + 16] if width <= height else expected[:, start : start + 16]
    assert np.array_equal(found, expected.transpose(2, 0, 1))


def damaged() -> dict[str, bytes]:
    buffer = io.BytesIO()
    Image.fromarray(np.random.RandomState(0).randint(0, 256, (64, 64, 3), dtype=np.uint8)).save(buffer, "JPEG")
    jpeg = buffer.getvalue()
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64)).save(buffer, "PNG")
    png = buffer.getvalue()
    return {
        "truncated.jpg": jpeg[: len(jpeg) // 2],
        "header-only.jpg": jpeg[:20],
        "empty.jpg": b"",
        "text.jpg": b"this is no picture",
        "truncated.png": png[:-30],
        "flipped.png": png[:45] + bytes([png[45] ^ 255]) + png[46:],
    }


@pytest.mark.parametrize("name", list(damaged()))
def test_an_unreadable_image_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(damaged()[name])
    with pytest.raises(CorruptImageError, match=name) as caught:
        decode(tmp_path / name, 16)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value) and (copy.path, copy.reason) == (caught.value.path, caught.value.reason)
    assert "on_corrupt" in str(caught.value) and caught.value.path == str(tmp_path / name)


def test_values_without_a_known_range_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "heat.tif", Image.fromarray(np.full((4, 4), 273.15, np.float32)))
    with pytest.raises(CorruptImageError, match=r"273\.15"):
        decode(path, 4)


def test_a_missing_file_is_named_as_one_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(CorruptImageError, match=r"gone\.png.*no such file"):
        decode(tmp_path / "gone.png", 4)


class Broken(io.FileIO):
    """A file on a disk that fails when it is read."""

    def read(self, *_: Any) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.ESTALE])
def test_an_error_of_the_disk_is_no_corrupt_image(
    code: int, tmp_path: Path, paint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise OSError(code, os.strerror(code))

    path = paint(tmp_path / "x.png")
    with monkeypatch.context() as patch:
        patch.setattr(files, "open", refused if code != errno.EIO else lambda name, *_: Broken(name), raising=False)
        with pytest.raises(OSError) as caught:
            decode(path, 4)
        assert caught.value.errno == code
    monkeypatch.setattr(Image, "open", lambda *_, **__: refused())
    with pytest.raises(OSError) as caught:
        decode(path, 4)
    assert caught.value.errno == code


def test_postscript_in_disguise_is_corrupt_and_never_interpreted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "x.eps")
    (tmp_path / "x.eps").rename(tmp_path / "x.jpg")
    assert Image.open(tmp_path / "x.jpg").format == "EPS"

    def reached(*_: Any, **__: Any) -> None:
        pytest.fail("the EPS plugin was reached")

    monkeypatch.setattr(EpsImagePlugin.EpsImageFile, "_open", reached)
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", reached)
    with pytest.raises(CorruptImageError, match=r"x\.jpg.*none of JPEG, PNG"):
        decode(tmp_path / "x.jpg", 4)


@pytest.mark.parametrize("compression", ["tiff_lzw", "jpeg"])
def test_a_compressed_tiff_is_read(compression: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "x.tif", Image.new("RGB", (16, 16), (9, 9, 9)), compression=compression)
    assert np.abs(decode(path, 16).astype(int) - 9).max() <= 1


@pytest.mark.parametrize("workers", [1, 3])
def test_files_are_decoded_in_the_requested_order(workers: int, tmp_path: Path, paint: Callable[..., Path]) -> None:
    files = Files([str(paint(tmp_path / f"{k}.png", (k, k, k))) for k in range(20)], 8, workers)
    assert files.take(torch.tensor([7, 19, 0, 7]))[:, 0, 0, 0].tolist() == [7, 19, 0, 7]
    part = files.subset(torch.tensor([3, 4]))
    assert len(part) == 2 and part.take(torch.tensor([1]))[0, 0, 0, 0] == 4
    assert all("3.png" in path or "4.png" in path for path in part.paths), "other files are not to be reached"


def test_hidden_files_and_other_files_do_not_count(tmp_path: Path, paint: Callable[..., Path]) -> None:
    wanted = [paint(tmp_path / "b.PNG"), paint(tmp_path / "sub" / "a.jpeg")]
    paint(tmp_path / ".hidden.png")
    paint(tmp_path / ".cache" / "c.png")
    (tmp_path / "notes.txt").write_text("hello")
    for name in ("Thumbs.db", "leaflet.pdf", "figure.eps", "features.h5", "film.mpg"):
        (tmp_path / name).write_bytes(b"")
    assert list_images(tmp_path) == sorted(wanted)


def test_an_image_with_too_many_pixels_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 2_000_000)
    path = saved(tmp_path / "large.png", Image.new("RGB", (2000, 1001)))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("it was decoded"))
    with pytest.raises(CorruptImageError, match=r"large\.png.*more than 2 million pixels"):
        decode(path, 8)
