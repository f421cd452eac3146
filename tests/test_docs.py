"""Every example in the documentation is run; `make run` as its script, `make check` and `make test` by `.ci/run` itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), ROOT / "CONTRIBUTING.md"])
SCRIPTS = sorted(path for path in (ROOT / "benchmarks").glob("[!_]*.py"))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_the_examples_on_a_page_run_one_after_another(page, tmp_path):
    (tmp_path / "example.py").write_text("\n".join(blocks(page, "python")))
    run("-W", "error", "example.py", cwd=tmp_path)


def test_the_readmes_figures_are_what_its_example_prints(tmp_path):
    (tmp_path / "example.py").write_text(blocks(ROOT / "README.md", "python")[0])
    printed = run("example.py", cwd=tmp_path)
    assert "[0 1 2 3 4 5 6 7 8 9]" in printed
    claimed = re.search(r"classifier\.score\(.*# (0\.\d+)", (ROOT / "README.md").read_text())
    assert claimed and claimed[1] in printed


def test_the_example_shows_that_amgc_does_not_forget(tmp_path):
    printed = run(str(ROOT / "examples/digits.py"), "--plot", "digits.png", cwd=tmp_path)
    amgc, new_only, all_data = map(float, re.search(r"LA +([\d.]+) +([\d.]+) +([\d.]+)", printed).groups())
    assert amgc > 94 and new_only < 30 and abs(amgc - all_data) < 3
    assert (tmp_path / "digits.png").stat().st_size > 10_000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_in_the_docs_exists(page):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    assert set(re.findall(r"\bmake ([a-z]+)\b(?=[^a-z]*`|  +#)", page.read_text())) <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_benchmark_starts(script):
    """Those with --quick run it through; the others at least say what they do."""
    text = script.read_text()
    if "--quick" in text:
        assert "command: " in run(str(script), "--quick", cwd=script.parent)
    else:
        assert script.name in text  # the usage line at its top
