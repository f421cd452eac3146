"""Methods, data sets and extractors by name, and from the user's own files."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from amgc.options import NoOptions, alternatives, changed, merged, option
from amgc.registry import Entry, Registry, absolute_name, split_name

FILE = """
from amgc.registry import Entry
from amgc.options import NoOptions
from test_registry import THINGS

def make(): return {value}

THINGS.add(Entry("{name}", make, NoOptions(), "One of my own."))
"""
THINGS: Registry[Entry[Any]] = Registry("thing", "amgc.options", "@thing(name)")


@pytest.fixture(autouse=True)
def things(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "test_registry", sys.modules[__name__])
    monkeypatch.setattr(THINGS, "entries", {})


def own_file(path: Path, name: str, value: int = 1) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(FILE.format(name=name, value=value))
    return str(path)


def test_a_file_is_executed_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    path = own_file(tmp_path / "mine.py", "mine")
    first = THINGS.find(path)
    assert first.make() == 1 and THINGS.find(path) is first
    own_file(tmp_path / "mine.py", "mine", value=2)
    second = THINGS.find(path)
    assert second.make() == 2 and THINGS.all() == {"mine": second}
    assert first.make.__module__ != second.make.__module__


def test_two_files_must_not_use_one_name(tmp_path: Path) -> None:
    THINGS.find(own_file(tmp_path / "a" / "mine.py", "mine"))
    with pytest.raises(ValueError, match=r"two things called 'mine': in .*a/mine\.py and .*b/mine\.py"):
        THINGS.find(own_file(tmp_path / "b" / "mine.py", "mine"))


def test_a_file_that_fails_is_executed_again(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            THINGS.find(str(tmp_path / "broken.py"))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    THINGS.find(own_file(tmp_path / "mine.py", "mine"))
    with pytest.raises(
        ValueError, match=r"there is no thing 'mien'; did you mean 'mine'\? There are mine, or a file ending in"
    ):
        THINGS.find("mien")
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(ValueError, match=r"empty\.py' registers no thing; decorate one with @thing\(name\)"):
        THINGS.find(str(tmp_path / "empty.py"))
    with pytest.raises(ValueError, match=r"there is no file 'absent\.py' with a thing"):
        THINGS.find("absent.py")


def test_the_path_of_a_file_is_made_absolute_and_other_names_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_name("my.py:photos") == f"{tmp_path.resolve()}/my.py:photos"
    assert absolute_name("digits") == "digits" and absolute_name("folder:my.py") == "folder:my.py"
    assert split_name("timm:hf-hub:owner/model") == ("timm", "hf-hub:owner/model")


def test_the_command_line_finds_everything_without_torch() -> None:
    code = (
        "import sys; from amgc.methods.registry import methods; from amgc.data import data_sets; "
        "from amgc.features import extractors; print(len(methods()) > 20, len(data_sets()) > 5, len(extractors()) > 4, "
        "'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True", "True", "False"], done.stderr


@dataclass(frozen=True)
class Sample:
    count: int = option(3, "how many", "a paper")
    share: float | None = option(None, "how much")
    place: str | bool = option(True, "where", path=True)
    sizes: tuple[int, ...] = option((), "how large")


def test_options_take_what_json_toml_and_python_write() -> None:
    made = merged(Sample(), {"share": 1, "place": Path("here"), "sizes": [1, 2]})
    assert made == Sample(share=1.0, place="here", sizes=(1, 2)) and type(made.share) is float
    assert changed(Sample(), made) == {"share": 1.0, "place": "here", "sizes": (1, 2)}
    assert merged(NoOptions(), {}) == NoOptions()


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"cuont": 1}, r"no setting 'cuont'; did you mean 'count'\?"),
        ({"count": 1.5}, "count must be int, not 1.5"),
        ({"count": True}, "count must be int, not True"),
        ({"share": "a"}, "share must be float or None, not 'a'"),
        ({"place": 3}, "place must be str or bool, not 3"),
    ],
)
def test_a_wrong_option_is_named(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        merged(Sample(), chosen)


def test_alternatives_suggest_the_closest_name() -> None:
    assert alternatives("xyz", ["a", "b"]) == "there are a, b."
