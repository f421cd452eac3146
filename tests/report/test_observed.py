"""Reading `observed/task-N.json`; errors name what does not fit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amgc.runs import RunError, load_observed, load_run
from amgc.runs.observed import Gaussian, Margins

CONTENT: dict[str, Any] = {
    "version": 1,
    "task": 1,
    "confusion": [[0, 0, 90], [0, 2, 10], [1, 1, 90], [1, 0, 10], [2, 2, 80], [2, 1, 20]],
    "margins": {"own": [0.5, 0.25, 0], "pairs": [[0, 1.5, 2], [1, 0, 3], [0, 0, 0]]},
    "plane": {
        "classes": [0, 1],
        "points": [[[0, 1], [2, 3.5]], [[-1, 0]]],
        "gaussians": [{"mean": [1, 2], "covariance": [[2, 0], [0, 1]], "enlarged": [[3, 0], [0, 1.5]]}, None],
    },
}


@pytest.fixture
def folder(write_run: Callable[..., Path]) -> Path:
    """Write a run with 90 % correct in the classes of task 1 and 80 % of task 2, with observations of task 2."""
    folder = write_run("amgc", [2, 1], [[95], [90, 80]])
    (folder / "observed").mkdir()
    (folder / "observed" / "task-2.json").write_text(json.dumps(CONTENT))
    return folder


def test_observations_are_loaded_and_a_task_without_a_file_is_left_out(folder: Path) -> None:
    (seen,) = load_observed(load_run(folder))
    assert seen.task == 1 and seen.confusion[1] == (0, 2, 10)
    assert seen.margins == Margins((0.5, 0.25, 0.0), ((0.0, 1.5, 2.0), (1.0, 0.0, 3.0), (0.0, 0.0, 0.0)))
    assert seen.plane and seen.plane.classes == (0, 1) and seen.plane.points == (((0.0, 1.0), (2.0, 3.5)), ((-1.0, 0.0),))
    assert seen.plane.gaussians == (Gaussian((1.0, 2.0), ((2.0, 0.0), (0.0, 1.0)), ((3.0, 0.0), (0.0, 1.5))), None)


def test_runs_without_the_folder_have_nothing_to_show(write_run: Callable[..., Path]) -> None:
    assert load_observed(load_run(write_run("amgc", [2, 1], [[95], [90, 80]]))) == []


def test_the_file_of_a_task_that_is_not_finished_is_not_read(write_run: Callable[..., Path]) -> None:
    folder = write_run("amgc", [2, 1], [[95]])
    (folder / "observed").mkdir()
    (folder / "observed" / "task-2.json").write_text("half of it")
    assert load_observed(load_run(folder)) == []


def test_most_parts_may_be_missing_on_purpose(folder: Path) -> None:
    path = folder / "observed" / "task-2.json"
    path.write_text(json.dumps(CONTENT | {"margins": None, "plane": None}))
    assert load_observed(load_run(folder))[0].margins is None
    path.write_text(json.dumps(CONTENT | {"margins": {"own": [1, 2, 3], "pairs": None}}))
    assert load_observed(load_run(folder))[0].margins == Margins((1.0, 2.0, 3.0), None)


def change(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda content: content | changes


def plane(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda content: content | {"plane": content["plane"] | changes}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: [], "was not written by amgc"),
        (change(version=2), "has version 2; this amgc reads up to 1"),
        (change(task=0), r"it is of task 0, not of 1"),
        (lambda c: {k: v for k, v in c.items() if k != "confusion"}, "it lacks 'confusion'"),
        (change(confusion=[[0, 0]]), r"confusion\[0\] must have 3 items, not 2"),
        (change(confusion=[[0, 0, "3"]]), r"confusion\[0\]\[2\] must be int, not '3'"),
        (change(confusion=[[0, 3, 5]]), r"a cell of the confusion is \[0, 3, 5\], with 3 seen classes"),
        (change(confusion=[[0, 0, 91], [0, 2, 9], *CONTENT["confusion"][2:]]), "not the numbers of metrics.jsonl"),
        (change(confusion=None), "confusion must be a list, not None"),
        (change(margins={"own": [1, 2], "pairs": None}), "there must be 3 margins, not 2"),
        (change(margins={"own": [1, 2, None], "pairs": None}), r"margins.own\[2\] must be float, not None"),
        (change(margins={"own": [1, 2, float("nan")], "pairs": None}), "it holds NaN"),
        (change(margins={"own": [1, 2, 3], "pairs": [[1, 2, 3]]}), "there must be 3 margins, not 1"),
        (plane(classes=[0, 3]), r"the plane's classes are \[0, 3\]"),
        (plane(classes=[1, 1]), r"the plane's classes are \[1, 1\]"),
        (plane(points=[[[1, 2]]]), "plane.points must have 2 items, not 1"),
        (plane(points=[[[1, 2, 3]], []]), r"plane.points\[0\]\[0\] must have 2 items, not 3"),
        (plane(gaussians=[None]), "plane.gaussians must have 2 items, not 1"),
        (plane(gaussians=[None, {"mean": [1, 2]}]), r"plane.gaussians\[1\] lacks 'covariance'"),
        (plane(gaussians=[None, {"mean": [1, 2], "covariance": [1, 2], "enlarged": None}]), "must be a list, not 1"),
    ],
)
def test_a_file_that_does_not_fit_is_named_with_the_reason(folder: Path, damage: Any, message: str) -> None:
    path = folder / "observed" / "task-2.json"
    path.write_text(json.dumps(damage(CONTENT)))
    with pytest.raises(RunError, match=message) as caught:
        load_observed(load_run(folder))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b'{"version": 1', b"\xff\xfe"])
def test_a_file_that_is_not_json_is_damaged(folder: Path, content: bytes) -> None:
    (folder / "observed" / "task-2.json").write_bytes(content)
    with pytest.raises(RunError, match=r"task-2\.json' is damaged"):
        load_observed(load_run(folder))


def test_older_runs_do_not_tell_their_memory(write_run: Callable[..., Path]) -> None:
    folder = write_run("amgc", [2, 1], [[95], [90, 80]])
    path = folder / "metrics.jsonl"
    path.write_text(re.sub(r'"peak_bytes": \d+, ', "", path.read_text()))
    assert load_run(folder).peak_bytes == (None, None)
    path.write_text(path.read_text().replace('"losses"', '"peak_bytes": 5000, "losses"'))
    assert load_run(folder).peak_bytes == (5000, 5000)
    path.write_text(path.read_text().replace("5000", '"much"'))
    with pytest.raises(RunError, match="peak_bytes must be int or None, not 'much'"):
        load_run(folder)
