"""A folder of runs that comes from a stranger makes no command execute a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amgc.cli.jobs.worker import Job, work
from amgc.cli.main import main

EVIL = "from pathlib import Path\nPath('executed').touch()\n"
PLACES = {
    "method": "evil.py",
    "data": "evil.py:photos",
    "features": "evil.py",
}


def changed(run: Path, **config: Any) -> None:
    """Replace values of the config in run.json and plan.json."""
    content = json.loads((run / "run.json").read_text())
    content["config"] |= config
    (run / "run.json").write_text(json.dumps(content))
    content = json.loads((run / "plan.json").read_text())
    for one in content["runs"].values():
        one |= config
    (run / "plan.json").write_text(json.dumps(content))


@pytest.mark.parametrize("plan", [True, False], ids=["with a plan", "without"])
@pytest.mark.parametrize("place", PLACES)
def test_a_python_file_that_a_folder_names_is_not_executed(run, capsys, place, plan):
    Path("evil.py").write_text(EVIL)
    changed(run, **{place: PLACES[place]})
    if not plan:
        (run / "plan.json").unlink()
    for command in (["resume", "run"], ["model", "run", "--out", "new"], ["show", "run"], ["report", "run"]):
        main(command)
    assert not Path("executed").exists()
    assert main(["resume", "run"]) in (1, 2)
    error = capsys.readouterr().err
    assert "'evil.py" in error and "--trust evil.py" in error
    assert main(["model", "run", "--out", "new"]) in (1, 2)
    assert "--trust evil.py" in capsys.readouterr().err and not Path("executed").exists()


def test_a_path_from_home_is_not_executed_either(run, monkeypatch):
    monkeypatch.setenv("HOME", str(Path().resolve()))
    Path("evil.py").write_text(EVIL)
    changed(run, method="~/evil.py")
    assert main(["resume", "run"]) in (1, 2) and main(["model", "run", "--out", "new"]) in (1, 2)
    assert not Path("executed").exists()


def test_a_job_executes_only_the_files_that_it_is_handed(run):
    Path("evil.py").write_text(EVIL)
    changed(run, method=str(Path("evil.py").resolve()))
    assert work(Job(str(run), "log.txt", None, ".", {})) in (1, 2)
    assert not Path("executed").exists()


def test_a_file_that_the_user_names_is_executed_after_its_path_is_printed(run, capsys):
    Path("evil.py").write_text("print('now')\n" + EVIL)
    changed(run, method="evil.py")
    assert main(["resume", "run", "--trust", "evil.py"]) in (1, 2)  # it has no method
    shown = capsys.readouterr()
    assert Path("executed").exists() and f"executing {Path('evil.py').resolve()}" in shown.err
    assert "registers no method" in shown.err
    Path("executed").unlink()
    Path("evil.py").write_text(EVIL + "# changed since\n")
    assert main(["resume", "run"]) in (1, 2) and not Path("executed").exists()


def test_what_is_trusted_is_python(run, capsys):
    assert main(["resume", "run", "--trust", "evil.txt"]) == 2
    assert "evil.txt" in capsys.readouterr().err


@pytest.mark.parametrize(
    "setting", ['methods = ["evil.py"]', 'data = "evil.py:photos"', 'features = "evil.py"', '[only."evil.py"]']
)
def test_a_python_file_that_a_preset_names_is_executed_only_if_the_user_names_it(tmp_path, monkeypatch, capsys, setting):
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text(EVIL)
    Path("own.toml").write_text(f"{setting}\n")
    assert main(["run", "own.toml", "--dry-run"]) == 2
    assert "--trust evil.py" in capsys.readouterr().err and not Path("executed").exists()
    main(["run", "own.toml", "--dry-run", "--trust", "evil.py"])
    assert Path("executed").exists() and f"executing {Path('evil.py').resolve()}" in capsys.readouterr().err
