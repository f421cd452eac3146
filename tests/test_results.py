"""The pages with measured figures are up to date, and the parsers of benchmarks/results.py read samples correctly."""

from __future__ import annotations

import doctest
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SAMPLE = """command: python benchmarks/sample.py --only T = 10
commit:  822eb0a

first, T = 10: LA, AIA, %
  amgc                                13.1  31.5 100.0   (822eb0a)
  amgc-freeze                         12.2  31.5  44.6   --freeze --margin 0.4 (822eb0a)
  rate 1e-4                          3 of 10 tasks; then its loss diverged

first, T = 20: LA, AIA, %
  amgc                                 6.6  22.4  54.2   (822eb0a)   paper: 30.6 / 42.5
  size             529,416 bytes a class   LA 39.75   -19.24
  gap: 1.4e-02   (floor 8)

                     LA           AIA          paper        runs, commit
fetril                23.5 ± 1.0   38.6 ± 1.4  32.7 / 49.4  3, 78bf6f5
"""


@pytest.fixture(scope="module")
def modules() -> Iterator[tuple[ModuleType, ModuleType]]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("_kept"), importlib.import_module("results")
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_the_pages_are_what_the_script_makes_of_the_kept_files(modules) -> None:
    for path, text in modules[1].pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is not up to date: run python benchmarks/results.py"


def test_the_examples_of_the_parsers_hold(modules) -> None:
    for module in (*modules, *(importlib.import_module(name) for name in ("_scale", "_bench_runs"))):
        failed, tried = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
        assert tried and not failed


def test_a_rows_figures_are_read_as_they_were_printed(modules) -> None:
    kept = modules[0].Kept(SAMPLE)
    assert kept.numbers("amgc", "T = 10") == ["13.1", "31.5", "100.0"]  # the commit is no number
    assert kept.numbers("amgc", "T = 20") == ["6.6", "22.4", "54.2", "30.6", "42.5"]
    assert kept.numbers("amgc-freeze") == ["12.2", "31.5", "44.6", "0.4"]
    assert kept.numbers("size") == ["529,416", "39.75", "-19.24"]
    assert kept.numbers("gap") == ["1.4e-02", "8"]
    assert kept.fields("fetril") == ["23.5 ± 1.0", "38.6 ± 1.4", "32.7 / 49.4", "3, 78bf6f5"]
    assert kept.find(r"floor (\d+)") == "8"


@pytest.mark.parametrize(
    "ask",
    [
        lambda kept: kept.row("amgc"),  # two of that name
        lambda kept: kept.row("amgc", "T = 30"),
        lambda kept: kept.row("amg"),
        lambda kept: kept.row("amgc", "LA, AIA"),  # two such paragraphs
        lambda kept: kept.find(r"T = (\d+)"),
    ],
)
def test_what_is_missing_or_ambiguous_is_an_error_and_no_figure(modules, ask) -> None:
    with pytest.raises(LookupError, match=r"the text has [02]"):
        ask(modules[0].Kept(SAMPLE))


def test_the_readmes_table_has_the_kept_figures(modules, monkeypatch) -> None:
    results = modules[1]
    row = {"filters": "2400", "LA": "61.6", "AIA": "70.1", "seconds": "181", "peak GB": "5.0"}
    monkeypatch.setattr(results, "fast", lambda filters: row)
    lines = ["800 filters, T = 10: LA, AIA", "  amgc   56.2  65.9   (abc)", "  lda   55.0  64.0   (abc)"]
    monkeypatch.setattr(results, "kept", lambda name: modules[0].Kept("\n".join(lines)))
    place = "<!-- Made by benchmarks/results.py -->\nstale\n<!-- End -->\n"
    made = results.readme(f"before\n{place}after\n")
    assert "| the paper's AMGC | 36.2 | 51.7 |" in made and "stale" not in made
    assert (
        "| **ours, 2,400 filters** | **61.6** | **70.1** | **no training; 4 minutes in all, two CPU cores, 5.0 GB** |" in made
    )
    assert "| plain `lda` on the same 800 filters | 55.0 | 64.0 |" in made
    assert results.headline_plot().count("<rect") == 8
    with pytest.raises(LookupError, match=r"README.md has 2 places"):
        results.readme(2 * place)
    lines += ["", "best", "  filters  LA    AIA   seconds  peak GB", "  4000     77.7  88.8  601      6.0"]
    assert (
        "| **ours, `best-cifar100-t10`** | **77.7** | **88.8** | **small networks, trained on task 1 only; 11 minutes"
        in results.readme(place)
    )


def test_check_says_which_page_is_stale(modules, monkeypatch, tmp_path, capsys) -> None:
    results = modules[1]
    page = tmp_path / "page.md"
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "pages", lambda: {page: "new\n"})
    page.write_text("old\n")
    monkeypatch.setattr(sys, "argv", ["results.py", "--check"])
    assert results.main() == 1 and "page.md: not up to date" in capsys.readouterr().out and page.read_text() == "old\n"
    monkeypatch.setattr(sys, "argv", ["results.py"])
    assert results.main() == 0 and page.read_text() == "new\n"
    monkeypatch.setattr(sys, "argv", ["results.py", "--check"])
    assert results.main() == 0


def test_the_bench_merges_runs_of_several_machines(modules, monkeypatch, tmp_path, capsys) -> None:
    bench, runs = importlib.import_module("bench"), importlib.import_module("_bench_runs")

    def made(method: str, seed: int, la: str, commit: str = "abc") -> Any:
        return runs.Run(method, 10, seed, la, "30.0", "20.0", "10.0", "1.0", commit)

    kept = [
        made("lda", 1993, "20.0"),
        made("lda", 1994, "99.9"),
        made("ncm", 1993, "10.0", "changed"),
        made("acil", 1993, "25.0"),
    ]
    (tmp_path / "bench.txt").write_text(f"command: x\n\nT = 10\n\n{runs.written(kept)}\n")
    own = [SimpleNamespace(finished=True, run=made("lda", 1994, "22.00", "def")), SimpleNamespace(finished=False)]
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    monkeypatch.setattr(bench, "find_runs", lambda out: own)
    monkeypatch.setattr(bench, "finished", lambda record: record.run)
    monkeypatch.setattr(bench, "settings", lambda method, commit="": commit == "changed")
    bench.show(tmp_path, ("lda", "ncm", "acil"))
    printed = capsys.readouterr()
    ten = modules[0].Kept(printed.out).table("T = 10\n")
    assert [(row["method"], row["LA"], row["runs, commits"]) for row in ten] == [
        ("lda", "21.0 ± 1.4", "2, abc, def"),
        ("ncm", "–", "not run"),
        ("acil", "25.0", "1, abc"),
    ]
    assert {run.key: run.la for run in runs.read(printed.out)} == {
        ("lda", 10, 1993): "20.0",
        ("lda", 10, 1994): "22.00",
        ("acil", 10, 1993): "25.0",
    }
    assert "ncm, T = 10: left out; its settings have changed since changed" in printed.err


def test_the_benchs_page_says_who_is_ahead_and_what_is_not_told_apart(modules) -> None:
    runs = importlib.import_module("_bench_runs")
    las = {"acil": (25, 26, 27), "sdc": (24, 27, 26), "ncm": (10, 11, 13), "joint": (60, 60, 60), "efc": (40,)}
    three = [
        runs.Run(name, 10, seed, str(la), "0", "0", "0", "0", "abc")
        for name, each in las.items()
        for seed, la in enumerate(each)
    ]
    text = runs.decided(three, 10)
    assert "`acil` has the highest LA, 26.0 ± 1.0 %" in text and "not told apart from it: `sdc`." in text
    assert "`ncm`, 14.7 points (25.4 standard deviations)" in text and "efc" not in text and "joint" not in text
    assert "No two methods" in runs.decided(three, 20)
    importlib.import_module("xml.etree.ElementTree").fromstring(modules[1].bench_plot(three, (10, 20)))


def test_imagenets_time_follows_from_the_measured_points(modules, monkeypatch, tmp_path) -> None:
    scale = importlib.import_module("_scale")
    solves = {1000: "3", 3000: "9", 10000: "30"}  # e is 1
    row = "update 1 s   solve {} s   0 iterations   merge 0.2 ms/class   peak 2.0 GB   disk 9.0 MB   (abc, 1 thread, load 2.0)"
    lines = [
        "== classes: samples",
        *(f"  shared d=1280 K={count}   {row.format(solves[count])}" for count in (10000, 3000, 1000)),
    ]
    texts = {"scale_classes": "\n".join(lines), "scale_workers": "== workers\n  2 workers   100.0 images/s (99.0 to 101.0)"}
    monkeypatch.setattr(scale, "kept", lambda name: modules[0].Kept(texts[name]))
    monkeypatch.setattr(scale, "RESULTS", tmp_path)
    assert not scale.points("shared", 1280) and not scale.estimates()
    for name in texts:
        (tmp_path / f"{name}.txt").touch()
    points = scale.points("shared", 1280)
    assert [point.classes for point in points] == [1000, 3000, 10000] and not scale.points("shared", 128)
    assert points[0].fields == ("1 s", "3 s", "0.2 ms", "2.0 GB", "9.0 MB", "abc, 1 thread, load 2.0")
    assert scale.exponent(points, "solve") == pytest.approx(1, abs=0.01) and scale.exponent(points[:1], "solve") is None
    assert [(form, kind, counts) for form, _, kind, counts, *_ in scale.exponents()] == [
        ("shared", "closed form", [1000, 3000, 10000])
    ]
    small, large = scale.estimates()
    assert (small.encode, small.solve, small.present) == (pytest.approx(12811.67), 3, 1000)
    assert small.merge == pytest.approx(128.1167 * 1000 * 0.0002)
    assert small.hours(1) == pytest.approx((12811.67 + 3) / 3600) and small.hours(1000) == pytest.approx(
        (25.62 + 3) / 3600, rel=1e-3
    )
    assert large.solve == pytest.approx(30 * 2.1841, rel=0.02) and large.present == 8024
