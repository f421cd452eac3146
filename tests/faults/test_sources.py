"""Sources of strangers: pipes, bombs, paths and nested labels in tar, Parquet and numpy files, and links to other folders."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from model.drawing import draw
from PIL import Image

from amgc.cli.main import main
from amgc.data import load, storage
from amgc.data.sets import tar
from amgc.data.shards import Sample, ShardError, open_source
from amgc.data.vectors import read_vectors
from amgc.distributed import finished, worker


def tarred(path: str, members: dict[str, bytes], mode: str = "w") -> str:
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return f"wds:{path}"


def samples(source: str) -> list[Sample]:
    return [sample for shard in open_source(source) for sample in shard.samples()]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has none")
@pytest.mark.parametrize("kind", ["wds:x.tar", "parquet:x.parquet"])
def test_a_pipe_in_the_place_of_a_shard_is_refused(kind):
    if kind.startswith("parquet"):
        pytest.importorskip("pyarrow")
    os.mkfifo(kind.partition(":")[2])
    with pytest.raises(ShardError, match="not a regular file"):
        samples(kind)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has none")
def test_a_pipe_at_an_address_is_an_unreadable_image(tmp_path):
    pytest.importorskip("fsspec")
    Path("photos/cat").mkdir(parents=True)
    os.mkfifo("photos/cat/1.jpg")
    assert [sample.content for sample in samples(f"file://{tmp_path}/photos")] == [b""]


def test_a_deeply_nested_label_is_an_error_of_the_shard():
    source = tarred("x.tar", {"1.png": b"x", "1.json": b'{"label": ' + b"[" * 100_000})
    with pytest.raises(ShardError, match="nested too deeply"):
        samples(source)


@pytest.mark.parametrize("mode", ["gz", "bz2", "xz"])
def test_a_damaged_compressed_tar_file_is_an_error_of_the_shard(mode):
    rng = np.random.default_rng(0)
    tarred("x.tar", {f"{number}.png": rng.bytes(3000) for number in range(200)}, f"w:{mode}")
    content = bytearray(Path("x.tar").read_bytes())
    content[300_000:300_064] = bytes(64)
    Path("x.tar").write_bytes(content)
    with pytest.raises(ShardError, match="damaged"):
        samples("wds:x.tar")


def test_members_of_one_sample_have_a_limit_together(monkeypatch):
    monkeypatch.setattr(tar, "LARGEST", 1000)
    with pytest.raises(ShardError, match="together are larger"):
        samples(tarred("x.tar", {"1.png": bytes(600), "1.mask": bytes(600)}))


def test_images_in_memory_at_a_time_have_a_limit_in_bytes(monkeypatch):
    monkeypatch.setattr(worker, "MOST_BYTES", 1000)
    given = [Sample(str(number), "cat", bytes(400)) for number in range(7)]
    shard = SimpleNamespace(samples=lambda: iter(given))
    assert [len(chunk) for chunk in worker.chunks(shard)] == [3, 3, 1]


def test_a_small_file_of_vectors_that_unpacks_to_gigabytes_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr(storage, "LARGE", 5_000_000)  # to write less
    np.savez_compressed("bomb.npz", x=np.zeros((1000, 1000)), y=np.zeros(1000, int))
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(ValueError, match=r"would unpack to 8\.0 MB"):
        read_vectors("bomb.npz")


def test_a_small_parquet_file_of_vectors_that_unpacks_to_gigabytes_is_refused_before_it_is_read(monkeypatch):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(storage, "LARGE", 5_000_000)
    parquet.write_table(arrow.table({"x": np.zeros(2_000_000), "y": np.zeros(2_000_000)}), "bomb.parquet")
    monkeypatch.setattr(parquet, "read_table", lambda *_: pytest.fail("it was read"))
    with pytest.raises(ValueError, match=r"would unpack to 32\.0 MB"):
        read_vectors("bomb.parquet")


@pytest.mark.parametrize("path", ["../secret.png", "{root}/secret.png", "link.png"])
def test_a_parquet_file_names_images_of_its_own_folder_only(tmp_path, path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    Path("own").mkdir()
    for place in ("secret.png", "own/1.png"):
        Image.fromarray(draw("cat", 1)[0]).save(place)
    Path("own/link.png").symlink_to(tmp_path / "secret.png")
    for name, file in (("1.png", "good"), (path.format(root=tmp_path), "bad")):
        rows = {"image": [{"bytes": None, "path": name}], "label": ["cat"]}
        parquet.write_table(arrow.table(rows), f"own/{file}.parquet")
    assert samples("parquet:own/good.parquet")[0].content == str(tmp_path.resolve() / "own/1.png")
    with pytest.raises(ShardError, match="which is not in"):
        samples("parquet:own/bad.parquet")


def test_finished_shards_that_are_a_link_to_another_folder_are_not_deleted(model, tmp_path):
    (other := tmp_path / "other").mkdir()
    (other / "precious.safetensors").write_text("x")
    (model / finished.SHARDS).symlink_to(other)
    source = tarred("x.tar", {"1.png": b"x", "1.cls": b"cat"})
    assert main(["learn", str(model), source, "--jobs", "1"]) != 0
    assert [path.name for path in other.iterdir()] == ["precious.safetensors"]


@pytest.mark.parametrize("adding", [1, [], {}, {"generation": "x"}, {"generation": 0, "classes": 1}])
def test_strange_notes_of_finished_shards_are_not_obeyed(model, adding):
    (model / finished.SHARDS).mkdir()
    (model / finished.SHARDS / finished.PLAN).write_text(json.dumps({"a": 1, "adding": adding}))
    assert not finished.Finished(model, {"a": 1}).added_before(2, {"cat": 10})


@pytest.mark.parametrize("name", ["\u200b", " ", "\u3164"])
def test_a_run_refuses_class_names_that_cannot_be_seen(name):
    for kind in (name, "dog"):
        Path("photos", kind).mkdir(parents=True)
        for number, pixels in enumerate(draw("dog", 3)):
            Image.fromarray(pixels).save(f"photos/{kind}/{number}.png")
    with pytest.raises(ValueError, match="cannot be seen"):
        load("folder:photos", size=8)
    labels = json.dumps({"label": name}).encode()
    members = {f"{number}.{suffix}": part for number in range(2) for suffix, part in (("png", b"x"), ("json", labels))}
    with pytest.raises(ShardError, match="cannot be seen"):
        [worker.label_of(open_source("wds:x.tar")[0], one) for one in samples(tarred("x.tar", members))]


@pytest.mark.slow
def test_few_rows_are_read_at_a_time_if_one_of_them_may_be_large():
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from amgc.data.sets.parquet import ROWS, _rows

    for size, rows in ((1000, ROWS), (100_000_000, 2)):
        parquet.write_table(arrow.table({"image": [bytes(size)] * 3}), "x.parquet")
        assert _rows(parquet.read_metadata("x.parquet")) == rows
