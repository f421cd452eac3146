"""Run every example and command of the documentation, with little training. `.ci/run` itself runs the `make` targets."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import forked
import numpy as np
import pytest
from PIL import Image

import amgc
import amgc.methods
from amgc.cli.main import COMMANDS
from amgc.runs import load_run

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), ROOT / "CONTRIBUTING.md"])
SCRIPTS = sorted(path for path in (ROOT / "benchmarks").glob("[!_]*.py"))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def often(pages: list[Path]) -> list:
    """Mark all pages but README.md as slow. Most of their content has other tests."""
    return [pytest.param(page, id=page.name, marks=() if page.name == "README.md" else pytest.mark.slow) for page in pages]


@pytest.mark.parametrize("page", often([page for page in PAGES if blocks(page, "python")]))
def test_the_examples_on_a_page_run_one_after_another(page, tmp_path):
    (tmp_path / "example.py").write_text("\n".join(blocks(page, "python")))
    printed = forked.script(Path("example.py"), folder=tmp_path)
    if page.name == "README.md":
        check_the_readmes_figures(printed)


def check_the_readmes_figures(printed: str) -> None:
    assert "[0 1 2 3 4 5 6 7 8 9]" in printed
    claimed = re.search(r"classifier\.score\(.*# (0\.\d+)", (ROOT / "README.md").read_text())
    assert claimed and claimed[1] in printed


def commands(page: Path) -> list[list[str]]:
    """Return the `amgc` lines of a page's shell blocks, in order, without comments."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines() if line.startswith("amgc ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def short(arguments: list[str]) -> list[str]:
    """Shorten a command: one epoch per task if it trains, two steps of small networks, only the cost estimate on CIFAR-100."""
    text = " ".join(arguments)
    if "cifar100" in text:
        return [*arguments, "--dry-run"]
    if "best-" in text:
        return [*arguments, "--features.steps", "2"]
    if arguments[0] not in ("run", "compare") or any(word in text for word in (".epochs", "patches", "fast-", "--help")):
        return arguments
    return [*arguments, "--first.epochs", "1", "--later.epochs", "1"]


def run_commands(given: list[list[str]], folder: Path, **environment: str) -> None:
    """`amgc` with these arguments, one after another, in one process."""
    forked.commands(given, folder, {"OMP_NUM_THREADS": "1", "AMGC_CACHE": str(folder / "cache")} | environment)


@pytest.mark.parametrize("page", often([page for page in PAGES if commands(page)]))
def test_the_commands_on_a_page_run_one_after_another(page, tmp_path):
    """All run in one folder. Commands on CIFAR-100 run only if its files are available."""
    draw_photos(tmp_path / "photos")
    draw_photos(tmp_path / "more", ("fox", "owl"), levels=(50, 127))
    draw_photos(tmp_path / "theirs", ("hen", "pig"), levels=(25, 75))
    draw_vectors(tmp_path)
    for block in blocks(page, "python"):
        if name := re.match(r"# (\w+\.py)\n", block):  # its first line names a file
            (tmp_path / name[1]).write_text(block)
    cifar = cifar_folder()
    given = [short(words) for words in commands(page) if cifar or "cifar100" not in " ".join(words)]
    run_commands(given, tmp_path, AMGC_DATA=str(cifar or ""))
    if page.name == "README.md":
        assert (tmp_path / "runs/digits/accuracy.png").stat().st_size > 10_000
    if page.name == "tutorial.md":
        check_the_exported_model(page, tmp_path)
        if "serve" in COMMANDS:
            check_the_served_model(page, tmp_path)


def check_the_exported_model(page: Path, folder: Path) -> None:
    """Check that the example predicts as `amgc predict` does, with only numpy, Pillow and onnxruntime."""
    assert len(commands(page)) + len(blocks(page, "console")) == 12
    (example,) = blocks(page, "py")
    assert len([line for line in example.splitlines() if line.strip() and not line.startswith("#")]) == 10
    alone = "import sys; sys.modules['amgc'] = sys.modules['torch'] = None\n"  # importing them is an error
    (folder / "classify.py").write_text(alone + example)
    photos = [
        str(sorted((folder / place).glob("*.png"))[0].relative_to(folder))
        for place in ("photos/test/cat", "photos/test/dog", "more/test/fox", "more/test/owl")
    ]
    Image.open(folder / photos[0]).resize((900, 700)).save(folder / "photo.jpg")  # decoded at a fraction of its size
    photos.append("photo.jpg")
    printed = forked.commands([["predict", "both", *photos, "--json"]], folder, {})
    answers = [json.loads(line) for line in printed.splitlines()]
    for photo, answer in zip(photos, answers, strict=True):
        name, share = forked.script(Path("classify.py"), photo, folder=folder).split()
        assert (photo, name) == (answer["source"], answer["answer"])
        assert float(share) == pytest.approx(answer["classes"][0]["probability"], abs=1e-5)


def check_the_served_model(page: Path, folder: Path) -> None:
    """Check that the page's command, on a free port, responds and stops at Ctrl-C."""
    (block,) = blocks(page, "console")
    command = shlex.split(block.splitlines()[0].removeprefix("$ amgc "), comments=True)
    server = subprocess.Popen(
        [sys.executable, "-m", "amgc", *command, "--port", "0"], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        address = next(found[0] for line in server.stdout if (found := re.search(r"http://[\w.:]+", line)))
        with urllib.request.urlopen(f"{address}/api/health", timeout=300) as answer:
            assert answer.status == 200
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=300) == 0
    finally:
        server.kill()
        server.wait()


def draw_photos(folder: Path, kinds: tuple[str, str] = ("cat", "dog"), levels: tuple[int, int] = (0, 100)) -> None:
    """Write the folders that the pages call `photos`, `more` and `theirs`: images of two classes in different sizes."""
    drawn = np.random.RandomState(0)
    for number in range(48):
        kind, size = kinds[number % 2], 40 + number
        pixels = drawn.randint(0, 128, (size, 60, 3), dtype=np.uint8) + np.uint8(levels[number % 2])
        path = folder / ("test" if number >= 40 else "train") / kind / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    rows = [f"{path.relative_to(folder).as_posix()},{path.parent.name}" for path in sorted(folder.glob("*/*/*.png"))]
    (folder / "labels.csv").write_text("\n".join(["file,label", *rows]))


def draw_vectors(folder: Path) -> None:
    """Write the files that docs/embeddings.md calls embeddings.npz and new.npz."""
    drawn, labels = np.random.RandomState(0), np.repeat(["noun", "verb"], 15)
    vectors = drawn.normal(size=(30, 4)) + 3 * (labels == "noun")[:, None]
    np.savez(folder / "embeddings.npz", train_x=vectors[::2], train_y=labels[::2], test_x=vectors[1::2], test_y=labels[1::2])
    np.savez(folder / "new.npz", x=vectors[:3])


@pytest.mark.slow
def test_the_recipe_for_a_network_of_timm_runs(timm, tmp_path):
    """With random weights, and fewer pixels."""
    (recipe,) = blocks(ROOT / "docs/embeddings.md", "py")
    quick = recipe.replace("pretrained=True", "pretrained=False").replace("side = 224", "side = 28")
    assert quick.count("False") == recipe.count("False") + 1 and "side = 28" in quick
    draw_photos(tmp_path / "photos")
    (tmp_path / "recipe.py").write_text(quick)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        names = runpy.run_path("recipe.py")
        dim = names["model"].info().features["dim"]
    assert names["model"].classes == {"cat": 20, "dog": 20} and dim == names["network"].num_features


def cifar_folder() -> Path | None:
    """Return the folder with the official files of CIFAR-100, if $AMGC_DATA has them."""
    folder = os.environ.get("AMGC_DATA")
    return Path(folder) if folder and (Path(folder) / "cifar-100-python").is_dir() else None


def test_every_make_target_in_the_docs_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    named = [name for page in PAGES for name in re.findall(r"\bmake ([a-z-]+)\b(?=[^a-z]*`|  +#)", page.read_text())]
    assert {"test", "test-all", "check"} <= set(named) <= targets


def test_every_link_to_a_file_leads_somewhere():
    links = [(page, target) for page in PAGES for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())]
    assert len(links) > 20
    assert [f"{page.name}: {target}" for page, target in links if not (page.parent / target).exists()] == []


def test_every_page_is_in_the_navigation_of_the_site():
    listed = set(re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M))
    assert {page.name for page in ROOT.glob("docs/*.md")} <= listed, "add the page to `nav` in mkdocs.yml"


def test_the_architecture_page_names_every_module_of_core():
    page = (ROOT / "docs/architecture.md").read_text().partition("## The modules of `core`")[2].partition("\n## ")[0]
    modules = {path.name for path in (ROOT / "src/amgc/core").glob("*.py")} - {"__init__.py"}
    assert set(re.findall(r"`(\w+\.py)`", page)) == modules


def test_the_reference_has_every_public_name():
    listed = re.findall(r"^::: amgc\.(\w+)$", (ROOT / "docs/reference.md").read_text(), flags=re.M)
    assert sorted(listed) == amgc.__all__


def test_the_reference_for_extensions_has_every_name_that_the_examples_import():
    listed = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs/reference-extensions.md").read_text(), flags=re.M)
    assert {f"amgc.methods.{name}" for name in amgc.methods.__all__} <= set(listed)
    imports = re.compile(r"^from (amgc\.(?:methods|data|features|report\.sections)) import (.*)$", flags=re.M)
    for page in ROOT.glob("docs/add-a*.md"):
        for package, names in imports.findall("\n".join(blocks(page, "python"))):
            missing = {f"{package}.{name}" for name in names.split(", ") if name != "option"} - set(listed)
            assert not missing, page.name


@pytest.mark.slow
def test_the_site_builds_and_loads_nothing_from_other_hosts(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr
    pages = {page.name: page.read_text() for page in tmp_path.glob("*.html")}
    assert "AMGCClassifier" in pages["reference.html"] and "runs.plot()" in re.sub(r"<[^>]*>", "", pages["notebook.html"])
    for name, text in pages.items():
        for element in re.findall(r"<(?:script|img|link|iframe)\b[^>]*>", text):
            if 'rel="canonical"' not in element:
                assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", element), f"{name}: {element}"


def shown(cell: dict) -> str:
    """Return the text and HTML that a cell of a notebook shows, without numbers and spaces, which differ between machines."""
    data = [output.get("data", {"text": output.get("text", output["output_type"])}) for output in cell.get("outputs", [])]
    texts = ["".join(value) for each in data for kind, value in sorted(each.items()) if kind.startswith("text")]
    return re.sub(r"[\d.\s─]+", "", "".join(texts))


def test_the_notebook_shows_no_warning_and_no_path_of_a_machine():
    path = ROOT / "docs/notebook.ipynb"
    assert path.stat().st_size < 100_000
    cells = json.loads(path.read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert outputs and all(output["output_type"] != "error" and output.get("name") != "stderr" for output in outputs)
    assert not re.search(r"(?i)warning|/(?:tmp|home|root|work|Users)/|[A-Z]:\\", "".join(map(shown, cells)))


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_it_says(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(ROOT / "docs/notebook.ipynb", as_version=4)
    kept = list(map(shown, notebook.cells))
    cheap = f"import sys; sys.path.append({str(Path(forked.__file__).parent)!r}); import forked; forked.make_cheap()"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(cheap))
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert list(map(shown, notebook.cells))[1:] == kept  # the notebook is committed with its outputs
    finetune, amgc_, joint = (load_run(tmp_path / "runs/digits" / name).metrics for name in ("finetune", "amgc", "joint"))
    assert finetune.last_accuracy < 0.4 and amgc_.last_accuracy > 0.8 and joint.last_accuracy > 0.95, "as on the home page"
    assert finetune.first_task_accuracy[-1] < 0.1 and amgc_.first_task_accuracy[-1] > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("script", [path for path in SCRIPTS if "--quick" in path.read_text()], ids=lambda path: path.stem)
def test_every_benchmark_with_a_quick_version_runs_it(script, tmp_path):
    assert f"command: python benchmarks/{script.name} --quick" in forked.script(script, "--quick", folder=tmp_path)


@pytest.mark.slow
def test_every_benchmark_imports_and_takes_the_flags_that_its_usage_names(tmp_path):
    """Run `--help` of each in one process."""
    code = "import contextlib, io, json, runpy, sys\nsys.path.insert(0, sys.argv[1])\nsaid = {}\n"
    code += "for script in sys.argv[2:]:\n    sys.argv[:] = [script, '--help']\n"
    code += "    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):\n"
    code += "        runpy.run_path(script, run_name='__main__')\n    said[script] = out.getvalue()\nprint(json.dumps(said))\n"
    (tmp_path / "help.py").write_text(code)
    said = json.loads(forked.script(Path("help.py"), str(ROOT / "benchmarks"), *map(str, SCRIPTS), folder=tmp_path))
    assert list(said) == [str(script) for script in SCRIPTS]
    for script in SCRIPTS:
        usage = re.findall(rf"^ +python benchmarks/{script.name}(.*?)(?:  #.*)?$", script.read_text(), flags=re.M)
        assert usage, f"{script.name} does not say how it is called"
        for flag in re.findall(r"--[a-z-]+", " ".join(usage)):
            assert flag in said[str(script)], f"{script.name} {flag}"
