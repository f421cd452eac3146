"""CIFAR-100 from its official files, python or binary, with their checksums; downloaded only on request.

The python files are pickles. They are read by an unpickler that resolves three names, all to classes of this module. A
pickle can then describe lists, numbers, strings and one array of bytes, and nothing else. Neither foreign code nor
numpy's own unpickling runs.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from amgc.data.registry import data_set
from amgc.lazy import Lazy
from amgc.options import option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from amgc.data.images import Dataset
else:
    np = Lazy("numpy")

URL = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
ARCHIVE_MD5 = "eb9058c3a382ffc7106e4002c42a8d85"
PYTHON = {  # MD5, as published with the files
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
BINARY = {  # SHA-256; the records are those of the python files, in the same order
    "train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
    "test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
}
NAMES = "fine_label_names.txt"


@dataclass(frozen=True)
class CifarOptions:
    """Options of CIFAR-100."""

    download: bool = option(False, "download the python files (169 MB) if they are missing")
    verify: bool = option(True, "compare the files with their published checksums")


@data_set("cifar100", CifarOptions())
def cifar100(root: Path, options: CifarOptions) -> Dataset:
    """CIFAR-100: 60,000 photographs of 32 × 32 pixels, 100 classes; the official python or binary files.

    root : the folder with `cifar-100-python` or `cifar-100-binary`, or that folder itself.
    """
    from amgc.data.images import Dataset, Images

    folder = _find(root)
    if folder is None and options.download:
        folder = download(root)
    if folder is None:
        raise FileNotFoundError(
            f"CIFAR-100 is not in {str(root.resolve())!r}: neither cifar-100-python with {', '.join(PYTHON)} nor "
            f"cifar-100-binary with {', '.join((*BINARY, NAMES))}.{_incomplete(root)} Unpack {URL} there, "
            "or load it with download=True (amgc run: --data.download)."
        )
    read = read_python if (folder / "meta").is_file() else read_binary
    (train_x, train_y), (test_x, test_y), names = read(folder, options.verify)
    return Dataset(
        Images.of(train_x, train_y),
        Images.of(test_x, test_y),
        names,
        "cifar100",
        mean=(0.5071, 0.4867, 0.4408),  # PyCIL, utils/data.py
        std=(0.2675, 0.2565, 0.2761),
        augmentation={"padding": 4, "flip": True, "brightness": 63 / 255},  # the same file
    )


Split: TypeAlias = "tuple[NDArray[np.uint8], NDArray[np.int64]]"


def read_python(folder: Path, verify: bool = True) -> tuple[Split, Split, tuple[str, ...]]:
    """Return images (n, 3, 32, 32), labels and class names from `train`, `test` and `meta`."""
    contents = {name: loads(_read(folder / name, "md5", PYTHON[name] if verify else None), name) for name in PYTHON}
    try:
        names = tuple(str(name) for name in contents["meta"]["fine_label_names"])
        train, test = (
            (contents[split]["data"].pixels(), np.asarray(contents[split]["fine_labels"], dtype=np.int64))
            for split in ("train", "test")
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the files in {str(folder)!r} are not CIFAR-100's: {error!r} is missing or of another kind."
        ) from error
    return train, test, names


def read_binary(folder: Path, verify: bool = True) -> tuple[Split, Split, tuple[str, ...]]:
    """Return the same from `train.bin` and `test.bin`: records of coarse label, fine label and 3,072 pixels."""
    splits = []
    for name, digest in BINARY.items():
        content = _read(folder / name, "sha256", digest if verify else None)
        if not content or len(content) % 3074:
            raise ValueError(f"{str(folder / name)!r} has {len(content)} bytes, no multiple of a record's 3,074.")
        records = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3074)
        splits.append((records[:, 2:].reshape(-1, 3, 32, 32).copy(), records[:, 1].astype(np.int64)))
    names = tuple((folder / NAMES).read_text().split())
    return splits[0], splits[1], names


class _Dtype:
    """Replace numpy.dtype; only bytes are accepted."""

    def __init__(self, kind: str, *_: Any) -> None:
        if kind not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"an array of {kind!r} where only bytes (u1) are expected")

    def __setstate__(self, state: Any) -> None:
        pass  # byte order and alignment: a byte has none


class _Array:
    """Replace numpy.ndarray: keep the raw content until it is known to be an array of images."""

    def __init__(self, kind: Any, *_: Any) -> None:
        if kind is not _Array:
            raise pickle.UnpicklingError(f"{kind!r} where an array is expected")
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def pixels(self) -> NDArray[np.uint8]:
        """Return the images (n, 3, 32, 32)."""
        _, shape, dtype, fortran, content = self.state
        content = content.encode("latin1") if isinstance(content, str) else content
        count, width = shape
        if not isinstance(dtype, _Dtype) or fortran or width != 3072 or len(content) != 3072 * count:
            raise ValueError(f"an array of shape {shape} with {len(content)} bytes does not contain CIFAR images.")
        return np.frombuffer(bytearray(content), dtype=np.uint8).reshape(-1, 3, 32, 32)


class _Unpickler(pickle.Unpickler):
    KNOWN: ClassVar = {
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which CIFAR files do not need")
        return self.KNOWN[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside of the file")


def loads(content: bytes, name: str) -> dict[str, Any]:
    """Return the dictionary in a CIFAR pickle. Anything other than lists, text and bytes is refused."""
    try:
        result = _Unpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f"the CIFAR file {name!r} is refused: {error}.") from error
    if not isinstance(result, dict):
        raise ValueError(f"the CIFAR file {name!r} is refused: it holds a {type(result).__name__}, not a dictionary.")
    return result


def _read(path: Path, algorithm: str, digest: str | None) -> bytes:
    content = path.read_bytes()
    if digest is not None:
        found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
        if found != digest:
            raise ValueError(
                f"{str(path)!r} is not the official file: its {algorithm.upper()} is {found}, not {digest}. Fetch it "
                f"again from {URL}, or load it as it is with verify=False (amgc run: --data.no-verify)."
            )
    return content


def _find(root: Path) -> Path | None:
    for folder in (root / "cifar-100-python", root):
        if all((folder / name).is_file() for name in PYTHON):
            return folder
    for folder in (root / "cifar-100-binary", root):
        if all((folder / name).is_file() for name in (*BINARY, NAMES)):
            return folder
    return None


def _incomplete(root: Path) -> str:
    """Return a sentence about the missing files if some of them are present."""
    python, binary = [*PYTHON], [*BINARY, NAMES]
    inside = [(root / "cifar-100-python", python), (root / "cifar-100-binary", binary)]
    for folder, names in (*inside, (root, python), (root, binary)):
        missing = [name for name in names if not (folder / name).is_file()]
        if folder.is_dir() and missing and (folder != root or len(missing) < len(names)):
            return f" {str(folder)!r} lacks {', '.join(missing)}."
    return ""


def download(root: Path) -> Path:
    """Download the python files into `root`. They appear there complete and verified, or not at all."""
    import http.client  # here: seldom needed, and --help would wait for them
    import urllib.request

    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".cifar-100-") as temporary:
        archive = Path(temporary, "archive")
        digest = hashlib.md5(usedforsecurity=False)
        try:
            with urllib.request.urlopen(URL, timeout=60) as answer, archive.open("wb") as file:
                while block := answer.read(1 << 20):
                    digest.update(block)
                    file.write(block)
        except (OSError, http.client.HTTPException) as error:  # the latter: a response that breaks off or is not HTTP
            raise OSError(f"CIFAR-100 could not be downloaded from {URL}: {error}.") from error
        if digest.hexdigest() != ARCHIVE_MD5:
            raise ValueError(f"what {URL} sent is not the official archive: MD5 {digest.hexdigest()}, not {ARCHIVE_MD5}.")
        unpacked = Path(temporary, "unpacked")
        unpacked.mkdir()
        with tarfile.open(archive) as tar:
            for name, want in PYTHON.items():  # by name: other members are never written
                member = tar.extractfile(f"cifar-100-python/{name}")
                assert member is not None
                (unpacked / name).write_bytes(member.read())
                _read(unpacked / name, "md5", want)
        target = root / "cifar-100-python"
        target.mkdir(exist_ok=True)
        for name in PYTHON:
            os.replace(unpacked / name, target / name)
    return target
