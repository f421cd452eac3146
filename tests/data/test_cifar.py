"""CIFAR-100: small files of the same format, and the official files if they are available."""

from __future__ import annotations

import functools
import hashlib
import http.client
import http.server
import io
import os
import pickle
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from amgc.data import Augment, load
from amgc.data.sets import cifar

NAMES = [f"thing_{label}" for label in range(4)]


def array_pickle(pixels: np.ndarray[Any, Any]) -> bytes:
    """Return an array as numpy in Python 2 pickled it."""
    content = pixels.tobytes()
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
        + f"(I1\n(I{pixels.shape[0]}\nI{pixels.shape[1]}\nt".encode()
        + b"cnumpy\ndtype\n(S'u1'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\n"
        + b"T"
        + len(content).to_bytes(4, "little")
        + content
        + b"tb"
    )


def python_file(pixels: np.ndarray[Any, Any], labels: list[int]) -> bytes:
    numbers = b"".join(f"I{label}\na".encode() for label in labels)
    return b"\x80\x02}(S'data'\n" + array_pickle(pixels) + b"S'fine_labels'\n]" + numbers + b"u."


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Write small files in both official formats, and replace the official checksums by theirs."""
    random = np.random.RandomState(0)
    made: dict[str, Any] = {"root": tmp_path}
    python, binary = tmp_path / "cifar-100-python", tmp_path / "cifar-100-binary"
    python.mkdir()
    binary.mkdir()
    for split, count in (("train", 12), ("test", 8)):
        pixels = random.randint(0, 256, (count, 3072), dtype=np.uint8)
        labels = [row % 4 for row in range(count)]
        made[split] = (pixels.reshape(-1, 3, 32, 32), labels)
        (python / split).write_bytes(python_file(pixels, labels))
        coarse = np.full((count, 1), 9, np.uint8)
        records = np.hstack([coarse, np.array(labels, np.uint8)[:, None], pixels])
        (binary / f"{split}.bin").write_bytes(records.tobytes())
    (python / "meta").write_bytes(pickle.dumps({"fine_label_names": NAMES, "coarse_label_names": ["x"]}, protocol=2))
    (binary / "fine_label_names.txt").write_text("\n".join(NAMES) + "\n")
    monkeypatch.setattr(cifar, "PYTHON", {name: _sum("md5", python / name) for name in cifar.PYTHON})
    monkeypatch.setattr(cifar, "BINARY", {name: _sum("sha256", binary / name) for name in cifar.BINARY})
    return made


def _sum(algorithm: str, path: Path) -> str:
    return hashlib.new(algorithm, path.read_bytes()).hexdigest()


@pytest.mark.parametrize("form", ["python", "binary"])
@pytest.mark.parametrize("inside", [False, True])
def test_both_forms_give_the_images_labels_and_names(small: dict[str, Any], form: str, inside: bool) -> None:
    root = small["root"]
    other = "binary" if form == "python" else "python"
    for path in (root / f"cifar-100-{other}").iterdir():
        path.unlink()
    dataset = load("cifar100", root / f"cifar-100-{form}" if inside else root)
    assert dataset.class_names == tuple(NAMES) and dataset.mean == (0.5071, 0.4867, 0.4408)
    for split, images in (("train", dataset.train), ("test", dataset.test)):
        pixels, labels = small[split]
        assert np.array_equal(images.take(range(len(images))).numpy(), pixels)
        assert images.labels.tolist() == labels


def test_training_images_are_augmented_with_the_values_of_pycil(small: dict[str, Any]) -> None:
    expected = Augment(32, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), padding=4, flip=True, brightness=63 / 255)
    assert Augment.of(load("cifar100", small["root"])) == expected


@pytest.mark.parametrize("form", ["python", "binary"])
def test_a_changed_byte_is_refused_with_both_sums(small: dict[str, Any], form: str) -> None:
    folder = small["root"] / f"cifar-100-{form}"
    path = folder / ("test" if form == "python" else "test.bin")
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"not the official file.*verify=False \(amgc run: --data.no-verify\)"):
        load("cifar100", folder)
    load("cifar100", folder, verify=False)


def test_a_missing_file_is_named_with_where_it_was_looked_for(small: dict[str, Any]) -> None:
    (small["root"] / "cifar-100-python" / "meta").unlink()
    (small["root"] / "cifar-100-binary" / "test.bin").unlink()
    with pytest.raises(FileNotFoundError) as caught:
        load("cifar100", small["root"])
    for part in (str(small["root"]), "lacks meta", "download=True", cifar.URL):
        assert part in str(caught.value)
    for form, missing in (("python", "meta"), ("binary", r"test\.bin")):
        with pytest.raises(FileNotFoundError, match=rf"cifar-100-{form}' lacks {missing}\."):
            load("cifar100", small["root"] / f"cifar-100-{form}")


def test_without_root_the_folder_of_the_environment_is_used(small: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMGC_DATA", str(small["root"]))
    assert len(load("cifar100").train) == 12


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.system, (f"touch {self.path}",))


def malicious(mark: Path) -> dict[str, bytes]:
    return {
        "a call of os.system": pickle.dumps({"data": Evil(mark)}, protocol=2),
        "a call through builtins": b"cbuiltins\neval\n(S'open(" + repr(str(mark)).encode() + b', "w")\'\ntR.',
        "a stack global": pickle.dumps(Evil(mark), protocol=4),
        "an attribute of an allowed module": b"cnumpy\nload\n(S'x'\ntR.",
        "a dotted name": b"\x80\x04\x8c\x05numpy\x8c\x0edtype.__init__\x93.",
        "an instance opcode": b"(S'touch x'\nios\nsystem\n.",
        "a persistent object": b"Pelsewhere\n.",
        "an array of objects": b"cnumpy\ndtype\n(S'O8'\ntR.",
        "a number": pickle.dumps(3),
        "nothing": b"",
        "noise": bytes(range(256)),
    }


@pytest.mark.parametrize("kind", list(malicious(Path("x"))))
def test_a_malicious_or_damaged_pickle_is_refused_without_running(kind: str, small: dict[str, Any]) -> None:
    mark = small["root"] / "it-ran"
    folder = small["root"] / "cifar-100-python"
    (folder / "train").write_bytes(malicious(mark)[kind])
    with pytest.raises(ValueError, match="refused"):
        load("cifar100", folder, verify=False)
    assert not mark.exists()


def test_a_sound_pickle_of_something_else_is_refused(small: dict[str, Any]) -> None:
    folder = small["root"] / "cifar-100-python"
    (folder / "train").write_bytes(pickle.dumps({"data": [1, 2], "fine_labels": [0]}, protocol=2))
    with pytest.raises(ValueError, match="not CIFAR-100's"):
        load("cifar100", folder, verify=False)
    (folder / "train").write_bytes(python_file(np.zeros((2, 30), np.uint8), [0, 1]))
    with pytest.raises(ValueError, match="does not contain CIFAR images"):
        load("cifar100", folder, verify=False)


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "*")  # a proxy does not reach this machine's own server
    folder = tmp_path_factory.mktemp("server")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/archive.tar.gz", folder
        running.shutdown()


def archive(small: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    with tarfile.open(folder / "archive.tar.gz", "w:gz") as tar:
        for name in cifar.PYTHON:
            tar.add(small["root"] / "cifar-100-python" / name, f"cifar-100-python/{name}")
        stray = tarfile.TarInfo("../escaped")
        stray.size = 4
        tar.addfile(stray, io.BytesIO(b"boo!"))
    monkeypatch.setattr(cifar, "URL", url)
    monkeypatch.setattr(cifar, "ARCHIVE_MD5", _sum("md5", folder / "archive.tar.gz"))


def test_a_download_happens_only_on_request_and_leaves_exactly_the_files(
    small: dict[str, Any], server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, folder = server
    archive(small, folder, monkeypatch, url)
    root = tmp_path / "deep" / "new"
    with pytest.raises(FileNotFoundError):
        load("cifar100", root)
    assert not root.exists()
    dataset = load("cifar100", root, download=True)
    assert dataset.train.labels.tolist() == small["train"][1]
    assert sorted(path.name for path in root.rglob("*")) == ["cifar-100-python", "meta", "test", "train"]
    assert not (root.parent / "escaped").exists()
    monkeypatch.setattr(cifar, "URL", "http://127.0.0.1:9/none")
    load("cifar100", root, download=True)  # what is there is not fetched again


def test_a_wrong_or_failed_download_leaves_nothing(
    small: dict[str, Any], server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, folder = server
    archive(small, folder, monkeypatch, url)
    monkeypatch.setattr(cifar, "ARCHIVE_MD5", "0" * 32)
    root = tmp_path / "new"
    with pytest.raises(ValueError, match="not the official archive"):
        load("cifar100", root, download=True)
    monkeypatch.setattr(cifar, "URL", url + "x")
    with pytest.raises(OSError, match="could not be downloaded"):
        load("cifar100", root, download=True)
    for error in (http.client.IncompleteRead(b"half"), http.client.BadStatusLine("noise")):

        def broken(*_: Any, error: Exception = error, **__: Any) -> Any:
            raise error

        monkeypatch.setattr("urllib.request.urlopen", broken)
        with pytest.raises(OSError, match="could not be downloaded"):
            load("cifar100", root, download=True)
    assert list(root.iterdir()) == []


def test_the_official_sums_have_not_been_touched() -> None:
    assert cifar.ARCHIVE_MD5 == "eb9058c3a382ffc7106e4002c42a8d85"
    assert cifar.URL == "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"


def shared() -> Path | None:
    """Return the folder with the development data: $AMGC_SHARED, or `shared` next to the repository."""
    given = os.environ.get("AMGC_SHARED")
    folder = Path(given) if given else Path(__file__).resolve().parents[3] / "shared"
    return folder if (folder / "data" / "unpack.py").is_file() else None


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shared()
    if folder is None:
        pytest.skip("the real CIFAR-100 is not here: set AMGC_SHARED")
    root = tmp_path_factory.mktemp("real")
    subprocess.run([sys.executable, folder / "data" / "unpack.py", root], check=True, stdout=subprocess.DEVNULL)
    return root


def test_the_real_images_and_labels_equal_the_published_files(real: Path) -> None:
    dataset = load("cifar100", real)
    assert len(dataset.class_names) == 100 and dataset.class_names[:3] == ("apple", "aquarium_fish", "baby")
    for split, images in (("train", dataset.train), ("test", dataset.test)):
        with (real / "cifar-100-python" / split).open("rb") as file:
            published = pickle.load(file, encoding="latin1")  # our own copy, its sum checked by load above
        assert torch.bincount(images.labels).tolist() == [len(images) // 100] * 100
        assert images.labels.tolist() == published["fine_labels"]
        pixels = images.take(range(len(images)))
        assert np.array_equal(pixels.numpy().reshape(-1, 3072), published["data"])


def test_the_real_python_files_hold_the_records_of_the_official_binary_files(real: Path) -> None:
    for split in ("train", "test"):
        content = cifar.loads((real / "cifar-100-python" / split).read_bytes(), split)
        columns = [np.array(content[f"{kind}_labels"], np.uint8)[:, None] for kind in ("coarse", "fine")]
        records = np.hstack([*columns, content["data"].pixels().reshape(-1, 3072)])
        assert hashlib.sha256(records.tobytes()).hexdigest() == cifar.BINARY[f"{split}.bin"]
