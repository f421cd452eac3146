"""No image is stored: every byte of a model's folder is searched for images and features."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import numpy as np
import pytest
from model.drawing import draw
from PIL import Image

from amgc.core.spread import random_directions
from amgc.core.typicality import NARROW
from amgc.model import Model
from amgc.model.extractors import encode
from amgc.model.inputs import images_from

FLOATS = (np.float16, np.float32, np.float64)


def needles(images: np.ndarray, rows: np.ndarray) -> list[bytes]:
    """Return images (n, h, w, c) in every form in which they could be stored, whole and in parts, and features (n, d)."""
    found = []
    for image in images:
        encoded = io.BytesIO()
        Image.fromarray(image).save(encoded, format="PNG")
        content = encoded.getvalue()
        found += [content, content[50:98]]  # compressed pixels, anywhere
        for layout in (image, image.transpose(2, 0, 1)):
            found += [layout.tobytes(), layout.tobytes()[: layout[0].nbytes]]
            for kind in FLOATS:
                found += [values.astype(kind)[0].tobytes() for values in (layout, layout / 255)]
    for row in rows:
        assert len(set(row.tolist())) > 2, "constants are everywhere and would prove nothing"
        found += [row.astype(kind).tobytes() for kind in FLOATS]
    return found


def search(folder: Path, wanted: list[bytes]) -> list[str]:
    contents = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert contents
    return [name for name, content in contents.items() if any(needle in content for needle in wanted)]


def test_the_search_finds_what_is_planted(tmp_path):
    images, rows = draw("cat", 2), np.random.default_rng(0).normal(size=(2, 9))
    wanted = needles(images, rows)
    for number, content in enumerate(wanted):
        (tmp_path / f"{number}").write_bytes(b"before" + content + b"behind")
    assert len(search(tmp_path, wanted)) == len(wanted)
    assert search(tmp_path, needles(draw("dog", 2), rows + 1)) == []


@pytest.mark.parametrize(("features", "options"), [("patches", {"filters": 6}), ("convnet", {"dim": 8})])
def test_no_image_and_no_feature_row_is_in_the_folder_or_left_in_temporary_files(tmp_path, monkeypatch, features, options):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    model = Model.create(tmp_path / "model", features, **options)
    images = np.concatenate([draw(kind, 12) for kind in ("cat", "dog", "owl")])
    searches = []

    def look() -> None:
        shown = np.stack([model._state.frame.pixels(one) for one in images_from(images)])
        rows = encode(model._state.extractor, shown)
        wanted = needles(images, rows.numpy()) + needles(
            images[:0], (rows.double() @ random_directions(rows.shape[1], NARROW)).numpy()
        )
        searches.append(search(model.path, wanted))

    for number, kind in enumerate(("cat", "dog", "owl")):
        model.learn(images[12 * number : 12 * number + 12], kind)
        look()
    model.forget("dog")
    look()
    other = Model.create(tmp_path / "other", model.path)
    other.learn(images[12:24], "dog")
    model.merge(other)
    look()
    assert searches == [[]] * 5 and list(temporary.iterdir()) == []


def test_info_reports_filters_cut_from_images_and_drawn_filters_are_no_fragments(tmp_path):
    """With draw="patches" a fragment can be recovered from the file; with the default it cannot."""
    images = draw("cat", 12)
    for kind in ("patches", "gaussian"):
        model = Model.create(tmp_path / kind, filters=40, draw=kind, size=16)
        model.learn(images, "cat")
        assert any("fragments of the first images" in line for line in model.info().kept) == (kind == "patches")
        assert best_match(model, images) > 0.95 if kind == "patches" else best_match(model, images) < 0.6


def best_match(model: Model, images: np.ndarray) -> float:
    """Return the mean over filters of the largest correlation between the unwhitened filter and a fragment of an image."""
    extractor = model._state.extractor
    side = extractor.banks[0][0]
    windows = np.lib.stride_tricks.sliding_window_view(images.astype(float), (side, side), axis=(1, 2))
    patches = windows.reshape(-1, 3 * side**2)  # channels first, as the extractor has them
    patches = patches - patches.mean(1, keepdims=True)
    patches /= patches.std(1, keepdims=True) + extractor.settled.contrast
    weight = extractor.get_buffer("weight0").double().numpy()[:-1]
    centred = patches - patches.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
    unwhitened = (vectors * (values + extractor.settled.whitening)) @ vectors.T @ weight  # W = Z f, f = Z p: Z⁻² W is p
    shapes, filters = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (centred, unwhitened.T))
    return float((filters @ shapes.T).max(1).mean())  # not quite 1: the file's whitening is of a sample of the fragments
