from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli.helpers import TINY

from amgc.cli.main import main


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "x"
    assert main(["run", *TINY, "--method", "amgc", "finetune", "--quiet", "--out", str(folder)]) == 0
    return folder


def test_a_report_of_real_runs_has_every_section(runs, capsys):
    assert main(["report", str(runs), "-o", "page.html"]) == 0
    assert capsys.readouterr().out.startswith("Report: page.html (")
    page = Path("page.html").read_text()
    for kind in (
        "results",
        "accuracy",
        "matrix",
        "forgetting",
        "balance",
        "confusion",
        "margins",
        "plane",
        "resources",
        "runs",
    ):
        assert f'class="{kind}"' in page, kind
    assert main(["report", str(runs)]) == 0 and Path("report.html").exists()


def test_a_report_does_not_import_torch(runs):
    code = "import sys; from amgc.cli.main import main; "
    code += f"assert main(['report', {str(runs)!r}]) == 0 and not {{'torch', 'numpy', 'matplotlib'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "specify at least one folder"),
        (["nowhere"], 2, "there is no folder 'nowhere'"),
        (["RUNS", "-o", "."], 2, "'.' is a folder; specify a file in it: -o report.html"),
        (["RUNS", "--section", "no.py"], 2, "there is no file 'no.py' with a section"),
        (["RUNS", "-o", "no/such/page.html"], 2, "there is no folder 'no/such'"),
    ],
)
def test_wrong_input_is_reported(arguments, code, said, runs, capsys):
    assert main(["report", *[str(runs) if word == "RUNS" else word for word in arguments]]) == code
    assert said in capsys.readouterr().err


def test_a_page_that_cannot_be_written_leaves_the_old_one(runs, monkeypatch, capsys):
    Path("report.html").write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "report.html")

    monkeypatch.setattr(Path, "write_text", full)
    assert main(["report", str(runs)]) == 1
    assert "the disk is full" in capsys.readouterr().err
    assert Path("report.html").read_text() == "old" and [path.name for path in Path().iterdir()] == ["report.html"]


def test_a_damaged_run_is_reported_and_left_out(runs, capsys):
    shutil.copytree(runs, "copy")
    Path("copy/finetune/metrics.jsonl").write_text("nonsense\n")
    assert main(["report", "copy"]) == 0
    output = capsys.readouterr()
    assert "skipped: copy/finetune/metrics.jsonl, line 1 is damaged" in output.err and "Report: report.html" in output.out
    assert "copy/finetune/metrics.jsonl" in Path("report.html").read_text()
