"""Files are copied, moved and linked without being lost or overwritten, whenever the process is killed."""

from __future__ import annotations

import builtins
import errno
import json
import os
import pathlib
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from failing import failing

from amgc.cli import moving
from amgc.cli.moving import JOURNAL, Mover, undo
from amgc.files import FileFormatError

HOWS = ("copy", "move", "link")

# All through which files and the journal reach the disk.
STEPS: list[tuple[Any, str]] = [
    (os, "replace"),
    (os, "unlink"),
    (os, "fsync"),
    (os, "open"),
    (os, "close"),
    (os, "mkdir"),
    (os, "rmdir"),
    (os, "symlink"),
    (os, "truncate"),
    (shutil, "copyfileobj"),
    (shutil, "copystat"),
    (tempfile, "mkstemp"),
    (pathlib.Path, "open"),
    (builtins, "open"),
]


@contextmanager
def interrupted(patch: pytest.MonkeyPatch, number: int, fail: Callable[[], None], apart: bool) -> Iterator[list[str]]:
    """Let the `number`-th of these calls fail. `apart`: as if the folders were on different file systems."""
    replace = os.replace

    def between(one: Any, two: Any) -> None:
        if apart and Path(one).parent != Path(two).parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        replace(one, two)

    with patch.context() as inner:
        inner.setattr(os, "replace", between)
        with failing(inner, STEPS, number, fail) as called:
            yield called


def in_child(work: Callable[[], None]) -> int:
    """Run in a forked copy of this process and return its wait status."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


PHOTOS = {"a.jpg": b"first", "sub/a.jpg": b"second, of the same name", "b.jpg": b"third" * 50_000}


def photos(folder: Path) -> Path:
    for name, content in PHOTOS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def put_all(source: Path, into: Path, how: Any) -> None:
    with Mover(into, how) as mover:
        for name in PHOTOS:
            with suppress(FileNotFoundError):  # moved before it was killed
                mover.put(source / name, "cat")


def contents(folder: Path) -> list[bytes]:
    """Return the contents of all files that are visible, except the journal and empty claims of names, sorted."""
    found = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".") and path.name != JOURNAL]
    return sorted(content for path in found if (content := path.read_bytes()))


WANTED = sorted(PHOTOS.values())
SLOW_WAYS = [("move", True), ("copy", False), ("link", False)]  # a full disk and Ctrl-C are tested between file systems, too
WAYS = [("move", False), *(pytest.param(*way, marks=pytest.mark.slow) for way in SLOW_WAYS)]


@pytest.mark.parametrize(("how", "apart"), WAYS)
def test_killed_at_any_step_no_photo_is_lost_and_sorting_and_undoing_go_on(tmp_path, monkeypatch, how, apart):
    for number in range(1, 500):
        source, into = photos(tmp_path / f"{number}/photos"), tmp_path / f"{number}/sorted"

        def work(source: Path = source, into: Path = into, number: int = number) -> None:
            with interrupted(monkeypatch, number, killed, apart):
                put_all(source, into, how)

        status = in_child(work)
        here, there = contents(source), contents(into) if into.exists() else []
        if how == "move" and not apart:
            assert sorted(here + there) == WANTED, "every photo is at exactly one of the two places"
        elif how == "move":
            assert set(here + there) == set(WANTED) and len(here + there) <= len(WANTED) + 1
        else:
            assert here == WANTED
        if number % 2:  # go on, then undo all; or undo at once
            put_all(source, into, how)
            assert contents(into) == WANTED and contents(source) == ([] if how == "move" else WANTED)
            assert not list(into.rglob(".amgc-*")) and all(path.stat().st_size for path in (into / "cat").iterdir())
        while (into / JOURNAL).exists():
            assert undo(into).kept == []
        assert contents(source) == WANTED and {path.name for path in source.rglob("*")} == {"a.jpg", "b.jpg", "sub"}
        assert not into.exists() or {path.name for path in into.iterdir()} <= {".lock"}
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    assert number > 15


@pytest.mark.slow  # the test before undoes what a killed sort has done
@pytest.mark.parametrize(("how", "apart"), WAYS)
def test_an_undo_that_is_killed_at_any_step_can_be_repeated(tmp_path, monkeypatch, how, apart):
    for number in range(1, 500):
        source, into = photos(tmp_path / f"{number}/photos"), tmp_path / f"{number}/sorted"
        put_all(source, into, how)

        def work(into: Path = into, number: int = number) -> None:
            with interrupted(monkeypatch, number, killed, apart):
                undo(into)

        status = in_child(work)
        found = contents(source) + (contents(into) if into.exists() else [])
        assert set(found) == set(WANTED)
        if how == "move" and not apart:
            assert sorted(found) == WANTED
        if (into / JOURNAL).exists():
            assert undo(into).kept == []
        assert contents(source) == WANTED and {path.name for path in source.rglob("*")} == {"a.jpg", "b.jpg", "sub"}
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    assert number > 8 and not into.exists()


@pytest.mark.parametrize("apart", [False, True])
def test_a_full_disk_or_ctrl_c_at_any_step_leaves_every_photo_at_one_place(tmp_path, monkeypatch, apart):
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def stop() -> None:
        raise KeyboardInterrupt

    for number in range(1, 500):
        source, into = photos(tmp_path / f"{number}/photos"), tmp_path / f"{number}/sorted"
        with interrupted(monkeypatch, number, stop if number % 2 else full, apart) as called:
            with suppress(OSError, KeyboardInterrupt):
                put_all(source, into, "move")
            complete = len(called) < number
        found = contents(source) + (contents(into) if into.exists() else [])
        assert set(found) == set(WANTED) and (apart or sorted(found) == WANTED)
        put_all(source, into, "move")
        assert contents(into) == WANTED and contents(source) == []
        if complete:
            break
    assert number > 15


def test_photos_of_the_same_name_get_numbers_and_nothing_is_overwritten(tmp_path):
    source, into = photos(tmp_path / "photos"), tmp_path / "sorted"
    (into / "cat").mkdir(parents=True)
    (into / "cat/a.jpg").write_bytes(b"was there")
    (into / "cat/b.jpg").symlink_to("nowhere")  # a name that is taken, though nothing can be read there
    put_all(source, into, "move")
    assert sorted(path.name for path in (into / "cat").iterdir()) == ["a-2.jpg", "a-3.jpg", "a.jpg", "b-2.jpg", "b.jpg"]
    assert (into / "cat/a.jpg").read_bytes() == b"was there" and (into / "cat/a-2.jpg").read_bytes() == b"first"
    assert undo(into).kept == [] and contents(source) == WANTED
    assert (into / "cat/a.jpg").read_bytes() == b"was there" and os.readlink(into / "cat/b.jpg") == "nowhere"


@pytest.mark.parametrize("how", ["copy", "link"])
def test_what_is_there_already_is_not_copied_again(tmp_path, how):
    source, into = photos(tmp_path / "photos"), tmp_path / "sorted"
    put_all(source, into, how)
    before = {path: path.lstat().st_mtime_ns for path in (into / "cat").iterdir()}
    with Mover(into, how) as mover:
        assert [mover.put(source / name, "cat") for name in PHOTOS] == [None] * 3
    assert {path: path.lstat().st_mtime_ns for path in (into / "cat").iterdir()} == before


def test_a_copy_keeps_the_time_of_the_photo(tmp_path):
    source, into = photos(tmp_path / "photos"), tmp_path / "sorted"
    os.utime(source / "b.jpg", (1_000_000_000, 1_000_000_000))
    put_all(source, into, "copy")
    assert (into / "cat/b.jpg").stat().st_mtime == 1_000_000_000


def test_each_undo_takes_back_one_sorting(tmp_path):
    source, into = photos(tmp_path / "photos"), tmp_path / "sorted"
    with Mover(into, "move") as mover:
        mover.put(source / "b.jpg", "cat")
    with Mover(into, "copy") as mover:
        mover.put(source / "a.jpg", "dog")
    assert undo(into).files == 1 and not (into / "dog").exists() and (into / "cat/b.jpg").exists()
    assert undo(into).files == 1 and not into.exists() and contents(source) == WANTED
    with pytest.raises(FileNotFoundError, match="nothing was sorted"):
        undo(into)


def test_undo_keeps_what_has_changed_since_and_says_why(tmp_path):
    source, into = photos(tmp_path / "photos"), tmp_path / "sorted"
    put_all(source, into, "copy")
    (into / "cat/a.jpg").write_bytes(b"edited")
    (source / "b.jpg").unlink()  # now the copy is the only one
    undone = undo(into)
    assert undone.files == 1 and dict(undone.kept) == {
        str(into / "cat/a.jpg"): f"it differs from {source / 'a.jpg'}",
        str(into / "cat/b.jpg"): f"the original {source / 'b.jpg'} is gone, so this is the only copy",
    }
    assert (into / "cat/a.jpg").read_bytes() == b"edited" and (into / "cat/b.jpg").exists()

    source, into = photos(tmp_path / "more"), tmp_path / "moved"
    put_all(source, into, "move")
    (source / "a.jpg").write_bytes(b"a new photo")
    (into / "cat/b.jpg").unlink()
    shutil.rmtree(source / "sub")
    undone = undo(into)
    assert undone.files == 1 and [reason for _, reason in undone.kept] == [
        "it is gone: moved or deleted since",
        f"there is another file {source / 'a.jpg'} now",
    ]
    assert (source / "sub/a.jpg").read_bytes() == PHOTOS["sub/a.jpg"], "its folder is made again"
    assert (into / "cat/a.jpg").read_bytes() == b"first" and (source / "a.jpg").read_bytes() == b"a new photo"


def test_a_photo_that_comes_back_to_its_old_place_is_not_taken_for_an_unfinished_move(tmp_path):
    source, into = photos(tmp_path / "photos"), tmp_path / "sorted"
    put_all(source, into, "move")
    (source / "b.jpg").write_bytes(PHOTOS["b.jpg"])  # copied from the camera again; it was the last to be moved
    with Mover(into, "move"):
        assert (source / "b.jpg").exists()


def test_a_link_is_not_moved_and_a_photo_that_is_there_stays(tmp_path):
    source, into = photos(tmp_path / "photos"), tmp_path / "sorted"
    (source / "link.jpg").symlink_to("b.jpg")
    with Mover(into, "move") as mover, pytest.raises(OSError, match="it is a link"):
        mover.put(source / "link.jpg", "cat")
    with Mover(source.parent, "move") as mover:
        assert mover.put(source / "b.jpg", "photos") is None
    assert (source / "b.jpg").read_bytes() == PHOTOS["b.jpg"]


@pytest.mark.parametrize("how", HOWS)
def test_a_photo_that_is_there_through_a_linked_folder_stays(tmp_path, how):
    source = photos(tmp_path / "pictures/cat")
    (tmp_path / "same").symlink_to(tmp_path / "pictures")
    with Mover(tmp_path / "same", how) as mover:
        assert mover.put(source / "a.jpg", "cat") is None
    assert contents(tmp_path / "pictures") == WANTED


def test_names_that_are_not_utf_8_are_sorted_and_put_back(tmp_path):
    source, into = tmp_path / "photos", tmp_path / "sorted"
    source.mkdir()
    path = source / os.fsdecode(b"\xff\xfe.jpg")
    path.write_bytes(b"photo")
    with Mover(into, "move") as mover:
        mover.put(path, "кошка")
    assert undo(into).files == 1 and path.read_bytes() == b"photo"


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"{}",
        b'{"how": "move", "from": "/x", "to": "../../y", "size": 1}',
        b'{"how": "move", "from": "x", "to": "y", "size": 1}',
        b'{"how": "erase", "from": "/x", "to": "y", "size": 1}',
        b'{"made": "/etc"}',
    ],
)
def test_a_damaged_journal_is_refused(tmp_path, line):
    (tmp_path / JOURNAL).write_bytes(b'{"sort": "now"}\n' + line + b"\n")
    with pytest.raises(FileFormatError, match=r"line 2 of .* is damaged"):
        undo(tmp_path)
    with pytest.raises(FileFormatError, match=r"line 2 of .* is damaged"), Mover(tmp_path, "move"):
        pass


def test_two_processes_do_not_sort_into_one_folder_at_once(tmp_path):
    with (
        Mover(tmp_path, "copy"),
        pytest.raises(FileExistsError, match=r"is being filled by process \d+"),
        Mover(tmp_path, "copy"),
    ):
        pass


def test_a_name_that_another_program_takes_meanwhile_is_left_to_it(tmp_path, monkeypatch):
    source, into = photos(tmp_path / "photos"), tmp_path / "sorted"
    transfer, first = moving.transfer, []

    def late(how: Any, one: Path, two: Path) -> None:
        if not first:
            first.append(two)
            two.write_bytes(b"of another program")
        transfer(how, one, two)

    monkeypatch.setattr(moving, "transfer", late)
    with Mover(into, "move") as mover:
        assert mover.put(source / "b.jpg", "cat") == into / "cat/b-2.jpg"
    monkeypatch.undo()
    assert json.loads((into / JOURNAL).read_bytes().splitlines()[3]) == {"taken": "cat/b.jpg"}
    assert undo(into).kept == [] and (into / "cat/b.jpg").read_bytes() == b"of another program"
    assert contents(source) == WANTED
