from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cli.helpers import TINY, figures

import amgc
from amgc.cli import plan
from amgc.cli.main import main
from amgc.engine.checkpoint import Checkpoints
from amgc.files import FileFormatError

AMGC = [*TINY, "--method", "amgc"]
METHOD = '''
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from amgc.methods.contract import Hyper, Method
from amgc.methods.registry import method
from amgc.options import option


@dataclass(frozen=True)
class MineHyper(Hyper):
    way: Literal["one", "two"] = option("one", "which way", "me")
    seed: int = option(3, "has the name of another flag", "me")


@method("mine", MineHyper())
class Mine(Method[MineHyper]):
    """My own."""
'''


def test_a_run_is_shown_and_resumed_when_it_is_finished(capsys):
    assert main(["run", *AMGC]) == 0
    output = capsys.readouterr().out
    assert (
        re.search(r"amgc: [\d,]+ image passes", output) and "amgc, task 2/2: " in output and "amgc show runs/digits" in output
    )
    assert "\x1b" not in output and "LA" in output and "last accuracy" in output
    assert {"run.json", "metrics.jsonl", "plan.json", "accuracy.png"} <= {path.name for path in Path("runs/digits").iterdir()}
    before = Path("runs/digits/metrics.jsonl").read_bytes()
    assert main(["resume", "runs/digits"]) == 0
    output = capsys.readouterr().out
    assert "runs/digits is already finished." in output and "LA" in output
    assert Path("runs/digits/metrics.jsonl").read_bytes() == before
    assert main(["show", "runs/digits"]) == 0
    assert "finished" in capsys.readouterr().out


def test_two_runs_that_start_together_have_folders_of_their_own(monkeypatch):
    """The second starts while the first is still reading its data."""
    first, started = plan.load_data, []

    def load_data(of: plan.Plan, *how: Any) -> Any:
        started.append(of.folder)
        if len(started) == 1:
            assert main(["run", *AMGC, "--quiet"]) == 0
        return first(of, *how)

    monkeypatch.setattr(plan, "load_data", load_data)
    assert main(["run", *AMGC, "--quiet"]) == 0
    assert started == [Path("runs/digits"), Path("runs/digits-2")]
    assert figures("runs/digits") == figures("runs/digits-2")


def test_a_run_that_does_not_start_leaves_its_folder_free(monkeypatch):
    def fail(of: plan.Plan, *_: Any) -> None:
        assert of.folder.is_dir()
        raise ValueError("no such data")

    monkeypatch.setattr(plan, "load_data", fail)
    assert main(["run", *AMGC]) == 2
    assert not Path("runs").exists()
    Path("runs/other").mkdir(parents=True)
    assert main(["run", *AMGC]) == 2
    assert [path.name for path in Path("runs").iterdir()] == ["other"]


def test_a_run_does_not_touch_the_one_before():
    for _ in range(2):
        assert main(["run", *AMGC, "--quiet"]) == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["digits", "digits-2"]
    assert figures("runs/digits") == figures("runs/digits-2")


def test_a_folder_that_holds_a_run_is_refused_with_advice(capsys):
    assert main(["run", *AMGC, "--quiet", "--out", "x"]) == 0
    before = Path("x/run.json").read_bytes()
    capsys.readouterr()
    assert main(["run", *AMGC, "--out", "x"]) == 2
    assert "`amgc resume x`, or choose another --out" in capsys.readouterr().err
    assert Path("x/run.json").read_bytes() == before


def test_a_dry_run_tells_the_cost_and_writes_nothing(capsys):
    assert main(["run", *TINY, "--dry-run"]) == 0
    output = capsys.readouterr().out
    for name in ("finetune", "amgc", "joint"):
        assert re.search(rf"^{name}: [\d,]+ image passes", output, re.MULTILINE)
    assert re.search(r"^all: about ", output, re.MULTILINE)
    assert main(["run", *AMGC, "--dry-run", "--out", "x"]) == 0
    assert list(Path().iterdir()) == []


def test_methods_that_share_task_1_get_the_figures_that_they_get_alone(capsys):
    assert main(["run", *TINY, "--out", "all"]) == 0
    output = capsys.readouterr().out
    assert "Task 1 is trained once, by finetune, and reused by amgc and joint." in output
    assert sorted(path.name for path in Path("all").iterdir()) == ["accuracy.png", "amgc", "finetune", "joint", "plan.json"]
    for name in ("finetune", "amgc", "joint"):
        assert main(["run", *TINY, "--method", name, "--quiet", "--out", name]) == 0
        assert figures(Path("all") / name) == figures(name)


def test_resuming_a_folder_of_several_runs_begins_those_that_had_not_begun(stopped, capsys):
    folder = stopped("x", [])
    assert "Stopped; continue with: amgc resume x" in capsys.readouterr().err
    assert not (folder / "amgc").exists()
    assert main(["show", "x"]) == 0 and "1/2" in capsys.readouterr().out
    moved = folder.rename("moved")
    assert main(["resume", "moved", "--quiet"]) == 0
    assert main(["run", *TINY, "--quiet", "--out", "whole"]) == 0
    for name in ("finetune", "amgc", "joint"):
        assert figures(moved / name) == figures(Path("whole") / name)


def test_the_papers_figures_stand_beside_ours(capsys):
    text = 'methods = ["amgc"]\ndata = "digits"\nfeatures = "convnet"\nsizes = [5, 5]\n'
    text += "[hyper]\nfirst = { epochs = 1 }\nlater = { epochs = 1 }\n[paper]\namgc = { LA = 12.3, AIA = 45.6 }\n"
    Path("p.toml").write_text(text)
    assert main(["run", "p.toml", "--quiet"]) == 0
    assert "12.3" in capsys.readouterr().out
    assert main(["show", "runs/p"]) == 0
    assert "45.6" in capsys.readouterr().out
    assert main(["run", "p.toml", "--quiet", "--sizes", "4", "6"]) == 0
    assert "12.3" not in capsys.readouterr().out  # measured on other tasks


def test_the_papers_figures_are_shown_for_the_methods_that_are_run(capsys):
    text = 'methods = ["amgc"]\ndata = "digits"\nfeatures = "convnet"\ntasks = 2\n[hyper]\nfirst = { epochs = 1 }\n'
    text += "[paper]\namgc = { LA = 12.3, AIA = 45.6 }\nfecam = { LA = 78.9, AIA = 65.4 }\npass = { LA = 3.2, AIA = 1.0 }\n"
    Path("p.toml").write_text(text)
    assert main(["run", "p.toml", "--quiet", "--method", "fecam", "ncm"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^method +LA +LA, paper +AIA +AIA, paper", output, re.MULTILINE)
    assert re.search(r"^fecam +\d+\.\d +78\.9 +\d+\.\d +65\.4 *$", output, re.MULTILINE)
    assert "12.3" not in output


def test_a_method_in_a_file_is_run_and_resumed_from_another_folder(stopped, monkeypatch, capsys):
    Path("mine.py").write_text(METHOD)
    assert main(["run", "--method", "mine.py", "--help"]) == 0
    assert "--mine.seed" in capsys.readouterr().out
    folder = stopped("x", ["--method", "mine.py", "--mine.way", "two"]).resolve()
    config = json.loads((folder / "run.json").read_text())["config"]
    assert (config["hyper"]["way"], config["hyper"]["seed"], config["seed"]) == ("two", 3, 1993)
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert main(["resume", str(folder), "--quiet"]) == 0
    assert len(figures(folder)) == 2


def test_only_the_flags_that_are_given_change_where_a_resumed_run_computes(monkeypatch):
    changed = []
    monkeypatch.setattr(plan, "resume_plan", lambda plan, console, machine, quiet: changed.append(machine))
    monkeypatch.setattr(plan.Plan, "read", lambda folder: None)
    for flags in ([], ["--feature-cache", "None", "--threads", "2"], ["--log"]):
        main(["resume", ".", *flags])
    assert changed == [{}, {"feature_cache": None, "threads": 2}, {"log": ()}]


def test_a_truncated_checkpoint_is_reported_and_nothing_is_lost(stopped, capsys):
    folder = stopped("x", ["--method", "amgc"])
    path = folder / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    capsys.readouterr()
    assert main(["resume", "x"]) == 1
    output = capsys.readouterr().err
    assert output.startswith("amgc: error: ") and "checkpoint.safetensors" in output and "Traceback" not in output
    assert len(figures(folder)) == 1
    assert "delete it: `amgc resume` then restarts the run" in output
    path.unlink()
    assert main(["resume", "x", "--quiet"]) == 0 and len(figures(folder)) == 2


@pytest.mark.parametrize(("damage", "finished"), [(lambda c: b"x" + c, False), (lambda c: c + c, True)])
def test_damaged_metrics_are_rewritten_from_the_checkpoint(damage, finished, stopped):
    path = stopped("x", ["--method", "amgc"]) / "metrics.jsonl"
    before = figures("x")
    if finished:
        assert main(["resume", "x", "--quiet"]) == 0
        before = figures("x")
    path.write_bytes(damage(path.read_bytes()))
    assert main(["resume", "x", "--quiet"]) == 0
    assert figures("x")[: len(before)] == before and len(figures("x")) == 2


def test_a_damaged_plan_is_reported(stopped, capsys):
    folder = stopped("x", [])
    (folder / "plan.json").write_text("{}")
    assert main(["resume", "x"]) == 1
    assert "'x/plan.json' is damaged" in capsys.readouterr().err


def test_a_plan_of_another_version_is_refused(stopped, capsys):
    path = stopped("x", ["--method", "amgc"]) / "plan.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))
    assert main(["resume", "x"]) == 1
    assert "'x/plan.json' has version 2; this amgc reads version 1." in capsys.readouterr().err
    assert len(figures("x")) == 1


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "x/checkpoint"), 1, "the disk is full"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 1, "no permission for 'x'; change its permissions"),
        (OSError(errno.EROFS, "Read-only file system", "x"), 1, "on a read-only disk"),
        (FileFormatError("'x' is damaged"), 1, "'x' is damaged"),
        (ImportError("timm:NAME needs the extra timm"), 1, "needs the extra timm"),
        (MemoryError(), 1, "out of memory"),
        (ValueError("what, where, what to do"), 2, "what, where, what to do"),
    ],
)
def test_errors_that_the_user_can_fix_are_one_message(error, code, said, monkeypatch, capsys):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Checkpoints, "save", fail)
    assert main(["run", *AMGC, "--quiet", "--out", "x"]) == code
    output = capsys.readouterr().err
    assert output.startswith("amgc: error: ") and said in output and "Traceback" not in output
    monkeypatch.setenv("AMGC_DEBUG", "1")
    assert main(["run", *AMGC, "--quiet", "--out", "y"]) == code
    assert "Traceback" in capsys.readouterr().err


def test_missing_weights_are_one_message(monkeypatch, capsys):
    def offline(*_: object, **__: object) -> None:
        raise RuntimeError("no network")

    timm = ModuleType("timm")
    vars(timm).update(is_model=lambda name: True, create_model=offline)
    monkeypatch.setitem(sys.modules, "timm", timm)
    assert main(["run", "digits", "--method", "amgc", "--features", "timm:resnet18", "--dry-run"]) == 1
    output = capsys.readouterr().err
    assert output.startswith("amgc: error: timm's weights of resnet18 could not be downloaded (no network)")
    assert "--features.weights FILE" in output and "--features.no-pretrained" in output


@pytest.mark.parametrize("bug", [AssertionError("bug"), AttributeError("bug"), KeyError("bug"), TypeError("bug")])
def test_a_bug_keeps_its_traceback(bug, monkeypatch):
    def fail(*_: object) -> None:
        raise bug

    monkeypatch.setattr(Checkpoints, "save", fail)
    with pytest.raises(type(bug)):
        main(["run", *AMGC, "--quiet", "--out", "x"])


def test_under_torchrun_a_folder_must_be_named(monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert main(["run", *AMGC]) == 2
    assert "--out FOLDER" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["methods", "data", "features", "presets"])
def test_a_list_has_a_line_for_each(what, capsys):
    assert main(["list", what]) == 0
    short = capsys.readouterr().out
    assert {"methods": "finetune", "data": "cifar100", "features": "resnet18", "presets": "digits"}[what] in short
    assert main(["list", what, "-v"]) == 0
    assert len(capsys.readouterr().out) > len(short)


def test_help_lists_and_tables_import_nothing_heavy():
    assert main(["run", *AMGC, "--quiet", "--out", "x"]) == 0
    commands = [["--help"], ["--version"], ["run", "--help"], ["resume", "--help"], ["show", "--help"], ["show", "x"]]
    commands += [["table", "--help"], ["table", "1", "x"], ["report", "--help"], ["report", "x"]]
    commands += [[name, "--help"] for name in ("learn", "predict", "forget", "merge", "info", "evaluate", "model")]
    commands += [["list", what] for what in ("methods", "data", "features", "presets")]
    program = f"""
import sys
sys.path.insert(0, {str(Path(amgc.__file__).parents[1])!r})
from amgc.cli.main import main
for command in {commands!r}:
    assert main(command) == 0
    heavy = {{"torch", "sklearn", "lightning_fabric", "matplotlib"}} & set(sys.modules)
    assert not heavy, (command, heavy)
    assert command[0] not in ("run", "resume") or "typeguard" not in sys.modules, "it takes as long to import as tyro"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_run_that_logs_continues_to_log_and_another_can_begin_to(stopped):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    logs, plain = stopped("logs", ["--method", "amgc", "--log", "tensorboard"]), stopped("plain", ["--method", "amgc"])
    assert main(["resume", "logs", "--quiet"]) == 0
    assert main(["resume", "plain", "--quiet", "--log", "tensorboard"]) == 0
    for folder in (logs, plain):
        events = accumulator.EventAccumulator(str(folder / "tensorboard")).Reload()
        assert [event.value for event in events.Scalars("task")] == [1, 2]
    assert figures(logs) == figures(plain)


PARSERS = """
import sys
from importlib import import_module

import tyro

from amgc.cli.main import COMMANDS
from amgc.cli.tyro_flags import without_typeguard

for name in sys.argv[1:]:
    module, function = COMMANDS[name][0].split(".")
    tyro.extras.get_parser(without_typeguard(getattr(import_module(f"amgc.cli.{module}"), function)))
    print(name, "typeguard" in sys.modules)
"""


def test_short_commands_do_not_import_typeguard():
    """tyro checks defaults with it; the import takes longer than that of tyro."""
    names = ("info", "forget", "predict", "learn", "sort")
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", PARSERS, *names], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == [f"{name} False" for name in names]
