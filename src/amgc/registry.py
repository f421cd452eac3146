"""Find methods, data sets and feature extractors by name, or in a user's own Python file. Does not import torch.

Each kind has a registry. Modules of the package register themselves with a decorator; they are imported when a name is first
asked for. `--method`, `--data` and `--features` also take the path of a `.py` file that uses the same decorator.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from amgc.options import alternatives, merged

Options = TypeVar("Options")


@dataclass(frozen=True)
class Entry(Generic[Options]):
    """A registered method, data set or extractor.

    make : the decorated class or function. options : a frozen dataclass with the defaults of this name.
    """

    name: str
    make: Callable[..., Any]
    options: Options
    summary: str

    def with_options(self, chosen: dict[str, Any]) -> Options:
        """Return the options with the `chosen` values. Raises TypeError for an option that does not exist."""
        known = [f.name for f in fields(self.options)]  # type: ignore[arg-type]  # always a dataclass
        for name in chosen:
            if name not in known:
                others = alternatives(name, known, "its options are") if known else "it has none."
                raise TypeError(f"{self.name} has no option {name!r}; {others}")
        return merged(self.options, chosen)


E = TypeVar("E", bound=Entry[Any])


class Registry(Generic[E]):
    """Entries of one kind by name.

    kind : what the entries are, for messages. home : the module that registers the package's own entries, or a package
    of which every module does. decorator : how to register one, for messages.
    """

    def __init__(self, kind: str, home: str, decorator: str) -> None:
        self.kind, self.home, self.decorator = kind, home, decorator
        self.entries: dict[str, E] = {}
        self._by_module: dict[str, E] = {}  # the first entry of each module
        self._imported = False

    def add(self, entry: E) -> None:
        """Register an entry. Raises ValueError if another module has registered the name."""
        known = self.entries.get(entry.name)
        if known is not None and _origin(known) != _origin(entry):
            places = " and ".join(_origin(each)[0] for each in (known, entry))
            raise ValueError(f"there are two {self.kind}s called {entry.name!r}: in {places}. Rename one of them.")
        self.entries[entry.name] = entry
        self._by_module.setdefault(entry.make.__module__, entry)

    def all(self) -> dict[str, E]:
        """Return the entries of the package and those registered elsewhere so far, sorted by name."""
        if not self._imported:
            home = importlib.import_module(self.home)
            for module in pkgutil.iter_modules(getattr(home, "__path__", ())):
                importlib.import_module(f"{self.home}.{module.name}")
            self._imported = True
        return dict(sorted(self.entries.items()))

    def find(self, name: str) -> E:
        """Return the entry called `name`, or the first one that the file `name` registers if it ends in `.py`."""
        known = self.all()
        if is_file(name):
            return self._in_file(Path(name))
        if name not in known:
            others = alternatives(name, known, after=", or a file ending in .py.")
            raise ValueError(f"there is no {self.kind} {name!r}; {others}")
        return known[name]

    def _in_file(self, path: Path) -> E:
        module = import_file(path, self.kind)
        if module not in self._by_module:
            raise ValueError(f"{str(path)!r} registers no {self.kind}; decorate one with {self.decorator}.")
        return self._by_module[module]


def import_file(path: Path, kind: str = "module") -> str:
    """Execute a user's Python file and return the name of its module in `sys.modules`.

    The name contains a hash of the content: an unchanged file is executed once, and a changed file again. Cached features
    depend on the name, so they are never reused after the code of an extractor has changed.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r} with a {kind}.")
    path = path.resolve()
    name = _module_name(path)
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look up their types there
        try:
            # Not by the loader: it would use old bytecode of a file that was changed within the same second.
            exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
        except BaseException:
            del sys.modules[name]
            raise
    return name


def _module_name(path: Path) -> str:
    digest = hashlib.sha256(bytes(path) + b"\0" + path.read_bytes()).hexdigest()
    return f"amgc_user_{path.stem}_{digest}"


def check_trusted(name: str) -> None:
    """Raise ValueError if a name that was read from a file would execute a Python file that the user has not named.

    A folder of runs or a preset may come from anyone, so it chooses among registered names. A user's file must have been
    executed in this process before, with the same path and content, because the command line or Python code named it.
    """
    path = split_name(name)[0]
    if not is_file(path):
        return
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise ValueError(f"it needs the Python file {path!r}, which is not there.")
    if _module_name(file) not in sys.modules:
        raise ValueError(
            f"it needs the Python file {path!r}, which was not executed, because what names it may come from anyone. Read that "
            f"file; if you trust it, name it: --trust {path}"
        )


def is_file(name: str) -> bool:
    """Return whether a name is the path of a user's Python file."""
    return name.endswith(".py")


def split_name(name: str) -> tuple[str, str]:
    """Split `NAME:REST` into its two parts; without a colon the second is empty. NAME may be a path with a drive letter.

    >>> split_name("folder:my/photos"), split_name("digits"), split_name("C:/my_data.py:D:/photos")
    (('folder', 'my/photos'), ('digits', ''), ('C:/my_data.py', 'D:/photos'))
    """
    first, _, rest = name.partition(":")
    if len(first) == 1 and rest:
        second, _, rest = rest.partition(":")
        first = f"{first}:{second}"
    return first, rest


def absolute_name(name: str) -> str:
    """Return the name with the path of a user's file made absolute, so that it is found from any working directory."""
    first, rest = split_name(name)
    if not is_file(first):
        return name
    return f"{Path(first).expanduser().resolve()}{f':{rest}' if rest else ''}"


def summary_of(thing: Any) -> str:
    """Return the first line of a docstring."""
    return (thing.__doc__ or "").strip().split("\n")[0]


def _origin(entry: Entry[Any]) -> tuple[str, str]:
    """Return the file or module that an entry comes from, and the name of the class or function there."""
    module = entry.make.__module__
    place = str(getattr(sys.modules.get(module), "__file__", "")) if module.startswith("amgc_user_") else module
    return place, getattr(entry.make, "__qualname__", "")
