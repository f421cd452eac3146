"""Data sets by name: `load("digits")`, `load("folder:my/photos", size=96)`, `load("my_data.py")`. Does not import torch.

A data set is a function `(root, options) -> Dataset` with a decorator; docs/add-a-data-set.md shows one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from amgc import registry
from amgc.options import NoOptions

if TYPE_CHECKING:
    from amgc.data.images import Dataset

MEMORY = 4 << 30  # bytes of pixels kept in memory: CIFAR-100 needs 0.2 GB, Tiny-ImageNet 1.4, ImageNet-Subset 26

Root: TypeAlias = Literal["optional", "required", "unused"]
Function = TypeVar("Function", bound="Callable[[Any, Any], Dataset]")


@dataclass(frozen=True)
class Entry(registry.Entry[Any]):
    """A registered data set. `root` and `shards` are those of `data_set`."""

    root: Root = "optional"
    shards: Callable[[str, Any], Any] | None = None


DATA_SETS: registry.Registry[Entry] = registry.Registry("data set", "amgc.data.sets", "@data_set(name, options)")


def data_set(
    name: str, options: Any = None, *, root: Root = "optional", shards: Callable[[str, Any], Any] | None = None
) -> Callable[[Function], Function]:
    """Register a function `(root, options) -> Dataset` under a name.

    The first line of its docstring is what `amgc list data` shows.

    options : a frozen dataclass of options with their defaults; without it there are none.
    root : "optional" if the data are in `$AMGC_DATA` or the folder `data` unless `NAME:PATH` or `root=` says otherwise,
        "required" if a path has to be given, "unused" if no files are read.
    shards : a function `(path, Columns) -> list of Shard`, if the data set can be read in shards (`amgc.data.shards`).
    """

    def register(load: Function) -> Function:
        DATA_SETS.add(Entry(name, load, NoOptions() if options is None else options, registry.summary_of(load), root, shards))
        return load

    return register


data_sets = DATA_SETS.all


def find(name: str) -> Entry:
    """Return the data set `NAME` or `NAME:PATH`. NAME may be a file that ends in `.py`."""
    return DATA_SETS.find(registry.split_name(name)[0])


def load(name: str, root: str | os.PathLike[str] | None = None, **chosen: Any) -> Dataset:
    """Return the data set `name`.

    name : one of `data_sets()`, or a file that ends in `.py`; `NAME:PATH` also says where the data are.
    root : folder with the data; default: `$AMGC_DATA`, else the folder `data`. Nothing is downloaded unless `download=True`.

    >>> load("digits")
    Dataset('digits', 10 classes, 1438 training and 359 test samples of shape (1, 8, 8))
    """
    kind, path = registry.split_name(name)
    entry = find(kind)
    if path and root is not None:
        raise ValueError(f"{name!r} names its path already; leave out root={os.fspath(root)!r}.")
    options = entry.with_options(chosen)
    if entry.root == "required" and not (path or root):
        raise ValueError(f"{kind!r} needs a path: write {kind}:PATH.")
    place = path or root or os.environ.get("AMGC_DATA") or "data"
    # A source may be an address, in which `Path` would drop a slash.
    dataset: Dataset = entry.make(os.fspath(place) if entry.shards else Path(place).expanduser(), options)
    return dataset


def survey(name: str, root: str | os.PathLike[str] | None = None, **chosen: Any) -> Dataset:
    """Return the data set as `load` does, but without reading image files. Nothing is written."""
    known = asdict(find(name).options)
    if "cache" not in known:
        return load(name, root, **chosen)
    unread = load(name, root, **(chosen | {"cache": False, "memory": 0, "on_corrupt": "error"}))
    return replace(unread, memory=chosen.get("memory", known["memory"]))


def is_text(name: str) -> bool:
    """Return whether a name can be written into a text file. Names in a file system need not be UTF-8."""
    return name.encode(errors="ignore").decode() == name
