"""Data sets that are folders of image files: Tiny-ImageNet, ImageNet-Subset, and your own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from amgc.data.registry import MEMORY, data_set, is_text
from amgc.data.sets.arrays import stratified
from amgc.lazy import Lazy
from amgc.options import option

if TYPE_CHECKING:
    import numpy as np

    from amgc.data.images import Augmentation, Dataset
else:
    np = Lazy("numpy")

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, which PyCIL and its Tiny-ImageNet forks use
LIST = "imagenet-subset.txt"
LIST_SHA256 = "ecf5d7fa5ccc89af1d9c8fb84a00d058b4919b47bb1bbcdee28e6f26417f74ab"  # of the numbers, separated by spaces


@dataclass(frozen=True)
class Reading:
    """How image files are read: the options of all data sets of this module."""

    cache: bool | str = option(True, "keep decoded images on disk: True, False or a folder", path=True)
    on_corrupt: Literal["error", "skip"] = option("error", "stop at an unreadable file, or leave unreadable files out")
    memory: int = option(MEMORY, "bytes of pixels that may be kept in memory")
    workers: int | None = option(None, "threads that decode; None: all cores, or one if the files are small")


@dataclass(frozen=True)
class FolderOptions(Reading):
    """Options of a folder of images."""

    size: int = option(64, "scale the shorter side to this many pixels and crop the centre")
    test_share: float = option(0.2, "share of each class set aside for testing, in a folder without test images")
    split_seed: int = option(0, "seed of that split")


@dataclass(frozen=True)
class SubsetOptions(Reading):
    """Options of ImageNet-Subset."""

    classes: str | None = option(None, "file with one wnid per line: the classes to use instead of the usual 100", path=True)
    size: int = option(256, "scale the shorter side to this many pixels and crop the centre; networks see 7/8 of it")


@data_set("folder", FolderOptions(), root="required")
def folder(root: Path, options: FolderOptions) -> Dataset:
    """folder:PATH, your own images: train/CLASS/* and test/CLASS/* (or val/), or CLASS/* to be split."""
    from amgc.data.image_files import list_folders

    advice = "folder:PATH takes a folder with one sub-folder per class, or with train/ and test/."
    _need(root, advice)
    if not root.is_dir():
        raise NotADirectoryError(f"{str(root)!r} is a file. {advice}")
    name = f"folder:{root.resolve().name}"
    parts = {path.name: path for path in list_folders(root)}
    test_folder = parts.get("test") or parts.get("val")
    if "train" in parts and test_folder is not None:
        names, train = _classes(parts["train"])
        test_names, test = _classes(test_folder)
        _same(names, test_names, parts["train"], test_folder)
        return _assemble(name, root, names, train, test, options.size, options)
    if "train" in parts:
        raise FileNotFoundError(
            f"{str(root)!r} has train/ but no test/ (or val/). Add it, or name the folder with the class folders, "
            f"{str(parts['train'])!r}, to have {options.test_share:.0%} of each class set aside."
        )
    names, everything = _classes(root)
    labels = np.array([label for _, label in everything], dtype=np.int64)
    chosen = stratified(labels, options.test_share, options.split_seed, names)
    return _assemble(name, root, names, everything, [], options.size, options, chosen)


@data_set("tiny-imagenet", Reading())
def tiny_imagenet(root: Path, options: Reading) -> Dataset:
    """Tiny-ImageNet: 110,000 photographs of 64 × 64 pixels, 200 classes; the official archive, as unpacked.

    root : the folder with `tiny-imagenet-200`, or that folder itself.

    The official validation images are the test set, as in the literature: the test labels are not public. Classes are
    numbered by their sorted wnids. Tests use all 64 × 64 pixels; some published numbers use CenterCrop(56).
    """
    base = root / "tiny-imagenet-200" if (root / "tiny-imagenet-200").is_dir() else root
    advice = f"Tiny-ImageNet is expected in {str(root.resolve())!r}; unpack the official tiny-imagenet-200.zip there."
    for name in ("wnids.txt", "words.txt", "train", "val/images", "val/val_annotations.txt"):
        _need(base / name, advice)
    wnids = sorted((base / "wnids.txt").read_text().split())
    label = {wnid: place for place, wnid in enumerate(wnids)}
    train = []
    for wnid in wnids:
        train += [(path, label[wnid]) for path in _images(base / "train" / wnid / "images", advice)]
    test = []
    for number, line in enumerate((base / "val" / "val_annotations.txt").read_text().splitlines(), 1):
        name, wnid = [*line.split("\t"), "", ""][:2]
        if not line.strip():
            continue
        if wnid not in label:
            raise ValueError(f"{str(base / 'val/val_annotations.txt')!r}, line {number}: {wnid!r} is not in wnids.txt.")
        path = base / "val" / "images" / name
        _need(path, f"val_annotations.txt names it in line {number}. {advice}")
        test.append((path, label[wnid]))
    names = readable(wnids, _words(base / "words.txt"))
    augmentation: Augmentation = {"padding": 4, "flip": True}  # PyCIL has none; as in the learners of ADC and DPCR
    return _assemble("tiny-imagenet", base, names, train, test, 64, options, augmentation=augmentation)


@data_set("imagenet-subset", SubsetOptions())
def imagenet_subset(root: Path, options: SubsetOptions) -> Dataset:
    """ImageNet-Subset: 100 classes of ImageNet, from a folder with train/WNID/* and val/WNID/*.

    Of 1,000 classes, sorted by wnid, those at the positions listed in `imagenet-subset.txt` are used: the first 100
    after numpy's shuffle with seed 1993, as in PyCIL and its predecessors. Other lists are in use, and results do not
    compare across lists. A folder of 100 classes is used unchanged. Images are stored at 256 pixels, from which `Augment`
    crops 224. For testing this equals PyCIL's Resize(256), CenterCrop(224). In training the random resized crop is taken
    from the stored square; PyCIL takes it from the whole photograph.
    """
    from amgc.data.image_files import list_folders

    advice = "An ImageNet folder has train/WNID/* and val/WNID/*, one folder per class in both."
    places = (root, root / "imagenet", root / "imagenet100")
    base = next((base for base in places if (base / "train").is_dir()), None)
    if base is None:
        looked = ", ".join(repr(str(place.resolve())) for place in places)
        raise FileNotFoundError(
            f"ImageNet is in none of {looked}. {advice} Get ILSVRC 2012 from image-net.org, which asks for an account, "
            "unpack it, and name its folder with root= (amgc run: --data.root FOLDER) or $AMGC_DATA."
        )
    for name in ("train", "val"):
        _need(base / name, advice)
    present = [path.name for path in list_folders(base / "train")]
    if options.classes is not None:
        _need(Path(options.classes), "classes= names a file with one wnid per line.")
        lines = Path(options.classes).read_text().splitlines()
        wnids = sorted({line.split()[0] for line in lines if line.strip() and not line.startswith("#")})
    elif len(present) == 1000:
        wnids = sorted(present[place] for place in subset_places())
    elif len(present) == 100:
        wnids = present
    else:
        raise ValueError(
            f"{str(base / 'train')!r} has {len(present)} class folders; expected 1,000, of which 100 are chosen, or those 100. "
            f"Name others with classes=FILE (amgc run: --data.classes FILE), or load them with folder:{base}."
        )
    splits = []
    for split in ("train", "val"):
        found = []
        for label, wnid in enumerate(wnids):
            found += [(path, label) for path in _images(base / split / wnid, advice)]
        splits.append(found)
    names = readable(wnids, {**_words(base / "words.txt"), **_words(base / "LOC_synset_mapping.txt")})
    size = options.size
    augmentation: Augmentation = {"size": size * 7 // 8, "flip": True, "resized": True}  # PyCIL's 224 of 256 pixels
    return _assemble("imagenet-subset", base, names, splits[0], splits[1], size, options, augmentation=augmentation)


def subset_places() -> list[int]:
    """Return the positions of the 100 classes of ImageNet-Subset among the 1,000, from a file whose checksum is verified."""
    lines = resources.files("amgc.data.sets").joinpath(LIST).read_bytes().decode("ascii", "replace").splitlines()
    numbers = [line.strip() for line in lines if not line.startswith("#")]
    if hashlib.sha256(" ".join(numbers).encode()).hexdigest() != LIST_SHA256:
        raise ValueError(f"{LIST} of the amgc package has been changed; install the package again.")
    return [int(number) for number in numbers]


def readable(wnids: Sequence[str], words: dict[str, str]) -> tuple[str, ...]:
    """Return the first word for each wnid; where two wnids share it (crane, maillot), the wnid is appended.

    >>> readable(["n01", "n02", "n03"], {"n01": "crane", "n02": "crane", "n03": "goldfish, Carassius auratus"})
    ('crane (n01)', 'crane (n02)', 'goldfish')
    """
    short = [words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    return tuple(name if short.count(name) == 1 else f"{name} ({wnid})" for name, wnid in zip(short, wnids, strict=True))


def _words(path: Path) -> dict[str, str]:
    """Return the names by wnid from `words.txt` (tab-separated) or `LOC_synset_mapping.txt` (space-separated)."""
    if not path.is_file():
        return {}
    pairs = (line.split(None, 1) for line in path.read_text(encoding="utf-8").splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def _need(path: Path, advice: str) -> None:
    if not path.exists():
        raise FileNotFoundError(f"{str(path.resolve())!r} is missing. {advice}")


def _images(folder: Path, advice: str) -> list[Path]:
    from amgc.data.image_files import list_images

    _need(folder, advice)
    found = list_images(folder)
    if not found:
        raise ValueError(f"the class folder {str(folder)!r} has no images; add some or remove it.")
    return found


def _classes(root: Path) -> tuple[tuple[str, ...], list[tuple[Path, int]]]:
    """Return class names and pairs (file, label) of a folder with one sub-folder per class."""
    from amgc.data.image_files import list_folders

    folders = list_folders(root)
    if not folders:
        raise FileNotFoundError(f"{str(root)!r} has no class folders; put the images of each class into a sub-folder.")
    for part in folders:
        if not is_text(part.name):
            raise ValueError(f"the name of the class folder {str(part)!r} is not UTF-8, so no file can hold it; rename it.")
    advice = "Each class needs its own folder."
    found = [(path, label) for label, part in enumerate(folders) for path in _images(part, advice)]
    return tuple(part.name for part in folders), found


def _same(names: Sequence[str], test_names: Sequence[str], train_folder: Path, test_folder: Path) -> None:
    for name in sorted(set(names) ^ set(test_names)):
        has, lacks = (train_folder, test_folder) if name in names else (test_folder, train_folder)
        raise ValueError(f"class {name!r} is in {str(has)!r} and not in {str(lacks)!r}; both need the same class folders.")


def _assemble(
    name: str,
    root: Path,
    names: tuple[str, ...],
    train: Sequence[tuple[Path, int]],
    test: Sequence[tuple[Path, int]],
    size: int,
    options: Reading,
    is_test: Any = None,
    augmentation: Augmentation | None = None,
) -> Dataset:
    """Read all files. The test set is `test`, or those rows of `train` for which the mask `is_test` (n,) is true."""
    import torch

    from amgc.data.cache import read_files
    from amgc.data.image_files import Files
    from amgc.data.images import Dataset, Images, size_in_bytes

    entries = [*train, *test]
    mask = np.arange(len(entries)) >= len(train) if is_test is None else is_test
    files = Files([str(path) for path, _ in entries], size, options.workers)
    pixels, bad, errors = read_files(root, files, cache=options.cache, on_corrupt=options.on_corrupt, memory=options.memory)
    readable = np.ones(len(entries), dtype=bool)
    readable[bad] = False
    images = Images(torch.tensor([label for _, label in entries]), pixels)
    budget = options.memory if size_in_bytes(files) <= options.memory else 0
    splits = [images.subset(np.flatnonzero(readable & part), budget=budget) for part in (~mask, mask)]
    skipped = tuple(error.path for error in errors)
    return Dataset(splits[0], splits[1], names, name, MEAN, STD, skipped, options.memory, augmentation)
