"""The HTML page: values against those computed by hand, well-formed HTML, and escaped names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from report.markup import Node, cells, parse
from report.observations import observe

from amgc.report import sections as package
from amgc.report.page import write_report
from amgc.report.sections import sections
from amgc.runs import DEFINITIONS, RunError

WriteRun = Callable[..., Path]
DOCS = Path(__file__).parents[2] / "docs" / "add-a-report-section.md"
EVIL = ["<script>alert(1)</script>", "🦊 fox", "حصان", "x" * 300, 'a"b&c', "\x1b[31m\u202ered", "two\nlines"]


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., Node]:
    def make(*folders: Path | str, sections: Sequence[Path] = ()) -> Node:
        write_report(folders, tmp_path / "report.html", sections)
        return parse((tmp_path / "report.html").read_text())

    return make


def section(page: Node, kind: str) -> Node:
    return page.one("section", class_=kind)


def steady(tasks: int, share: int = 90) -> list[list[int]]:
    return [[share] * (task + 1) for task in range(tasks)]


def two_seeds(write_run: WriteRun) -> list[Path]:
    return [
        observe(write_run("amgc", [2, 1], [[90], [70, 80]], folder="one", seed=1)),
        observe(write_run("amgc", [2, 1], [[80], [60, 90]], folder="two", seed=2)),
    ]


def test_the_table_has_mean_and_deviation_over_the_seeds(write_run: WriteRun, report: Callable[..., Node]) -> None:
    """LA 220/3 and 70, AIA (90 + 220/3)/2 and 75, forgetting 20 and 20, first task 70 and 60; deviations with n - 1."""
    results = section(report(*two_seeds(write_run)), "results")
    assert cells(results.one("table")) == [
        ["method", "LA", "AIA", "forgetting", "first task", "runs"],
        ["amgc", "71.7 ± 2.4", "78.3 ± 4.7", "20.0 ± 0.0", "65.0 ± 7.1", "2 runs"],
    ]
    for name in ("LA", "AIA", "forgetting", "first task"):
        assert DEFINITIONS[name] in results.text


def test_the_other_sections_have_the_numbers_of_the_runs(write_run: WriteRun, report: Callable[..., Node]) -> None:
    page = report(*two_seeds(write_run))
    after = [["after", "classes seen", "amgc"], ["T1", "2", "85.0 ± 7.1"], ["T2", "3", "71.7 ± 2.4"]]
    assert cells(section(page, "accuracy").one("table")) == after
    matrix = section(page, "matrix")
    assert cells(matrix.one("table")) == [["after", "task 1", "task 2"], ["T1", "85.0", ""], ["T2", "65.0", "85.0"]]
    assert [cell.text for cell in matrix.all("text", class_="in")] == ["85", "65", "85"]
    old_new = [["after", "old", "new"], ["T1", "–", "85.0 ± 7.1"], ["T2", "65.0 ± 7.1", "85.0 ± 7.1"]]
    assert cells(section(page, "balance").one("table")) == old_new
    assert cells(section(page, "forgetting").one("table"))[1] == ["amgc", "20.0 ± 0.0", "-20.0 ± 0.0"]
    resources = cells(section(page, "resources").one("table"))[1]  # two tasks of 10, 0.5 and 1 s; 524 MB; 1,024 B a class
    assert resources == ["amgc", "23 s", "20 s", "1.0 s", "2.0 s", "524.3 MB", "1.0 kB", "3.1 kB"]


def test_confusions_and_margins_are_those_of_the_first_seed(write_run: WriteRun, report: Callable[..., Node]) -> None:
    """30 of 100 images of both old classes and 20 of the new one are taken for the next class; margins 0.1 and 0.2."""
    page = report(*two_seeds(write_run))
    confusion = section(page, "confusion")
    mistakes, every = confusion.all("table")
    assert cells(mistakes)[1:] == [
        ["class 0", "class 1", "30", "30.0"],
        ["class 1", "class 2", "30", "30.0"],
        ["class 2", "class 0", "20", "20.0"],
    ]
    assert cells(every)[1] == ["class 0", "70.0", "class 1", "30.0"]
    assert [cell.text for cell in confusion.all("text", class_="in")] == ["70", "30", "70", "30", "20", "80"]
    assert "seed 1" in confusion.text and "seed 2" not in confusion.text
    margins = section(page, "margins")
    assert cells(margins.one("table"))[1:] == [
        ["class 0", "0.1", "class 2", "0.3"],
        ["class 1", "0.2", "class 2", "0.6"],
        ["class 2", "0", "–", "0"],
    ]
    bars = [bar.attributes["style"] for bar in margins.all("span", class_="t0")]
    assert bars == ["width:50.00%", "width:100.00%", "width:0.00%"]


def test_a_run_has_its_exact_settings(write_run: WriteRun, report: Callable[..., Node]) -> None:
    runs = section(report(write_run("amgc", [2, 1], [[90], [70, 80]], seed=7)), "runs")
    facts = {pair.one("dt").text: pair.one("dd").text for pair in runs.one("dl").all("div")}
    assert facts["hyper.margin"] == "0.4" and facts["seed"] == "7" and facts["commit"] == "abc1234"
    assert facts["versions"] == "amgc 0.1.0, torch 2.13.0" and facts["command"] == "amgc run --method amgc"
    assert facts["classes, in order of arrival"] == "class 0, class 1, class 2"


def test_the_papers_figures_stand_beside_ours(write_run: WriteRun, report: Callable[..., Node], tmp_path: Path) -> None:
    for name in ("amgc", "joint"):
        write_run(name, [2, 1], [[90], [70, 80]], folder=f"both/{name}")
    (tmp_path / "both" / "plan.json").write_text(json.dumps({"paper": {"amgc": {"LA": 36.2, "AIA": 51.7}}}))
    header, amgc, joint = cells(section(report(tmp_path / "both"), "results").one("table"))
    assert header[1:5] == ["LA", "LA, paper", "AIA", "AIA, paper"]
    assert amgc[1:5] == ["73.3", "36.2", "81.7", "51.7"] and joint[1:5] == ["73.3", "–", "81.7", "–"]


def test_runs_still_going_show_what_they_have(write_run: WriteRun, report: Callable[..., Node]) -> None:
    folders = [write_run("amgc", [2, 1, 1], [[90], [70, 80]]), write_run("lwf", [2, 1, 1], [])]
    page = report(*folders)
    rows = cells(section(page, "results").one("table"))
    assert rows[1] == ["amgc", "–", "–", "–", "–", "2 of 3 tasks, 73.3 so far"]
    assert rows[2] == ["lwf", "–", "–", "–", "–", "0 of 3 tasks"]
    assert "2 runs not finished" in page.one("p", class_="lead").text
    page = report(folders[1])
    assert "No run has finished a task yet." in page.text
    assert [part.attributes["class"] for part in page.all("section")] == ["results", "runs"]


def test_a_damaged_run_is_named_and_the_rest_is_shown(write_run: WriteRun, report: Callable[..., Node], tmp_path: Path) -> None:
    good, bad = observe(write_run("amgc", [2], [[90]], folder="a/good")), write_run("lwf", [2], [[90]], folder="a/bad")
    (bad / "run.json").write_text("{")
    (good / "observed" / "task-1.json").write_text("[]")
    page = report(tmp_path / "a")
    notice = page.one("section", class_="notice").text
    assert "bad/run.json" in notice and "is damaged" in notice and "observed/task-1.json" in notice
    assert cells(section(page, "results").one("table"))[1][:2] == ["amgc", "90.0"]
    with pytest.raises(RunError, match=r"bad/run.json"):
        report(bad)


def test_values_that_older_runs_did_not_store_are_left_out(write_run: WriteRun, report: Callable[..., Node]) -> None:
    page = report(write_run("amgc", [2, 1], [[90], [70, 80]]), observe(write_run("ncm", [2, 1], steady(2)), margins=False))
    assert "did not record confusions: amgc ." in section(page, "confusion").text
    assert page.all("section", class_="margins") == []
    assert "did not record features: amgc ." in section(page, "plane").text


def test_runs_on_other_tasks_are_not_in_one_chart(write_run: WriteRun, report: Callable[..., Node]) -> None:
    page = report(write_run("amgc", [2, 1], steady(2)), write_run("lwf", [1, 2], steady(2)))
    tasks = [heading.text.partition(" : ")[2] for heading in page.all("h2")]
    assert tasks[:2] == ["3 classes in 2 tasks (2 + 1)", "3 classes in 2 tasks (1 + 2)"]
    assert len(page.all("section", class_="accuracy")) == 2


def every_kind(write_run: WriteRun) -> Sequence[Path | str]:
    """Return runs with everything that a page can show, and with malicious names."""
    rows = [[90], [80, 90], [70, 80, 90]]
    runs = [observe(write_run("amgc", [3, 2, 2], rows, folder=f"amgc-{seed}", names=EVIL, seed=seed)) for seed in (1, 2)]
    joint = observe(write_run("joint", [3, 2, 2], rows, names=EVIL), margins=False)
    return [*runs, f"<b>{'y' * 300}={joint}"]


def test_the_page_is_sound(write_run: WriteRun, report: Callable[..., Node]) -> None:
    """Headings are in order, ids unique, references valid, and figures and tables labelled."""
    page = report(*every_kind(write_run))
    levels = [int(node.name[1]) for node in page.walk() if re.fullmatch("h[1-6]", node.name)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [node.attributes["id"] for node in page.walk() if "id" in node.attributes]
    assert len(ids) == len(set(ids))
    for node in page.walk():
        for key in ("aria-labelledby", "aria-describedby"):
            assert set(node.attributes.get(key, "").split()) <= set(ids)
        if node.name == "a":
            assert node.attributes["href"].removeprefix("#") in ids
        if node.name == "table":
            assert node.one("caption").text and node.one("thead").all("th", scope="col") and node.all("th", scope="row")
    figures = page.all("svg", role="img")
    for figure in figures:
        title, text = (
            next(node for node in figure.children if isinstance(node, Node) and node.name == name) for name in ("title", "desc")
        )
        assert title.text and text.text.endswith(".")
    kinds = [figure.attributes["id"].split("-")[0] for figure in figures]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "accuracy": 2,  # wide and narrow
        "matrix": 2,
        "balance": 2,
        "confusion": 2,
        "margins": 1,  # of amgc alone, the pairs
        "plane": 6,
    }
    for landmark in ("header", "nav", "main", "footer"):
        page.one(landmark)


def test_no_name_can_break_the_page(write_run: WriteRun, report: Callable[..., Node], tmp_path: Path) -> None:
    page = report(*every_kind(write_run))
    assert len(page.all("script")) == 1 and page.all("b") == []
    text = (tmp_path / "report.html").read_text()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text and "🦊 fox" in text and "حصان" in text and "x" * 300 in text
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert not re.search(r"(?:src|href)=\"(?!#|data:,)|url\(|@import|https?:", outside)


def test_a_class_name_that_is_no_unicode_can_be_written(write_run: WriteRun, report: Callable[..., Node]) -> None:
    page = report(write_run("amgc", [2], [[90]], names=["\udcff", "b"]))
    assert "?, b" in section(page, "runs").text


def test_a_hundred_classes_in_twenty_tasks_stay_small(write_run: WriteRun, report: Callable[..., Node], tmp_path: Path) -> None:
    """Three methods with all data: matrices have no numbers in their cells, and the page has less than a megabyte."""
    rows = steady(20, 70)
    for name in ("amgc", "dbgc", "joint"):
        observe(write_run(name, [5] * 20, rows, folder=f"all/{name}"))
    page = report(tmp_path / "all")
    assert (tmp_path / "report.html").stat().st_size < 1_000_000
    assert len(cells(section(page, "confusion").all("table")[0])) == 11
    pointed = json.loads(section(page, "confusion").all("script")[0].text)
    assert len(pointed["names"]) == 100 and [0, 1, 30] in pointed["counts"]


def test_thirty_methods_have_a_line_each_inside_the_drawing(
    write_run: WriteRun, report: Callable[..., Node], tmp_path: Path
) -> None:
    for place in range(30):
        write_run(f"m{place}", [2, 2, 2], steady(3, 30 + place % 4), folder=f"all/m{place}")
    page = report(tmp_path / "all")
    chart = page.one("svg", id="accuracy-1")
    assert len(chart.all("g", class_="series")) == 30
    looks = {
        (line.attributes["class"], line.one("path", class_="line").attributes.get("stroke-dasharray"))
        for line in chart.all("g", class_="series")
    }
    assert len(looks) == 28  # seven colours, four kinds of line; markers tell the others apart
    height = float(chart.attributes["height"])
    places = sorted(float(name.attributes["y"]) for name in chart.all("text", class_="name"))
    assert places[0] > 0 and places[-1] < height
    assert all(after - before > 17 for before, after in pairwise(places))


def test_a_seed_that_has_just_begun_does_not_hide_the_finished_ones(write_run: WriteRun, report: Callable[..., Node]) -> None:
    rows = [[90], [70, 80]]
    begun = write_run("amgc", [2, 1], [], folder="two", seed=2)
    page = report(observe(write_run("amgc", [2, 1], rows, folder="one", seed=1)), begun)
    assert cells(section(page, "results").one("table"))[1] == ["amgc", "73.3", "81.7", "20.0", "70.0", "1 of 2 runs finished"]
    assert cells(section(page, "accuracy").one("table"))[1:] == [["T1", "2", "90.0"], ["T2", "3", "73.3"]]
    assert section(page, "confusion").all("table") and section(page, "plane").all("table")


def test_figure_1_has_its_numbers(write_run: WriteRun, report: Callable[..., Node]) -> None:
    page = report(observe(write_run("amgc", [2, 1], [[90], [70, 80]])))
    header, first, _ = cells(section(page, "plane").one("table"))
    assert header[1] == "class 0, mean x, y" and header[8] == "class 1, stored deviation"
    assert (first[3], first[4], first[7], first[8]) == ("-3, 0", "1, 1.41", "3, 0", "1, 1.41")  # variances 1 and 2
    assert -4 < float(first[1].split(",")[0]) < -2


def test_the_documented_section_is_added_by_one_file(write_run: WriteRun, report: Callable[..., Node], tmp_path: Path) -> None:
    """docs/add-a-report-section.md: accuracies are 70, 60 (old) and 80, 90 (new) with two seeds."""
    (code,) = re.findall(r"^```python\n(# hardest\.py\n.*?)^```", DOCS.read_text(), flags=re.M | re.S)
    (tmp_path / "hardest.py").write_text(code)
    page = report(*two_seeds(write_run), sections=[tmp_path / "hardest.py"])
    assert cells(section(page, "hardest").one("table")) == [
        ["method", "class", "accuracy, %"],
        ["amgc", "class 0", "65.0"],
        ["amgc", "class 1", "65.0"],
        ["amgc", "class 2", "85.0"],
    ]
    shown = [part.attributes["class"] for part in page.all("section")]
    assert shown[shown.index("hardest") - 1 : shown.index("hardest") + 2] == ["confusion", "hardest", "margins"]
    assert "Hardest classes" in page.one("nav").text
    assert report(write_run("lwf", [2, 1], []), sections=[tmp_path / "hardest.py"]).all("section", class_="hardest") == []
    assert "hardest" not in [one.name for one in sections()]  # nothing stays behind


def test_every_section_of_the_package_is_a_file_of_its_own() -> None:
    folder = Path(package.__file__).parent
    names = [one.name for one in sections()]
    assert sorted(names) == sorted(path.stem for path in folder.glob("[!_]*.py"))
    assert names[0] == "results" and names[-1] == "resources"


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("x = 1", ValueError, "defines no section"),
        ("from amgc.report.sections import section\n@section('a', 'A', 1)\ndef a(c): return '<b>'", TypeError, "returned str"),
    ],
)
def test_a_section_that_cannot_be_used_is_refused(
    code: str, error: type[Exception], message: str, write_run: WriteRun, report: Callable[..., Node], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(code)
    with pytest.raises(error, match=message):
        report(write_run("amgc", [2, 1], [[90], [70, 80]]), sections=[tmp_path / "own.py"])
    with pytest.raises(ValueError, match="with a section"):
        sections([tmp_path / "nowhere.py"])


def test_a_section_replaces_that_of_the_same_name(write_run: WriteRun, report: Callable[..., Node], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from amgc.report.sections import render, section\n"
        "@section('resources', 'Nothing', 90)\n"
        "def resources(comparison): return render('<p>{{ name }}</p>', name='<i>')\n"
    )
    page = report(write_run("amgc", [2, 1], [[90], [70, 80]]), sections=[tmp_path / "own.py"])
    assert section(page, "resources").text == "Nothing <i>"
