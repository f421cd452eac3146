"""docs/add-a-data-set.md and docs/add-an-extractor.md: one file each, which runs, resumes and does what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import torch
from PIL import Image
from threads import one_thread as one_thread

import amgc
from amgc.cli.main import main
from amgc.cli.progress import Shown
from amgc.data import load
from amgc.data.registry import DATA_SETS
from amgc.features import build
from amgc.features.registry import EXTRACTORS
from amgc.runs import load_run

DOCS = Path(__file__).parents[1] / "docs"
RUN = ["run", "--data", "labelled.py:photos", "--features", "hog.py", "--data.size", "16", "--tasks", "2", "--out", "x"]


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder with the files of the pages, and images of four classes with a table of labels."""
    monkeypatch.chdir(tmp_path)
    for registry in (DATA_SETS, EXTRACTORS):
        monkeypatch.setattr(registry, "entries", registry.all())
    for page, name in (("add-a-data-set", "labelled.py"), ("add-an-extractor", "hog.py")):
        Path(name).write_text(code(page, name))
    drawn = np.random.RandomState(0)
    rows = ["file,label"]
    for number in range(40):
        kind = ("across", "down", "noise", "flat")[number % 4]
        waves = {"across": np.arange(20)[None] % 4 * 60, "down": np.arange(20)[:, None] % 4 * 60, "noise": 0, "flat": 90}[kind]
        pixels = np.zeros((20, 20)) + waves + drawn.randint(0, 200 if kind == "noise" else 20, (20, 20))
        path = Path("photos") / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
        rows.append(f"{path.name},{kind}")
    Path("photos/labels.csv").write_text("\n".join(rows))


def code(page: str, name: str) -> str:
    found = re.search(rf"^```python\n(# {name}\n.*?)^```", (DOCS / f"{page}.md").read_text(), flags=re.M | re.S)
    assert found
    return found[1]


def test_each_is_one_file_of_less_than_fifty_lines() -> None:
    for name in ("labelled.py", "hog.py"):
        assert len(Path(name).read_text().splitlines()) < 50


def test_a_run_on_ones_own_data_and_extractor_is_resumed_in_a_new_process_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_task(self: Shown, *_: Any) -> None:
        self.stop = True

    with monkeypatch.context() as patch:
        patch.setattr(Shown, "end_task", end_task)
        assert main([*RUN, "--method", "lda"]) == 130
    config = json.loads(Path("x/run.json").read_text())["config"]
    here = Path().resolve()
    assert config["data"] == f"{here}/labelled.py:{here}/photos" and config["features"] == f"{here}/hog.py"
    assert config["data_options"] == {"size": 16}
    Path("elsewhere").mkdir()
    resume = ["resume", str(Path("x").resolve()), "--quiet"]
    with pytest.raises(AssertionError, match=r"labelled\.py"):
        forked.commands([resume], here / "elsewhere", {})
    forked.commands([[*resume, "--trust", str(here / "labelled.py"), str(here / "hog.py")]], here / "elsewhere", {})
    assert main([*RUN[:-1], "y", "--method", "lda", "--quiet"]) == 0
    resumed, whole = load_run(Path("x")), load_run(Path("y"))
    assert resumed.finished and resumed.metrics.accuracy == whole.metrics.accuracy
    assert whole.metrics.last_accuracy > 0.7


def test_options_are_flags_with_their_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["run", "labelled.py:photos", "--method", "lda", "--features", "hog.py", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for part in ("--data.test-every INT", "one of this many images", "--features.bins INT", "(default: 9; paper, 6.3)"):
        assert part in text
    assert "--data.root" not in text


def test_errors_are_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["run", "--data", "labelled.py", "--method", "lda"], "labelled.py:PATH"),
        (["run", "--data", "absent.py"], "there is no file"),
        (["run", "--data", "hog.py"], "registers no data set"),
        (["run", "--features", "labelled.py"], "registers no extractor"),
        (["run", "--data", "labelled.py:nowhere", "--method", "lda"], "labels.csv"),
        (["run", "--data", "labelled.py:photos", "--features", "hog.py:x"], "takes no value after a colon"),
    ):
        assert main(arguments) == 2
        output = capsys.readouterr().err
        assert said in output and "Traceback" not in output


def test_in_python_they_are_loaded_and_built_by_path() -> None:
    dataset = load("labelled.py:photos", size=24, test_every=2)
    assert dataset.class_names == ("across", "down", "flat", "noise") and len(dataset.test) == 20
    assert dataset.train.shape == (3, 24, 24)
    assert build("hog.py", image_shape=(1, 8, 8), cell=4).dim == 36


def test_hog_finds_the_direction_of_stripes_whatever_their_brightness() -> None:
    network = build("hog.py", image_shape=(1, 16, 16), bins=8, cell=16)
    stripes = (torch.arange(16) % 4 * 1.0).expand(1, 1, 16, 16)
    for image, expected in ((stripes, 0), (stripes.transpose(2, 3), 4)):
        assert network(image).argmax() == expected
        torch.testing.assert_close(network(image), network(image * 50 + 3), rtol=1e-2, atol=1e-3)


def claimed(before: str) -> float:
    found = re.search(rf"{before} ends at (\d+\.\d) %", (DOCS / "add-an-extractor.md").read_text())
    assert found
    return float(found[1])


def test_the_accuracy_on_the_page_is_that_of_its_command() -> None:
    assert main(["run", "digits", "--method", "lda", "--features", "hog.py", "--out", "hog", "--quiet"]) == 0
    assert round(100 * load_run(Path("hog")).metrics.last_accuracy, 1) == claimed("LDA on these features")


@pytest.mark.slow
def test_a_trained_network_is_less_accurate() -> None:
    assert main(["run", "digits", "--method", "lda", "--out", "convnet", "--quiet"]) == 0
    last = 100 * load_run(Path("convnet")).metrics.last_accuracy
    assert abs(last - claimed("and then frozen, it")) < 1 and last < claimed("LDA on these features")


def test_a_model_names_no_code_but_takes_an_imported_extractor(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"a model cannot use the extractor in 'hog\.py'"):
        amgc.Model.create("m", features="hog.py")
    build("hog.py", image_shape=(3, 32, 32))  # registers it, as `import hog` does
    model = amgc.Model.create("m", features="hog")
    model.learn_all({name: [f"photos/{place + 4 * turn}.png" for turn in range(8)] for place, name in enumerate("abcd")})
    assert model.predict("photos/36.png")[0].label == "a"
    assert amgc.Model.open("m").classes == model.classes
    with pytest.raises(AssertionError, match="needs the extractor 'hog'") as raised:
        forked.commands([["predict", "m", "photos/36.png"]], Path.cwd(), {})
    assert "Traceback" not in str(raised.value)


def test_a_file_of_weights_cannot_make_amgc_run_a_python_file(tmp_path: Path) -> None:
    from amgc import files
    from amgc.features.weights import load_extractor, save_extractor

    network = build("hog.py", image_shape=(3, 32, 32))
    network.name = str(tmp_path / "evil.py")
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    save_extractor(tmp_path / "net.safetensors", network)
    with pytest.raises(files.FileFormatError, match="which amgc does not have"):
        load_extractor(tmp_path / "net.safetensors")
