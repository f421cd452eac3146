"""Whatever fails during a change, the folder contains the model before or after the change."""

from __future__ import annotations

import builtins
import errno
import os
import pathlib
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from failing import failing
from model.drawing import answers, draw

from amgc import files
from amgc.model import Model, ModelBusyError, earlier

SLOW = pytest.mark.slow

# All through which a change reaches the disk: what is opened, written, renamed, removed.
STEPS: list[tuple[Any, str]] = [
    (os, "replace"),
    (os, "rename"),
    (os, "mkdir"),
    (os, "rmdir"),
    (os, "unlink"),
    (os, "fsync"),
    (os, "chmod"),
    (os, "open"),
    (tempfile, "mkstemp"),
    (safetensors.torch, "save_file"),
    (pathlib.Path, "open"),
    (pathlib.Path, "write_text"),
    (builtins, "open"),
]


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x")


def stop() -> None:
    raise KeyboardInterrupt


CHANGES: dict[str, Callable[[Model, Model], Any]] = {
    "learn": lambda model, other: model.learn(draw("owl", 10), "owl"),
    "forget": lambda model, other: model.forget("dog"),
    "merge": lambda model, other: model.merge(other),
    "rename": lambda model, other: model.rename("dog", "wolf"),
    "join": lambda model, other: model.rename("dog", "cat", join=True),
    "undo": lambda model, other: model.undo(),
}


def prepared(folder: Path) -> tuple[Model, Model]:
    """Return a model that has changed since it learned, and another one to merge into it."""
    model = Model.create(folder / "model", filters=2)
    model.learn_all({kind: draw(kind, 10) for kind in ("cat", "dog")})
    model.learn(draw("dog", 5, seed=1), "dog")
    other = Model.create(folder / "other", next(model.path.glob("extractor-*")))
    other.learn(draw("fox", 10), "fox")
    return model, other


def copied(model: Model, to: Path) -> Model:
    """Return a copy with a copy of the state before the last change."""
    shutil.copytree(model.path, to)
    manifest, token = model._folder.manifest(), secrets.token_hex(16)
    shutil.copytree(earlier.place() / manifest.undo, earlier.place() / token)
    files.write_json(to / "manifest.json", replace(manifest, undo=token).to_json())
    return Model.open(to)


def named(folder: Path) -> set[str]:
    """Return the files of a folder except its lock."""
    return {path.name for path in folder.iterdir()} - {".lock"}


@pytest.mark.parametrize(
    ("change", "fail"),
    [
        ("learn", full),
        pytest.param("learn", stop, marks=SLOW),
        pytest.param("forget", full, marks=SLOW),
        pytest.param("merge", stop, marks=SLOW),
    ],
)
def test_a_change_that_fails_at_any_write_leaves_the_model_as_it_was_or_changed(tmp_path, monkeypatch, change, fail):
    model, other = prepared(tmp_path)
    before = answers(model, "cat", "dog")
    whole = copied(model, tmp_path / "whole")
    CHANGES[change](whole, other)
    after = answers(whole, "cat", "dog")
    assert before != after
    outcomes = []
    for number in range(1, 200):
        tried = copied(model, tmp_path / f"try {number}")
        failed = True
        with failing(monkeypatch, STEPS, number, fail) as called:
            try:
                CHANGES[change](tried, other)
                failed = False
            except (OSError, KeyboardInterrupt):
                pass
        found = answers(Model.open(tried.path), "cat", "dog")
        assert found in (before, after), f"between, after failing at {called[-1]}"
        assert failed or found == after
        if failed or len(called) < number:  # the lock's note of its holder may fail without harm
            outcomes.append(found == after)
        if not failed and len(called) < number:
            break
        tried.refresh()
        assert answers(tried, "cat", "dog") == found  # memory and folder agree again
        if number % 3 == 0:
            assert_the_next_change_tidies_up(tried)
    else:
        pytest.fail("the change never came to its end")
    assert len(outcomes) > 12 and outcomes == sorted(outcomes), "at one moment, and not back again"
    assert not outcomes[0] and outcomes[-1]


def assert_the_next_change_tidies_up(model: Model) -> None:
    Model.open(model.path).learn(draw("bee", 10), "bee")
    assert len(named(model.path)) == 3, "the manifest, the extractor and the classes; nothing else"


@pytest.mark.parametrize(
    "change", ["learn", *(pytest.param(name, marks=SLOW) for name in ("undo", "forget", "merge", "rename", "join"))]
)
def test_a_process_that_is_killed_at_any_write_leaves_the_model_as_it_was_or_changed(tmp_path, monkeypatch, change):
    model, other = prepared(tmp_path)
    before = answers(model, "cat", "dog")
    whole = copied(model, tmp_path / "whole")
    CHANGES[change](whole, other)
    after = answers(whole, "cat", "dog")
    outcomes = []
    for number in range(1, 200):
        tried = copied(model, tmp_path / f"try {number}")

        def killed() -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        with in_child() as child:
            if child.is_child:
                with failing(monkeypatch, STEPS, number, killed):
                    CHANGES[change](tried, other)
        outcomes.append(answers(Model.open(tried.path), "cat", "dog"))
        assert outcomes[-1] in (before, after)
        if number % 3 == 0:
            assert_the_next_change_tidies_up(tried)
        if child.status == 0:
            break
        assert os.WTERMSIG(child.status) == signal.SIGKILL
    assert outcomes[0] == before and outcomes[-1] == after and len(outcomes) > (6 if change == "undo" else 12)


MAKING: dict[str, Callable[[Path, Model, Model], Model]] = {
    "merged": lambda path, model, other: Model.merged([model, other], path),
    "network": lambda path, model, other: Model.create(path, "convnet", size=16),
}


@pytest.mark.slow
@pytest.mark.parametrize("making", MAKING)
def test_a_process_that_is_killed_while_it_makes_a_model_can_be_followed_by_another(tmp_path, monkeypatch, making):
    model, other = prepared(tmp_path)
    make = MAKING[making]
    for number in range(1, 200):
        path = tmp_path / f"try {number}"

        def killed() -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        with in_child() as child:
            if child.is_child:
                with failing(monkeypatch, STEPS, number, killed):
                    make(path, model, other)
        if (path / "manifest.json").exists():
            Model.open(path)
        else:
            make(path, model, other)
        assert len(named(path)) == (3 if making == "merged" else 2), "no remains"
        if child.status == 0:
            break
        assert os.WTERMSIG(child.status) == signal.SIGKILL
    assert number > 8


class Child:
    is_child = False
    status = -1


@contextmanager
def in_child(wait: bool = True) -> Iterator[Child]:
    """Run the block in this process and in a forked copy, which ends with the block. Wait for the copy."""
    child = Child()
    pid = os.fork()
    child.is_child = pid == 0
    if child.is_child:
        code = 1
        try:
            yield child
            code = 0
        finally:
            os._exit(code)
    yield child
    if wait:
        child.status = os.waitpid(pid, 0)[1]


def test_the_first_learn_stopped_half_way_leaves_an_empty_model(tmp_path, monkeypatch):
    for number in range(1, 200):
        model = Model.create(tmp_path / f"{number}", filters=2)
        with failing(monkeypatch, STEPS, number, full) as called, suppress(OSError):
            model.learn(draw("cat", 10), "cat")
        opened = Model.open(model.path)
        assert opened.classes in ({}, {"cat": 10})
        if len(called) < number:
            break
        opened.learn(draw("cat", 10), "cat")
        assert opened.classes["cat"] >= 10 and len(named(model.path)) == 3
    assert number > 12 and opened.classes == {"cat": 10}


def test_a_full_disk_is_reported_and_nothing_changes_in_memory(tmp_path, monkeypatch):
    model, _ = prepared(tmp_path)
    before = answers(model)

    def no_room(*_: Any, **__: Any) -> None:
        full()

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", no_room)
        with pytest.raises(OSError, match="No space left"):
            model.learn(draw("owl", 10), "owl")
    assert answers(model) == before == answers(Model.open(model.path))
    assert len(named(model.path)) == 3 and model.info().can_undo, "the change before can still be undone"


def test_two_processes_that_learn_at_once_both_succeed(tmp_path):
    model, _ = prepared(tmp_path)
    with in_child() as child:
        kind = "bee" if child.is_child else "owl"
        mine = Model.open(model.path)
        mine.patience = 60
        for number in range(3):
            mine.learn(draw(kind, 10, seed=number), kind)
    assert child.status == 0
    assert Model.open(model.path).classes == {"cat": 10, "dog": 15, "owl": 30, "bee": 30}


def test_two_processes_that_learn_first_at_the_same_time_agree_on_one_extractor(tmp_path):
    Model.create(tmp_path / "model", filters=2)
    with in_child() as child:
        kind = "bee" if child.is_child else "owl"
        mine = Model.open(tmp_path / "model")
        mine.patience = 60
        mine.learn(draw(kind, 10), kind)
    assert child.status == 0
    assert sorted(Model.open(tmp_path / "model").classes) == ["bee", "owl"]


def test_a_writer_that_waits_too_long_learns_which_process_has_the_lock(tmp_path):
    model, _ = prepared(tmp_path)
    holding, done = tmp_path / "holding", tmp_path / "done"
    with in_child() as child:
        if child.is_child:
            with model._folder.lock():
                holding.touch()
                while not done.exists():
                    time.sleep(0.01)
        else:
            while not holding.exists():
                time.sleep(0.01)
            model.patience = 0.1
            with pytest.raises(ModelBusyError, match=r"is being changed by process \d+ on .* \(since "):
                model.forget("cat")
            assert answers(model) == answers(Model.open(model.path)), "readers do not wait"
            done.touch()
    model.forget("cat")


def test_a_reader_that_opens_while_another_writes_sees_complete_models(tmp_path):
    model, _ = prepared(tmp_path)
    done = tmp_path / "done"
    with in_child() as child:
        if child.is_child:
            for number in range(12):
                model.learn(draw("owl", 3, seed=number), "owl") if number % 2 == 0 else model.forget("owl")
            done.touch()
        else:
            deadline, generations = time.monotonic() + 300, set()
            while not done.exists() and time.monotonic() < deadline:
                opened = Model.open(model.path)
                classes = opened.classes
                assert classes in ({"cat": 10, "dog": 15}, {"cat": 10, "dog": 15, "owl": 3})
                assert set(opened.predict(draw("cat", 1), top=9)[0].labels) == set(classes)
                generations.add(opened.info().generation)
            assert done.exists() and len(generations) > 1
    assert child.status == 0
