"""amgc.run, amgc.compare and amgc.load_run: the same as the commands, from Python."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from in_process import Here

import amgc
from amgc.api.settings import flags_of, make_configs
from amgc.cli import compare
from amgc.cli.flags import parse
from amgc.cli.main import main
from amgc.cli.plan import Plan
from amgc.engine.run import run as engine_run
from amgc.engine.watch import Stopped, Watch

FAST = "fast-digits"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> amgc.Runs:
    return amgc.run(FAST, method=["lda", "ncm"], out=tmp_path_factory.mktemp("runs") / "digits")


@pytest.mark.parametrize(
    ("preset", "settings", "flags"),
    [
        (None, {}, []),
        ("digits", {"method": "amgc", "tasks": 2, "margin": 0.1}, "digits --method amgc --tasks 2 --margin 0.1"),
        ("digits", {"method": "fecam", "correlation": False, "seed": 7}, "digits --method fecam --no-correlation --seed 7"),
        ("digits", {"sizes": [4, 6], "later": {"epochs": 3}}, "digits --sizes 4 6 --later.epochs 3"),
        ("digits", {"first_classes": 4, "increment": 3}, "digits --first-classes 4 --increment 3"),
        ("digits", {"method": ["amgc", "lda"], "amgc": {"margin": 0.2}}, "digits --method amgc lda --amgc.margin 0.2"),
        (FAST, {"features_options": {"filters": 20}, "threads": 2}, f"{FAST} --features.filters 20 --threads 2"),
        ("digits", {"features": "patches", "method": "lda"}, "digits --features patches --method lda"),
        ("digits", {"classes": ["3", "1", "4"], "tasks": 3}, "digits --classes 3 1 4 --tasks 3"),
        ("cifar100", {"data_options": {"root": "here", "verify": False}}, "cifar100 --data.root here --data.no-verify"),
        (None, {"data": "digits", "method": "ewc", "natural_order": True}, "--data digits --method ewc --natural-order"),
    ],
)
def test_keywords_make_the_configs_that_flags_make(preset: str | None, settings: dict[str, Any], flags: Any) -> None:
    wanted = parse(flags.split() if flags else [])
    made = make_configs(preset, settings)
    assert made.configs == wanted.configs
    assert made.choice.name == wanted.choice.name


@pytest.mark.parametrize(
    "settings", [{"method": "fecam", "tasks": 2, "first": {"epochs": 3}, "correlation": False}, {"sizes": [4, 6]}]
)
def test_the_recorded_command_makes_the_same_configs(settings: dict[str, Any]) -> None:
    assert parse(flags_of("digits", settings)).configs == make_configs("digits", settings).configs


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "amgc", "margn": 0.1}, "'margn'; did you mean 'margin'"),
        ({"method": "amgc", "later": {"epoch": 1}}, "'later.epoch'; did you mean 'epochs'"),
        ({"method": "amcg"}, "Did you mean 'amgc'|did you mean 'amgc'"),
        ({"data_options": {"colour": 1}}, "data_options has no option 'colour'"),
        ({"features_options": {"with": 1}}, "features_options has no option 'with'"),
        ({"method": "amgc", "margin": "much"}, "margin"),
        ({"tasks": 3, "sizes": [5, 5]}, "tasks"),
        ({"tasks": 0}, "at least one task, not 0"),
        ({"sizes": []}, "sum to 0"),
    ],
)
def test_a_wrong_setting_is_a_value_error_and_leaves_nothing_behind(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        amgc.run("digits", **settings)
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_the_same_call_again_computes_nothing(finished: amgc.Runs) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.path.rglob("*.json*")}
    again = amgc.run(FAST, method=["lda", "ncm"], out=finished.path)
    assert {path: path.stat().st_mtime_ns for path in finished.path.rglob("*.json*")} == before
    assert again.rows() == finished.rows()


def test_other_settings_do_not_touch_a_run(finished: amgc.Runs) -> None:
    with pytest.raises(ValueError, match="other settings"):
        amgc.run(FAST, method=["lda", "ncm"], seed=3, out=finished.path)


def test_without_a_folder_the_same_run_is_found_and_another_gets_a_new_one() -> None:
    one = amgc.run(FAST, method="ncm", tasks=2)
    assert one.path == Path("runs/fast-digits")
    assert amgc.run(FAST, method="ncm", tasks=2).path == one.path
    assert amgc.run(FAST, method="ncm", tasks=2, seed=5).path == Path("runs/fast-digits-2")


def test_an_interrupted_run_is_resumed_to_the_same_result(finished: amgc.Runs) -> None:
    class StopAfterTaskTwo(Watch):
        def end_task(self, task: Any, line: dict[str, Any]) -> None:
            if task.index == 1:
                raise Stopped

    folder = Path("stopped")
    (config,) = make_configs(FAST, {"method": "lda"}).configs.values()
    Plan(folder, {"lda": config}).write()
    with contextlib.suppress(Stopped):
        engine_run(config, folder, StopAfterTaskTwo())
    assert not amgc.load_run(folder).finished and amgc.load_run(folder)["lda"].done == 2
    whole = amgc.run(FAST, method="lda", out=folder)
    assert whole.finished and whole.metrics["lda"] == finished.metrics["lda"]


def test_the_command_line_shows_and_finds_what_python_ran(finished: amgc.Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(finished.path)]) == 0
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert shown[: len(finished.table().splitlines())] == finished.table().splitlines()
    assert finished["lda"].command == ("amgc", "run", FAST, "--method", "lda", "ncm", *finished["lda"].command[6:])


def test_runs_is_a_mapping_with_metrics_by_name(finished: amgc.Runs) -> None:
    assert list(finished) == ["lda", "ncm"] and len(finished) == 2 and finished.finished
    assert finished.metrics["lda"] is finished["lda"].metrics
    assert repr(finished) == f"<Runs {str(finished.path)!r}: lda, ncm>"


def test_a_frame_has_a_row_per_run_or_per_task(finished: amgc.Runs) -> None:
    frame, tasks = finished.frame(), finished.frame(per_task=True)
    assert list(frame.name) == ["lda", "ncm"] and len(tasks) == 10
    for name, metrics in finished.metrics.items():
        assert frame.set_index("name").LA[name] == metrics.last_accuracy
        assert tuple(tasks[tasks.name == name].accuracy) == metrics.accuracy


def test_a_plot_is_a_png_and_a_path_is_written(finished: amgc.Runs) -> None:
    plot = finished.plot("here.svg")
    assert plot._repr_png_().startswith(b"\x89PNG") and "<svg" in Path("here.svg").read_text()


def test_a_notebook_shows_a_table(finished: amgc.Runs) -> None:
    page = finished._repr_html_()
    assert page.count("<tr>") == 3 and f"{100 * finished['lda'].metrics.last_accuracy:.1f}" in page


def test_progress_is_printed_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    amgc.run(FAST, method="ncm", tasks=2, out="quiet")
    assert capsys.readouterr().out == ""
    amgc.run(FAST, method="ncm", tasks=2, out="loud", progress=True)
    assert "ncm, task 2/2:" in capsys.readouterr().out


def test_compare_is_the_command_and_computes_only_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "make_executor", lambda *_: (Here(), 1))
    found = amgc.compare(["lda", "ncm"], data=FAST, tasks=2, seeds=[1, 2], out="grid")
    assert capsys.readouterr().out == "" and len(found) == 4 and found.finished
    assert "±" in found.table() and "<pre>" in found._repr_html_()
    before = {path: path.stat().st_mtime_ns for path in Path("grid").rglob("metrics.jsonl")}
    line = json.loads(Path("grid/compare.json").read_text())["commands"][0]
    assert main(line) == 0  # the recorded command finds all its runs finished
    assert {path: path.stat().st_mtime_ns for path in Path("grid").rglob("metrics.jsonl")} == before
    assert found.table().splitlines()[0] in capsys.readouterr().out
    assert set(amgc.load_run("grid").frame().seed) == {1, 2}


def test_reading_runs_needs_no_torch(finished: amgc.Runs) -> None:
    code = f"import sys, amgc; amgc.load_run({str(finished.path)!r}).table(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
