"""Reading run folders: finished, running, killed and damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amgc.runs import RunError, find_runs, labels, load_run

WriteRun = Callable[..., Path]


def change(path: Path, **values: Any) -> None:
    """Change run.json. None removes a key."""
    about = json.loads((path / "run.json").read_text()) | values
    (path / "run.json").write_text(json.dumps({key: value for key, value in about.items() if value is not None}))


def test_a_finished_run_reads_as_it_was_written(write_run: WriteRun) -> None:
    run = load_run(write_run("amgc", [2, 1], [[90], [70, 80]], names=["cat", "dog", "hen"]))
    assert run.finished
    assert (run.method, run.config["seed"], run.class_names, run.sizes) == ("amgc", 1993, ("cat", "dog", "hen"), (2, 1))
    assert run.metrics.accuracy == (0.9, 220 / 300)
    assert run.seconds[1] == {"train": 10.0, "remember": 0.5, "evaluate": 1.0}
    assert run.kept_bytes == (2048, 3072)
    assert run.versions == {"amgc": "0.1.0", "torch": "2.13.0"}
    assert (run.commit, run.created) == ("abc1234", "2026-05-01T12:00:00+00:00")
    assert run.command == ("amgc", "run", "--method", "amgc")


def test_a_run_without_a_line_is_one_that_has_just_begun(write_run: WriteRun) -> None:
    path = write_run("amgc", [2, 1], [])
    assert load_run(path).done == 0
    (path / "metrics.jsonl").unlink()
    run = load_run(path)
    assert run.done == 0
    assert not run.finished


def test_a_last_line_cut_anywhere_is_ignored(write_run: WriteRun) -> None:
    path = write_run("amgc", [2, 1], [[90], [70, 80]])
    text = (path / "metrics.jsonl").read_bytes()
    first = text.index(b"\n") + 1
    for end in range(first, len(text) - 1):
        (path / "metrics.jsonl").write_bytes(text[:end])
        assert load_run(path).done == 1
    (path / "metrics.jsonl").write_bytes(text[:-1])  # whole but for its end
    assert load_run(path).done == 2


def test_zeros_after_the_last_line_are_ignored_as_a_crash_leaves_them(write_run: WriteRun) -> None:
    path = write_run("amgc", [2, 1], [[90]])
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(b"\0" * 100)
    assert load_run(path).done == 1


def test_a_broken_line_before_the_last_is_an_error_that_names_file_and_line(write_run: WriteRun) -> None:
    path = write_run("amgc", [1, 1, 1], [[90], [70, 80], [70, 80, 90]])
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text(lines[0] + lines[1][:40] + "\n" + lines[2])
    with pytest.raises(RunError, match=r"metrics\.jsonl, line 2 is damaged"):
        load_run(path)


@pytest.mark.parametrize(
    ("change_line", "message"),
    [
        ({"task": 5}, r"line 2 is of task 5, but task 1 is expected"),
        ({"kept_bytes": None}, r"line 2: it lacks 'kept_bytes'"),
        ({"correct": 3}, r"line 2: correct must be a list, not 3"),
        ({"correct": [1]}, r"do not fit together: correct after task 2 has 1 numbers, but 2 classes"),
        ({"total": [100, 0]}, r"class 1 .* after task 2 has 0 test images"),
        ({"seconds": {"train": "long"}}, r"line 2: seconds.train must be float, not 'long'"),
    ],
)
def test_a_line_that_does_not_fit_is_an_error_that_says_where(
    write_run: WriteRun, change_line: dict[str, Any], message: str
) -> None:
    path = write_run("amgc", [1, 1], [[90], [70, 80]])
    first, second = (path / "metrics.jsonl").read_text().splitlines()
    line = {key: value for key, value in (json.loads(second) | change_line).items() if value is not None}
    (path / "metrics.jsonl").write_text(f"{first}\n{json.dumps(line)}\n")
    with pytest.raises(RunError, match=message):
        load_run(path)


def test_a_line_that_is_not_an_object_is_an_error(write_run: WriteRun) -> None:
    path = write_run("amgc", [1, 1], [])
    (path / "metrics.jsonl").write_text("[1]\n")
    with pytest.raises(RunError, match="line 1: it must be a mapping"):
        load_run(path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"version": 2}, "has version 2; this amgc reads up to 1: install a newer one"),
        ({"version": None}, "was not written by amgc"),
        ({"sizes": None}, "lacks 'sizes'"),
        ({"sizes": [1, "1"]}, r"sizes\[1\] must be int, not '1'"),
        ({"sizes": [1, 2]}, r"names 2 classes, but its task sizes \[1, 2\] sum to 3"),
        ({"sizes": [3, -1]}, r"sizes are \[3, -1\]"),
        ({"class_names": [1, 2]}, r"class_names\[0\] must be str, not 1"),
        ({"config": {"seed": 1}}, "config.method must be str, not None"),
        ({"config": []}, r"config must be a mapping, not \[\]"),
    ],
)
def test_a_run_json_that_does_not_fit_is_an_error_that_says_what(
    write_run: WriteRun, values: dict[str, Any], message: str
) -> None:
    path = write_run("amgc", [1, 1], [])
    change(path, **values)
    with pytest.raises(RunError, match=message):
        load_run(path)


@pytest.mark.parametrize("contents", [b"", b'{"version": 1', b"\xff\xfe", b"\0\0\0"])
def test_a_damaged_run_json_is_an_error_that_names_it(write_run: WriteRun, contents: bytes) -> None:
    path = write_run("amgc", [1], [])
    (path / "run.json").write_bytes(contents)
    with pytest.raises(RunError, match=r"run\.json' is damaged"):
        load_run(path)


def test_a_run_outside_a_repository_has_no_commit(write_run: WriteRun) -> None:
    path = write_run("amgc", [1], [])
    about = json.loads((path / "run.json").read_text()) | {"commit": None}
    (path / "run.json").write_text(json.dumps(about))
    assert load_run(path).commit is None


def test_the_error_for_another_folder_describes_a_run_folder(tmp_path: Path) -> None:
    for read in (load_run, find_runs):
        with pytest.raises(FileNotFoundError, match="there is no folder"):
            read(tmp_path / "nothing")
        (tmp_path / "file").touch()
        with pytest.raises(NotADirectoryError, match=r"holds run\.json"):
            read(tmp_path / "file")
        with pytest.raises(FileNotFoundError, match=r"holds run\.json"):
            read(tmp_path)


def test_runs_side_by_side_are_found_in_order_of_creation(write_run: WriteRun, tmp_path: Path) -> None:
    write_run("lwf", [1], [[90]], created="2026-05-01T12:00:02")
    write_run("amgc", [1], [[90]], created="2026-05-01T12:00:03")
    write_run("ncm", [1], [[90]], created="2026-05-01T12:00:01")
    write_run("half", [1], [[90]], folder=".half.partial")
    (tmp_path / "notes").mkdir()
    assert [run.method for run in find_runs(tmp_path)] == ["ncm", "lwf", "amgc"]
    assert [run.method for run in find_runs(tmp_path / "amgc")] == ["amgc"]


def test_labels_are_the_methods_and_what_differs_between_runs_of_one_method(write_run: WriteRun) -> None:
    runs = [
        load_run(write_run("lwf", [1], [], seed=5)),
        load_run(write_run("amgc", [1], [], folder="a", hyper={"margin": 0.4})),
        load_run(write_run("amgc", [1], [], folder="b", hyper={"margin": 0.0})),
    ]
    assert labels(runs) == ["lwf", "amgc (margin=0.4)", "amgc (margin=0.0)"]


def test_where_a_run_computed_is_not_part_of_its_label(write_run: WriteRun) -> None:
    places = [("a", 1993, "x/lda"), ("b", 1994, None)]
    runs = [
        load_run(write_run("amgc", [1], [], folder=name, seed=seed, machine={"start": start})) for name, seed, start in places
    ]
    assert labels(runs) == ["amgc (seed=1993)", "amgc (seed=1994)"]


def test_runs_are_found_two_folders_deep_and_not_in_hidden_ones(write_run: WriteRun, tmp_path: Path) -> None:
    for place, folder in enumerate(("a/amgc", "a/lda", "lda", "b/.old/lda", ".trash/a/amgc", "a/b/c")):
        write_run("amgc", [1], [], folder=folder, created=f"2026-05-01T12:00:0{place}+00:00")
    assert [run.path.relative_to(tmp_path).as_posix() for run in find_runs(tmp_path)] == ["a/amgc", "a/lda", "lda"]


def test_labels_of_runs_that_differ_in_nothing_or_in_much_are_their_folders(write_run: WriteRun) -> None:
    same = [load_run(write_run("amgc", [1], [], folder=name)) for name in ("a", "b")]
    assert labels(same) == ["amgc (a)", "amgc (b)"]
    much = [load_run(write_run("ncm", [1], [], folder=name, data=f"/a/rather/long/path/to/{name}")) for name in ("c", "d")]
    assert labels(much) == ["ncm (c)", "ncm (d)"]
    twins = [load_run(write_run("lwf", [1], [], folder=f"{name}/lwf")) for name in ("e", "f")]
    assert labels(twins) == [f"lwf ({run.path})" for run in twins]
