"""The public names of `amgc`."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import inspect
import subprocess
import sys

import pytest

import amgc


@pytest.mark.parametrize("name", amgc.__all__)
def test_every_public_name_exists_and_explains_itself(name: str) -> None:
    value = getattr(amgc, name)
    written = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__  # not inherited
    assert written and len(written.strip()) > 20
    assert not written.startswith(f"{name}("), "the docstring is the one that dataclass makes up"


@pytest.mark.parametrize("name", amgc.__all__)
def test_every_public_method_explains_itself(name: str) -> None:
    value = getattr(amgc, name)
    if not inspect.isclass(value):
        pytest.skip("a function")
    methods = [key for key, member in vars(value).items() if not key.startswith("_") and callable(getattr(value, key))]
    silent = [key for key in methods if not inspect.getdoc(getattr(value, key))]
    assert not silent


def test_all_is_sorted_and_complete() -> None:
    lazy = inspect.getclosurevars(amgc.__getattr__).nonlocals["places"]
    assert sorted(lazy) == sorted(amgc.__all__)
    assert amgc.__all__ == sorted(amgc.__all__)
    assert set(amgc.__all__) <= set(dir(amgc))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = amgc.nonsense


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, amgc; print('torch' in sys.modules, amgc.ClassStatistics.__name__)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False ClassStatistics\n"


def test_the_package_is_typed() -> None:
    assert importlib.resources.files("amgc").joinpath("py.typed").is_file()


def test_the_version_is_that_of_the_distribution() -> None:
    assert amgc.__version__ == importlib.metadata.version("amgc")
