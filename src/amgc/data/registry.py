"""Data sets by name: `load("digits")`, `load("folder:my/photos", size=96)`. A new source is one decorated function."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from amgc.data.images import Dataset

MEMORY = 4 << 30  # bytes of pixels kept in memory: CIFAR-100 needs 0.2 GB, Tiny-ImageNet 1.4, ImageNet-Subset 26

Builder: TypeAlias = "Callable[..., Dataset]"
_sources: dict[str, Builder] = {}
_MODULES = ("arrays", "cifar", "folders")  # the sources of this package; imported when a name is first asked for


def source(name: str) -> Callable[[Builder], Builder]:
    """Register a function `(root, **options) -> Dataset` under a name.

    Its first docstring line is what `amgc list data` shows; its keyword arguments are the options of `load`. With a
    colon in the call (`load("folder:PATH")`), what follows the colon is the root.
    """

    def register(build: Builder) -> Builder:
        if name in _sources and _sources[name] is not build:
            raise ValueError(f"there are two sources called {name!r}: {_sources[name].__module__}, {build.__module__}.")
        _sources[name] = build
        return build

    return register


def sources() -> dict[str, str]:
    """Name and one-line description of every source. Imports no torch."""
    for module in _MODULES:
        importlib.import_module(f"amgc.data.{module}")
    return {name: (inspect.getdoc(build) or "").split("\n")[0] for name, build in sorted(_sources.items())}


def options(name: str) -> dict[str, Any]:
    """The options of a source and their defaults."""
    parameters = list(inspect.signature(_find(name)).parameters.values())[1:]
    return {parameter.name: parameter.default for parameter in parameters}


def load(name: str, root: str | os.PathLike[str] | None = None, **chosen: Any) -> Dataset:
    """The data set `name`.

    name : one of `sources()`; `folder:PATH` and `npz:PATH` carry their path.
    root : where the data lie; default $AMGC_DATA, else the folder `data`. Nothing is downloaded unless `download=True`.

    >>> load("digits")
    Dataset('digits', 10 classes, 1438 training and 359 test samples of shape (1, 8, 8))
    """
    kind, colon, path = name.partition(":")
    build = _find(kind)
    if colon and root is not None:
        raise ValueError(f"{name!r} names its path already; leave root={os.fspath(root)!r} out.")
    known = options(kind)
    for option in chosen:
        if option not in known:
            what = f"its options are {', '.join(known)}" if known else "it has none"
            raise TypeError(f"{kind!r} has no option {option!r}; {what}.")
    place = path if colon else os.fspath(root) if root is not None else os.environ.get("AMGC_DATA") or "data"
    if kind in ("folder", "npz") and not (path or root):
        raise ValueError(f"{kind!r} needs a path: write {kind}:PATH.")
    return build(Path(place).expanduser(), **chosen)


def survey(name: str, root: str | os.PathLike[str] | None = None, **chosen: Any) -> Dataset:
    """The data set as `load` gives it, but with image files left unread: classes, labels and sizes. Nothing is written."""
    known = options(name.partition(":")[0])
    if "cache" not in known:
        return load(name, root, **chosen)
    unread = load(name, root, **(chosen | {"cache": False, "memory": 0, "on_corrupt": "error"}))
    return replace(unread, memory=chosen.get("memory", known["memory"]))


def is_text(name: str) -> bool:
    """Whether a name can be written into a file of text: file systems also have names that are not UTF-8."""
    return name.encode(errors="ignore").decode() == name


def _find(kind: str) -> Builder:
    known = sources()
    if kind not in known:
        raise ValueError(f"there is no data set {kind!r}; there are {', '.join(known)}.")
    return _sources[kind]
