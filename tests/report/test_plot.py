"""The plot: a complete file or none, labels that do not overlap, and no change of matplotlib's global state."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import matplotlib.figure
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from amgc.report import plot_accuracy
from amgc.report.style import spread_labels
from amgc.runs import load_run

WriteRun = Callable[..., Path]


def test_a_png_and_an_svg_are_written_by_their_suffix(write_run: WriteRun, tmp_path: Path) -> None:
    run = load_run(write_run("amgc", [2, 1], [[90], [70, 80]]))
    plot_accuracy([run], tmp_path / "accuracy.PNG")
    with Image.open(tmp_path / "accuracy.PNG") as image:
        assert image.format == "PNG"
        assert min(image.size) > 500
    plot_accuracy([run], tmp_path / "accuracy.svg")
    assert xml.etree.ElementTree.parse(tmp_path / "accuracy.svg").getroot().tag.endswith("svg")
    assert {path.name for path in tmp_path.iterdir()} == {"amgc", "accuracy.PNG", "accuracy.svg"}


def test_runs_of_any_length_and_number_are_drawn(write_run: WriteRun, tmp_path: Path) -> None:
    runs = [load_run(write_run(f"method$_{place}", [1] * 3, [[place * 3] * 3] * place)) for place in range(3)]
    runs += [load_run(write_run(f"many{place}", [5] * 20, [[100] * 20] * 20, seed=place)) for place in range(2)]
    plot_accuracy(runs, tmp_path / "accuracy.png")
    plot_accuracy(runs[1:2], tmp_path / "one.png")
    assert (tmp_path / "accuracy.png").stat().st_size > (tmp_path / "one.png").stat().st_size > 0


def test_labels_of_lines_that_end_together_do_not_overlap(
    write_run: WriteRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [load_run(write_run(f"m{place}", [1, 1], [[90], [70, 70]])) for place in range(30)]
    kept: list[matplotlib.figure.Figure] = []
    save = matplotlib.figure.Figure.savefig
    monkeypatch.setattr(
        matplotlib.figure.Figure, "savefig", lambda self, *values, **named: kept.append(self) or save(self, *values, **named)
    )
    plot_accuracy(runs, tmp_path / "accuracy.png")
    boxes = sorted((text.get_window_extent() for text in kept[0].axes[0].texts), key=lambda box: box.y0)
    assert len(boxes) == 30
    assert all(lower.y1 <= upper.y0 for lower, upper in pairwise(boxes))


def test_a_line_is_labelled_with_its_la_or_with_how_far_it_is(
    write_run: WriteRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    save = matplotlib.figure.Figure.savefig

    def keep(self: matplotlib.figure.Figure, *values: object, **named: object) -> None:
        said.extend(text.get_text() for text in self.axes[0].texts)
        save(self, *values, **named)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", keep)
    runs = [load_run(write_run("amgc", [1, 1], [[90], [70, 80]])), load_run(write_run("lwf", [1, 1], [[60]]))]
    plot_accuracy(runs, tmp_path / "accuracy.png")
    assert said == ["amgc  LA 75.0", "lwf  60.0 after 1 of 2 tasks"]


def test_a_failed_plot_leaves_the_old_file_and_nothing_else(
    write_run: WriteRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = load_run(write_run("amgc", [1], [[90]]))
    out = tmp_path / "out"
    out.mkdir()
    (out / "accuracy.png").write_bytes(b"old")

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        plot_accuracy([run], out / "accuracy.png")
    assert [(path.name, path.read_bytes()) for path in out.iterdir()] == [("accuracy.png", b"old")]


def test_a_plot_that_cannot_be_made_says_why(write_run: WriteRun, tmp_path: Path) -> None:
    run = load_run(write_run("amgc", [1], [[90]]))
    with pytest.raises(ValueError, match=r"\.png or \.svg"):
        plot_accuracy([run], tmp_path / "accuracy.gif")
    with pytest.raises(FileNotFoundError, match="create it first"):
        plot_accuracy([run], tmp_path / "nowhere" / "accuracy.png")
    with pytest.raises(ValueError, match="no run has finished a task"):
        plot_accuracy([load_run(write_run("lwf", [1], []))], tmp_path / "accuracy.png")


def test_drawing_imports_no_pyplot(write_run: WriteRun, tmp_path: Path) -> None:
    path = write_run("amgc", [1], [[90]])
    code = (
        "import sys; from amgc.report import *; from amgc.runs import *; "
        f"plot_accuracy([load_run({str(path)!r})], {str(tmp_path / 'a.png')!r}); "
        "print('matplotlib.pyplot' in sys.modules, 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False False\n"


@given(st.lists(st.floats(0, 100), max_size=20), st.floats(0.1, 10))
def test_labels_keep_their_order_and_distance_and_move_only_if_they_must(wanted: list[float], gap: float) -> None:
    found = spread_labels(wanted, gap)
    order = sorted(range(len(wanted)), key=lambda place: (wanted[place], found[place]))
    placed = [found[place] for place in order]
    assert all(after - before >= gap - 1e-6 for before, after in pairwise(placed))
    if all(wanted[after] - wanted[before] >= gap for before, after in pairwise(order)):
        assert found == wanted
    assert sum(found) == pytest.approx(sum(wanted), abs=1e-6)  # no class is favoured
