"""After learning, the disk contains no part of the images and no row of features."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from serving import encoded, parts, server

pytest.importorskip("fastapi", reason="needs the extra `serve`")
import httpx2

from amgc.core.spread import random_directions
from amgc.core.typicality import NARROW
from amgc.model import Model
from amgc.model.extractors import encode
from amgc.model.inputs import Input

PIECE = 24  # bytes that no two different things share by chance


def noise(seed: int, side: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


def pieces(content: bytes) -> Iterator[bytes]:
    """Return pieces from all parts of the content except the header, which all images share."""
    for start in np.linspace(len(content) // 5, len(content) - PIECE, 12, dtype=int):
        piece = content[start : start + PIECE]
        if len(set(piece)) > 8:  # not a run of zeros
            yield piece


def traces(model: Model, files: list[bytes], arrays: list[np.ndarray]) -> list[bytes]:
    """Return pieces of the encoded images, of their pixels in both orders and as the extractor gets them, and features."""
    frame, extractor = model._state.frame, model._state.extractor
    small = np.stack([frame.pixels(Input("", file)) for file in files])
    features = encode(extractor, small)
    shapes = [*files, *(array.tobytes() for array in arrays), *(array.transpose(2, 0, 1).tobytes() for array in arrays)]
    for one in small:
        shapes += [one.tobytes(), one.transpose(1, 2, 0).tobytes(), one.astype(np.float32).tobytes()]
    projected = features.double() @ random_directions(features.shape[1], NARROW)
    for rows in (features.numpy(), features.double().numpy(), features.half().numpy(), projected.numpy()):
        shapes += [row.tobytes() for row in rows]
    found = [piece for shape in shapes for piece in pieces(shape)]
    assert len(found) > 10 * len(shapes) * 0.8
    return found


def leaked(folders: list[Path], wanted: list[bytes]) -> list[str]:
    """Return the files that contain any of the pieces."""
    found = []
    for folder in folders:
        for path in sorted(one for one in folder.rglob("*") if one.is_file()):
            content = path.read_bytes()
            found += [str(path)] * any(piece in content for piece in wanted)
    return found


def test_no_image_is_on_the_disk_after_learning(tmp_path):
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    home.mkdir()
    temporary.mkdir()
    arrays = [noise(seed, 48) for seed in range(5)] + [noise(9, 900)]  # the last one has 2.4 MB
    files = [encoded(array) for array in arrays]
    assert len(files[-1]) > 2_000_000
    path = Model.create(tmp_path / "model", filters=8).path
    with (
        server(path, home=home, TMPDIR=str(temporary)) as served,
        httpx2.Client(base_url=served.address, timeout=300) as client,
    ):
        for label, own in (("one", files[:3]), ("two", files[3:])):
            assert client.post("/api/learn", files=parts(*own), data={"label": label}).status_code == 200
        assert client.post("/api/predict", files=parts(*files)).status_code == 200
        opened = Path(f"/proc/{served.process.pid}/fd")
        if opened.is_dir():  # a temporary file may have no name
            targets = [str(one.readlink()) for one in opened.iterdir()]
            assert not [one for one in targets if "(deleted)" in one or str(temporary) in one]
        assert client.post("/api/forget", json={"label": "one"}).status_code == 200
        wanted = traces(Model.open(path), files, arrays)
        assert leaked([tmp_path], wanted) == []
    assert leaked([tmp_path], wanted) == []
    assert list(temporary.iterdir()) == [] == list(home.iterdir())

    for number, content in enumerate((files[-1], arrays[0].tobytes())):  # the search would have found them
        (path / f"{number}.safetensors").write_bytes(b"before" + content + b"after")
    assert len(leaked([tmp_path], wanted)) == 2
