"""Every example and command in the documentation is run; `make check` and `make test` by `.ci/run` itself."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from amgc.cli.main import COMMANDS
from amgc.report import find_runs

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


def commands(page: Path) -> list[list[str]]:
    """The `amgc` lines of a page's shell blocks, in order, without their comments."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines() if line.startswith("amgc ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_the_commands_on_a_page_run_one_after_another(page, tmp_path):
    """All of them, in one folder. Those on CIFAR-100 only measure their cost, and only where its files are at hand."""
    draw_photos(tmp_path / "photos")
    draw_photos(tmp_path / "more", ("fox", "owl"), levels=(50, 127))
    draw_photos(tmp_path / "theirs", ("hen", "pig"), levels=(25, 75))
    for block in blocks(page, "python"):
        if name := re.match(r"# (\w+\.py)\n", block):  # a file, says its first line
            (tmp_path / name[1]).write_text(block)
    cifar = cifar_folder()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "AMGC_CACHE": str(tmp_path / "cache"), "AMGC_DATA": str(cifar or "")}
    for arguments in commands(page):
        if any("cifar100" in argument for argument in arguments):
            if cifar is None:
                continue
            arguments = [*arguments, "--dry-run"]
        command = [sys.executable, "-W", "error", "-m", "amgc", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, env=environment)
        assert done.returncode == 0, f"amgc {' '.join(arguments)}: {done.stdout[-500:]} {done.stderr[-2000:]}"
    if page.name == "README.md":
        check_what_the_picture_shows(tmp_path / "runs/digits")
    if page.name == "tutorial.md":
        check_the_exported_model(page, tmp_path)
        if "serve" in COMMANDS:
            check_the_served_model(page, tmp_path)


def check_what_the_picture_shows(folder: Path) -> None:
    """Fine-tuning forgets, AMGC does not."""
    accuracy = {run.method: run.metrics for run in find_runs(folder)}
    assert accuracy["finetune"].last_accuracy < 0.4 and accuracy["finetune"].first_task_accuracy[-1] < 0.1
    assert accuracy["amgc"].last_accuracy > 0.85 and accuracy["amgc"].first_task_accuracy[-1] > 0.8
    assert accuracy["joint"].last_accuracy > 0.95
    assert (folder / "accuracy.png").stat().st_size > 10_000


def check_the_exported_model(page: Path, folder: Path) -> None:
    """The example answers as `amgc predict` does, with numpy, Pillow and onnxruntime alone."""
    assert len(commands(page)) + len(blocks(page, "console")) == 10
    (example,) = blocks(page, "py")
    assert len([line for line in example.splitlines() if line.strip() and not line.startswith("#")]) == 10
    alone = "import sys; sys.modules['amgc'] = sys.modules['torch'] = None\n"  # to import them is an error
    (folder / "classify.py").write_text(alone + example)
    photos = [
        str(sorted((folder / place).glob("*.png"))[0].relative_to(folder))
        for place in ("photos/test/cat", "photos/test/dog", "more/test/fox", "more/test/owl")
    ]
    Image.open(folder / photos[0]).resize((900, 700)).save(folder / "photo.jpg")  # decoded at a fraction of its size
    photos.append("photo.jpg")
    answers = [json.loads(line) for line in run("-m", "amgc", "predict", "both", *photos, "--json", cwd=folder).splitlines()]
    for photo, answer in zip(photos, answers, strict=True):
        name, share = run("classify.py", photo, cwd=folder).split()
        assert (photo, name) == (answer["source"], answer["answer"])
        assert float(share) == pytest.approx(answer["classes"][0]["probability"], abs=1e-5)


def check_the_served_model(page: Path, folder: Path) -> None:
    """The page's own command, at a free port, answers and stops at Ctrl-C."""
    (block,) = blocks(page, "console")
    command = shlex.split(block.splitlines()[0].removeprefix("$ amgc "), comments=True)
    server = subprocess.Popen(
        [sys.executable, "-m", "amgc", *command, "--port", "0"], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        address = next(found[0] for line in server.stdout if (found := re.search(r"http://[\w.:]+", line)))
        with urllib.request.urlopen(f"{address}/api/health", timeout=60) as answer:
            assert answer.status == 200
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=60) == 0
    finally:
        server.kill()
        server.wait()


def draw_photos(folder: Path, kinds: tuple[str, str] = ("cat", "dog"), levels: tuple[int, int] = (0, 100)) -> None:
    """What the pages call `photos`, `more` and `theirs`: pictures of two kinds, of different sizes."""
    drawn = np.random.RandomState(0)
    for number in range(48):
        kind, size = kinds[number % 2], 40 + number
        pixels = drawn.randint(0, 128, (size, 60, 3), dtype=np.uint8) + np.uint8(levels[number % 2])
        path = folder / ("test" if number >= 40 else "train") / kind / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    rows = [f"{path.relative_to(folder).as_posix()},{path.parent.name}" for path in sorted(folder.glob("*/*/*.png"))]
    (folder / "labels.csv").write_text("\n".join(["file,label", *rows]))


def cifar_folder() -> Path | None:
    """Where the official files of CIFAR-100 are, if they are anywhere."""
    folder = os.environ.get("AMGC_DATA")
    return Path(folder) if folder and (Path(folder) / "cifar-100-python").is_dir() else None


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
