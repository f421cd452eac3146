"""Sources: tar files, Parquet, Hugging Face data sets and addresses, for `run`, `learn`, `predict` and `evaluate`."""

from __future__ import annotations

import importlib.util
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from model.drawing import draw
from PIL import Image

from amgc.cli.main import main
from amgc.data import load
from amgc.data.shards import ShardError, is_source, open_source
from amgc.model import Model

KINDS = ("cat", "dog")
EACH = 6


def png(pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def images(seed: int = 0) -> list[tuple[str, bytes]]:
    """Return labels and encoded drawings, the classes mixed."""
    drawn = [[(kind, png(one)) for one in draw(kind, EACH, seed)] for kind in KINDS]
    return [pair for pairs in zip(*drawn, strict=True) for pair in pairs]


def tar(path: Path, samples: list[tuple[str, bytes]], label: str = "cls") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for number, (kind, content) in enumerate(samples):
            given = json.dumps({"name": kind}).encode() if label == "json" else kind.encode()
            parts = {"png": content} | ({label: given} if label else {})
            for suffix, part in parts.items():
                member = tarfile.TarInfo(f"{number:04d}.{suffix}")
                member.size = len(part)
                archive.addfile(member, io.BytesIO(part))
    return path


def in_tar(root: Path) -> str:
    found = images()
    tar(root / "train-000.tar", found[:7]), tar(root / "train-001.tar", found[7:])
    return f"wds:{root}/train-{{000..001}}.tar"


def in_parquet(root: Path) -> str:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    root.mkdir(exist_ok=True)
    found = images()
    names = {"huggingface": json.dumps({"info": {"features": {"label": {"names": list(KINDS), "_type": "ClassLabel"}}}})}
    for number, part in enumerate((found[:7], found[7:])):
        rows = {"image": [{"bytes": content, "path": None} for _, content in part], "label": [KINDS.index(k) for k, _ in part]}
        parquet.write_table(arrow.table(rows).replace_schema_metadata(names), root / f"{number}.parquet")
    return f"parquet:{root}/*.parquet"


def in_datasets(root: Path) -> str:
    library = pytest.importorskip("datasets")
    rows = {"image": [{"bytes": content, "path": None} for _, content in images()], "label": [k for k, _ in images()]}
    features = library.Features({"image": library.Image(), "label": library.ClassLabel(names=list(KINDS))})
    root.mkdir(exist_ok=True)
    library.Dataset.from_dict(rows, features).to_parquet(root / "train.parquet")
    library.Dataset.from_dict(rows, features).to_parquet(root / "test.parquet")
    return f"hf:{root}"


def at_address(root: Path) -> str:
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    for number, (kind, content) in enumerate(images()):
        system.pipe_file(f"/{root.name}/{kind}/{number:03d}.png", content)
    system.pipe_file(f"/{root.name}/cat/notes.txt", b"hello")
    return f"memory://{root.name}"


@cache
def s3_server() -> str:
    """Start an S3 server in this process, once. Returns its address."""
    server = pytest.importorskip("moto.server", reason="needs moto and s3fs").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    return f"http://{host}:{port}"


def at_s3(root: Path) -> str:
    s3fs = pytest.importorskip("s3fs", reason="needs moto and s3fs")
    system = s3fs.S3FileSystem()
    system.mkdir(root.name)
    for number, (kind, content) in enumerate(images()):
        system.pipe_file(f"{root.name}/photos/{kind}/{number:03d}.png", content)
    return f"s3://{root.name}/photos"


SOURCES = [in_tar, in_parquet, in_datasets, at_address, at_s3]


@pytest.fixture(params=SOURCES, ids=lambda make: make.__name__)
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    make: Callable[[Path], str] = request.param
    if make is at_s3:
        settings = {"ENDPOINT_URL": s3_server(), "ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x", "DEFAULT_REGION": "us-east-1"}
        for name, value in settings.items():
            monkeypatch.setenv(f"AWS_{name}", value)
    yield make(tmp_path / f"data{tmp_path.name}")


def test_a_source_has_labelled_images_in_shards(source):
    assert is_source(source)
    shards = open_source(source)
    found = [(sample.label, sample.content) for shard in shards for sample in shard.samples()]
    assert sorted(found) == sorted(images())
    assert all(shard.size > 0 and shard.stamp() for shard in shards)


def test_a_model_learns_a_source_and_is_asked_about_it(source, capsys):
    assert main(["learn", "model", source, "--filters", "6", "--jobs", "1"]) == 0
    told = capsys.readouterr().out
    assert "Learned 2 classes from 12 images" in told and "Memory: about" in told and "1 worker on this machine" in told
    assert Model.open("model").classes == dict.fromkeys(KINDS, EACH)
    assert main(["predict", "model", source, "--json"]) == 0
    assert len([json.loads(line) for line in capsys.readouterr().out.splitlines()]) == 12
    assert main(["evaluate", "model", source, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 12


def test_a_run_reads_a_source(source):
    name = f"url:{source}" if "://" in source else source
    dataset = load(name, size=16)
    assert dataset.class_names == KINDS and dataset.train.shape == (3, 16, 16)
    assert (len(dataset.train), len(dataset.test)) == (10, 2)


def test_a_source_learns_the_same_as_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, (kind, content) in enumerate(images()):
        Path("photos", kind).mkdir(parents=True, exist_ok=True)
        Path("photos", kind, f"{number:03d}.png").write_bytes(content)
    fixed = ["--features", "one", "--quiet"]
    assert main(["learn", "one", "photos", "--filters", "6", "--quiet"]) == 0
    assert main(["learn", "two", in_tar(tmp_path / "data"), *fixed]) == 0
    one, two = (Model.open(name).state.classifier.statistics_ for name in ("one", "two"))
    order = [two.index(name) for name in one.classes]
    assert one.count.tolist() == two.count[order].tolist()
    assert float((one.mean - two.mean[order]).abs().max()) < 1e-5 * float(one.mean.abs().max())


@pytest.mark.parametrize(
    ("damage", "why"), [("text", "not a tar file"), ("cut", "damaged, or cut off"), ("gone", "No such file")]
)
def test_a_damaged_tar_file_is_named_and_nothing_is_learned(tmp_path, monkeypatch, capsys, damage, why):
    monkeypatch.chdir(tmp_path)
    good, bad = tar(Path("good.tar"), images()), tar(Path("bad.tar"), images())
    if damage == "text":
        bad.write_text("dear all " * 100)
    elif damage == "cut":
        content = bad.read_bytes()
        with tarfile.open(bad) as archive:
            middle = archive.getmembers()[6].offset
        bad.write_bytes(content[: middle + 300])
    else:
        bad.unlink()
    pattern = f"wds:{{{0}..{1}}}.tar"
    good.rename("0.tar")
    if damage != "gone":
        bad.rename("1.tar")
    code = main(["learn", "model", pattern, "--filters", "6", "--jobs", "1", "--quiet"])
    said = capsys.readouterr().err
    assert code == 2 and "1.tar" in said and why in said, said
    assert not Path("model/manifest.json").exists() or not Model.open("model").classes
    if damage != "gone":  # its size is asked for before
        assert main(["learn", "model", pattern, "--filters", "6", "--jobs", "1", "--quiet", "--skip-shards"]) == 0
        assert "left out: 1.tar" in capsys.readouterr().err and sum(Model.open("model").classes.values()) == 12


def test_labels_may_be_in_json_and_missing_ones_are_an_error(tmp_path):
    path = tar(tmp_path / "a.tar", images(), "json")
    (shard,) = open_source(f"wds:{path}", {"label_column": "json:name"})
    assert [sample.label for sample in shard.samples()] == [kind for kind, _ in images()]
    path = tar(tmp_path / "b.tar", images(), "")
    with pytest.raises(ShardError, match=r"b\.tar.* has no label"):
        load(f"wds:{path}")


def test_missing_columns_are_named(tmp_path):
    pytest.importorskip("pyarrow")
    source = in_parquet(tmp_path / "data")
    with pytest.raises(ShardError, match=r"0\.parquet: it has no column 'kind' of labels; it has 'image', 'label'"):
        list(open_source(source, {"label_column": "kind"})[0].samples())
    (tmp_path / "data" / "0.parquet").write_text("no")
    with pytest.raises(ShardError, match=r"0\.parquet: it is not a Parquet file"):
        list(open_source(source)[0].samples())


def test_a_source_that_needs_a_package_says_which(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'amgc\[hf\]'"):
        open_source("hf:anything")
    if importlib.util.find_spec("s3fs") is None and importlib.util.find_spec("fsspec"):
        with pytest.raises(ImportError, match="pip install fsspec s3fs"):
            open_source("s3://bucket/photos")


def test_images_that_exceed_the_memory_are_an_error_before_they_are_read_further(tmp_path):
    path = tar(tmp_path / "a.tar", images())
    with pytest.raises(MemoryError, match=r"need more than 1\.0 kB"):
        load(f"wds:{path}", memory=1000)


def test_unreadable_images_in_a_run_are_errors_or_skipped(tmp_path):
    path = tar(tmp_path / "a.tar", [*images(), ("cat", b"dear all")])
    with pytest.raises(ValueError, match=r"a\.tar: 0012\.png.*is not a readable image"):
        load(f"wds:{path}", size=16)
    assert len(load(f"wds:{path}", size=16, on_corrupt="skip").skipped) == 1
