"""The paper's tables with our runs: every number against one computed by hand, in every format."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from report.conftest import WriteRun

from amgc.report import FORMATS, named_runs, paper_table
from amgc.report.paper import NAMES, TABLES, departures, figures
from amgc.report.paper_table import PaperTable
from amgc.report.table import WIDTH
from amgc.runs import RunError, load_run

TEN = (10,) * 10  # how the paper splits CIFAR-100 at T = 10
TWENTY = (5,) * 20


def as_text(table: PaperTable, width: int = WIDTH) -> str:
    return table.format("text", width)


def as_markdown(table: PaperTable) -> str:
    return table.format("markdown")


def as_latex(table: PaperTable) -> str:
    return table.format("latex")


def as_csv(table: PaperTable) -> str:
    return table.format("csv")


def level(share: int, tasks: int = 10) -> list[list[int]]:
    """Write a run with the same accuracy on every class after every task, which is then LA and AIA."""
    return [[share] * (task + 1) for task in range(tasks)]


@pytest.fixture
def compared(write_run: WriteRun) -> PaperTable:
    """Return three methods on CIFAR-100, T = 10; AMGC has three seeds with 30, 36 and 42 %."""
    for seed, share in ((1, 30), (2, 36), (3, 42)):
        write_run("amgc", TEN, level(share), folder=f"runs/{seed}", data="cifar100", seed=seed)
    write_run("fetril", TEN, level(33), folder="runs/fetril", data="cifar100")
    folder = write_run("lda", TEN, level(20), folder="runs/lda", data="cifar100").parent
    return paper_table(1, named_runs([folder]))


def line(text: str, name: str) -> str:
    return next(found for found in text.splitlines() if re.match(rf"(\| )?{re.escape(name)} ", found))


def test_mean_deviation_rank_and_difference_are_those_computed_by_hand(compared: PaperTable) -> None:
    # mean 36, deviation √((36 + 0 + 36) / 2) = 6; the paper has 36.2 / 51.7 for AMGC and 32.7 / 49.4 for FeTrIL
    text = re.sub(" +", " ", as_text(compared, width=70))  # T = 20 stands below
    assert line(text, "AMGC") == "AMGC **36.0** ± 6.0 (36.2, −0.2) **36.0** ± 6.0 (51.7, −15.7)"
    assert line(text, "FeTrIL") == "FeTrIL _33.0_ (32.7, +0.3) _33.0_ (49.4, −16.4)"
    assert line(text, "lda") == "lda 20.0 20.0"
    assert line(text, "EWC") == "EWC – (9.7) – (27.2)"
    markdown = as_markdown(compared)
    assert "| **36.0** ± 6.0 (36.2, −0.2) | **36.0** ± 6.0 (51.7, −15.7) |" in re.sub(" +", " ", line(markdown, "AMGC"))
    assert "*33.0* (32.7, +0.3)" in line(markdown, "FeTrIL")
    latex = as_latex(compared)
    assert r"AMGC & \textbf{36.0} $\pm$ 6.0 & \textbf{36.0} $\pm$ 6.0 &  &  \\" in latex.replace("& -- ", "&  ")
    assert r"\quad paper & {\scriptsize (36.2, $-$0.2)} & {\scriptsize (51.7, $-$15.7)}" in latex


def test_the_rows_are_the_papers_and_then_ours(compared: PaperTable) -> None:
    assert [row.name for row in compared.rows] == ["EWC", "IL2A", "PASS", "SSRE", "FeTrIL", "FeCAM", "AMGC", "lda"]
    assert [column.label for column in compared.columns] == ["CIFAR-100, T = 10", "CIFAR-100, T = 20"]
    for form in ("text", "markdown", "latex"):
        text = compared.format(form)
        assert text.index("AMGC") < text.index("lda") and "last accuracy" in text and "CIFAR-100" in text


def test_marks_go_by_the_number_shown_and_equals_share_one(write_run: WriteRun) -> None:
    sizes = (50, 50)
    runs = [
        write_run("fecam", sizes, [[60], [60, 60]], data="digits"),
        write_run("fetril", sizes, [[60], [60, 60]], data="digits"),
        write_run("ncm", sizes, [[70], [50, 50]], data="digits"),
        write_run("lda", sizes, [[40], [40, 40]], data="digits"),
        write_run("joint", sizes, [[90], [90, 90]], data="digits"),
    ]
    table = paper_table(1, named_runs(runs))
    assert {row.key: [cell.rank for cell in row.cells] for row in table.rows} == {
        "fecam": [1, 1],
        "fetril": [1, 1],
        "ncm": [2, 1],  # AIA 60 as well
        "lda": [0, 2],
        "joint": [0, 0],  # an upper bound, no competitor
    }
    assert "not ranked: joint." in as_text(table)
    renamed = paper_table(1, named_runs([*runs[:4], f"upper={runs[4]}"]))
    assert [cell.rank for cell in renamed.rows[-1].cells] == [0, 0]


def test_numbers_that_differ_by_less_than_is_shown_are_equal(write_run: WriteRun) -> None:
    runs = [write_run("amgc", (40, 1), [[50], [50, 51]]), write_run("ncm", (40, 1), [[50], [50, 50]])]
    table = paper_table(1, named_runs(runs))  # 2051 / 41 = 50.02 and 50
    assert [[cell.rank for cell in row.cells] for row in table.rows] == [[1, 1], [1, 1]]


def test_a_single_row_is_not_called_the_best(write_run: WriteRun) -> None:
    text = as_text(paper_table(1, named_runs([write_run("amgc", (1, 1), [[50], [50, 50]])])))
    assert "**" not in text and "Marked" not in text
    assert "one seed each" in text and "±" not in text.split("\n\nLA")[0]


def test_tables_2_and_3_have_what_they_print_of_amgc(write_run: WriteRun) -> None:
    for name in TABLES[2].rows:
        write_run(name, TWENTY, level(10, 20), folder=f"runs/{name}", data="cifar100")
    write_run("fecam", TWENTY, level(10, 20), folder="runs/fecam", data="cifar100")
    folder = write_run("dbgc-sm", TWENTY, level(11, 20), folder="runs/sm", data="cifar100").parent
    table = paper_table(2, named_runs([folder]))
    assert [row.name for row in table.rows] == ["SBLC", "SBnDBoLC", "SBGC", "DBLC", "DBGC", "AMGC"]
    assert [(cell.paper, cell.difference) for cell in table.rows[-1].cells] == [(30.6, -20.6), (42.5, -32.5)]
    text = as_text(table, width=200)
    assert "30.6 here and 30.8 there on CIFAR-100" in text and "left out: fecam, dbgc-sm" in text
    assert "SB$^{n}$DB$^{o}$LC & " in as_latex(table)
    third = paper_table(3, named_runs([folder]))
    assert [(row.name, row.cells[0].paper) for row in third.rows] == [("DBGC", 29.2), ("DBGC+SM", 18.6), ("AMGC", 30.6)]
    assert [cell.rank for row in third.rows for cell in row.cells] == [2, 2, 1, 1, 2, 2]
    named = paper_table(3, named_runs([folder, f"mine={write_run('ncm', TWENTY, level(5, 20), data='cifar100')}"]))
    assert [row.name for row in named.rows][-1] == "mine" and "mine (ncm)" in as_text(named)


def test_a_table_without_any_of_its_rows_says_which_it_has(write_run: WriteRun) -> None:
    with pytest.raises(ValueError, match=r"dbgc, dbgc-sm, amgc; the runs are of ncm only"):
        paper_table(3, named_runs([write_run("ncm", (1, 1), [[50], [50, 50]])]))


def test_a_run_cannot_take_the_name_of_a_method_of_the_paper(write_run: WriteRun) -> None:
    with pytest.raises(RunError, match=r"'ncm'.*beside the paper's AMGC"):
        paper_table(1, named_runs([f"amgc={write_run('ncm', (1, 1), [[50], [50, 50]])}"]))
    with pytest.raises(RunError, match="as 'FeCAM' it would be shown beside the paper's FeCAM"):
        paper_table(1, named_runs([f"FeCAM={write_run('fecam', (1, 1), [[50], [50, 50]])}"]))
    file = write_run("somewhere/amgc.py", (1, 1), [[50], [50, 50]], folder="file")
    with pytest.raises(RunError, match=r"somewhere/amgc\.py.*another name, such as mine="):
        paper_table(1, named_runs([file]))
    assert paper_table(1, named_runs([f"mine={file}"])).rows[0].name == "mine"


def test_different_configs_under_one_name_are_refused(write_run: WriteRun) -> None:
    runs = [write_run("amgc", TEN, level(30), folder=str(seed), seed=seed, hyper={"margin": seed / 10}) for seed in (1, 2)]
    with pytest.raises(RunError, match=r"hyper.margin 0.1 and 0.2"):
        paper_table(1, named_runs(runs))


def test_runs_still_going_are_named_and_do_not_count(write_run: WriteRun) -> None:
    runs = [
        write_run("amgc", TEN, level(30), folder="done", data="cifar100"),
        write_run("amgc", TEN, level(90)[:3], folder="going", data="cifar100", seed=7),
        write_run("ncm", TEN, level(90)[:4], data="cifar100"),
    ]
    text = as_text(paper_table(1, named_runs(runs)))
    assert line(text, "AMGC").split()[1:3] == ["30.0", "(36.2,"] and "90.0" not in text
    flowing = " ".join(text.split())
    assert "AMGC, CIFAR-100, T = 10, seed 7 (3 of 10 tasks); ncm, CIFAR-100, T = 10, seed 1993 (4 of 10 tasks)" in flowing
    assert "No run is finished" in as_text(paper_table(1, named_runs(runs[1:])))


def test_other_data_and_other_tasks_are_columns_without_the_papers_numbers(write_run: WriteRun) -> None:
    runs = [
        write_run("amgc", (50, *[10] * 5), level(40, 6), folder="a", data="cifar100"),
        write_run("amgc", (1,) * 10, level(41), folder="b", data="cifar100"),
        write_run("amgc", (2,) * 5, level(95, 5), folder="c", data="digits"),
    ]
    table = paper_table(1, named_runs(runs))
    assert [column.label for column in table.columns] == [
        "CIFAR-100, T = 10",
        "CIFAR-100, T = 20",
        "CIFAR-100, T = 6, 100 classes (50 + 5 × 10)",
        "CIFAR-100, T = 10, 10 classes",
        "digits, T = 5, 10 classes",
    ]
    amgc = next(row for row in table.rows if row.key == "amgc")
    assert [(cell.shown, cell.paper) for cell in amgc.cells[::2]] == [
        (None, 36.2),
        (None, 30.8),
        (40.0, None),
        (41.0, None),
        (95.0, None),
    ]
    assert len(paper_table(1, named_runs(runs[2:])).rows) == 1  # no column of the paper's, so none of its rows


def test_the_text_fits_and_reports_the_numbers_of_seeds(write_run: WriteRun) -> None:
    for data, sizes in (("cifar100", TEN), ("tiny-imagenet", (20,) * 10), ("imagenet-subset", TEN)):
        for seed in (1, 2):
            write_run("amgc", sizes, level(30 + seed), folder=f"runs/{data}{seed}", data=data, seed=seed)
        folder = write_run("ncm", sizes, level(20), folder=f"runs/{data}-ncm", data=data).parent
    table = paper_table(1, named_runs([folder]))
    for width in (80, 100, 400):
        text = as_text(table, width)
        assert max(map(len, text.splitlines())) <= width
        for name in NAMES.values():
            assert name in text
    assert text.count("method") == 2  # the title's, and one block: all side by side
    assert "2 seeds for AMGC; 1 seed for ncm." in text
    more = write_run("ncm", TEN, level(20), folder="more", data="cifar100", seed=7)
    text = as_text(paper_table(1, named_runs([folder, more])), 400)
    assert "2 seeds for AMGC, ncm (CIFAR-100, T = 10); 1 seed for ncm (ImageNet-Subset, T = 10; Tiny-ImageNet, T = 10)." in text


def test_departures_from_the_papers_setting_are_reported(write_run: WriteRun) -> None:
    phases = {"first": {"epochs": 60}, "later": {"epochs": 5}, "margin": 0.4}
    small = {"features": "resnet18", "features_options": {"width": 0.25, "stem": "cifar"}, "data": "cifar100"}
    own = load_run(write_run("amgc", TEN, level(30), hyper=phases, **small))
    assert departures(own) == ["width 0.25 (1.0)", "first.epochs 60 (400)", "later.epochs 5 (200)"]
    exact = {"first": {"epochs": 400}, "later": {"epochs": 200}, "margin": 0.4}
    paper = {"features": "resnet18", "features_options": {"stem": "cifar"}, "data": "cifar100"}
    assert departures(load_run(write_run("amgc", TEN, level(30), folder="x", hyper=exact, **paper))) == []
    patches = write_run("amgc-closed", TEN, level(30), folder="y", hyper={"ridge": None}, features="patches", data="cifar100")
    assert departures(load_run(patches)) == ["features patches (resnet18)"]
    mine = write_run("mine.py", TEN, level(30), folder="z", hyper={"own": 1}, **paper)
    assert departures(load_run(mine)) == []  # nothing is known of its own settings
    text = as_text(paper_table(1, named_runs([own.path, f"patches={patches}"])))
    assert "AMGC: width 0.25 (1.0), first.epochs 60 (400), later.epochs 5 (200)." in text
    assert "patches: features patches (resnet18)." in text


def test_csv_has_plain_numbers(compared: PaperTable) -> None:
    rows = {(row["method"], row["tasks"]): row for row in csv.DictReader(io.StringIO(as_csv(compared)))}
    assert len(rows) == 2 * 7 + 1  # the paper's cells, and lda at T = 10
    amgc = rows["amgc", "10"]
    assert [float(amgc[key]) for key in ("n", "LA", "LA_std", "LA_paper", "LA_difference")] == [3, 36, 6, 36.2, -0.2]
    assert [float(amgc[key]) for key in ("AIA", "AIA_std", "AIA_paper", "AIA_difference")] == [36, 6, 51.7, -15.7]
    assert (amgc["data"], amgc["classes"]) == ("cifar100", "100") and amgc["departures"].startswith(
        "features convnet (resnet18)"
    )
    assert (rows["fetril", "10"]["n"], rows["fetril", "10"]["LA_std"]) == ("1", "")
    assert (rows["ewc", "20"]["n"], rows["ewc", "20"]["LA"], rows["ewc", "20"]["LA_paper"]) == ("0", "", "5.5")
    assert (rows["lda", "10"]["LA"], rows["lda", "10"]["LA_paper"]) == ("20", "")


ODD = r"50% a_b & #1 {x} \y ~^ $z <|> `*[é]" + "\x1b[31m 猫"


@pytest.fixture
def odd(write_run: WriteRun) -> PaperTable:
    run = write_run("amgc", TEN, level(30), data="cifar100")
    other = write_run("ncm", (1, 1), [[40], [50, 50]], folder="other", data="folder:my_photos & 50%")
    return paper_table(1, [*named_runs([run]), *[(ODD, record) for _, record in named_runs([other])]])


def test_names_with_special_characters_survive_in_every_format(odd: PaperTable) -> None:
    for form in FORMATS:
        assert "\x1b" not in odd.format(form) or form == "csv"
    assert r"50\% a\_b \& \#1 \{x\} \textbackslash{}y \textasciitilde{}\textasciicircum{} \$z" in as_latex(odd)
    assert r"50% a\_b & #1 {x} \\y \~^ $z \<\|\> \`\*\[é\]" in as_markdown(odd)
    assert next(csv.DictReader(io.StringIO(as_csv(odd))))["method"] == "ewc"
    assert [row["method"] for row in csv.DictReader(io.StringIO(as_csv(odd)))][-1] == ODD
    widths = {len(re.findall(r"(?<!\\)\|", row)) for row in as_markdown(odd).splitlines() if row.startswith("|")}
    assert widths == {2 + 2 * len(odd.columns)}


def test_latex_is_well_formed(odd: PaperTable, compared: PaperTable) -> None:
    """Environments and braces are balanced, rows have as many cells as columns, and special characters are escaped."""
    for table in (odd, compared):
        check_latex(as_latex(table))


def test_a_name_in_brackets_is_no_option_of_the_row_before(write_run: WriteRun) -> None:
    runs = [(name, load_run(write_run("ncm", (1, 1), [[40], [50, 50]], folder=name))) for name in ("plain", "[2cm]", "*x")]
    check_latex(as_latex(paper_table(1, runs)))


def check_latex(source: str) -> None:
    source = re.sub(r"(?<!\\)%.*", "", source)
    assert not re.search(r"\\\\\s*[\[*]", source)  # an option, or a variant, of the end of a row
    open_environments: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{([a-z*]+)\}", source):
        if kind == "begin":
            open_environments.append(name)
        else:
            assert open_environments.pop() == name
    assert not open_environments
    bare = re.sub(r"\\[\\{}&%$#_]", "", source.replace("\\\\\n", "\n"))
    depth = 0
    for letter in bare:
        depth += (letter == "{") - (letter == "}")
        assert depth >= 0
    assert depth == 0 and bare.count("$") % 2 == 0 and "#" not in bare and "~" not in bare
    assert not re.search(r"[_^]", re.sub(r"\$[^$]*\$", "", bare))  # only in mathematics
    assert all(ord(letter) < 128 or letter.isalpha() for letter in source)  # what LaTeX has a glyph for
    found = re.search(r"\\begin\{tabular\}\{(l(?:rr)+)\}\n(.*)\\end\{tabular\}", source, flags=re.S)
    assert found
    for row in re.split(r"\\\\\n", found[2])[:-1]:
        row = re.sub(r"\\(top|mid)rule|\\cmidrule\(lr\)\{[\d-]+\}", "", row)
        spans = [int(span) for span in re.findall(r"\\multicolumn\{(\d+)\}", row)]
        assert len(re.findall(r"(?<!\\)&", row)) + 1 - len(spans) + sum(spans) == len(found[1])
    assert "&" not in re.sub(r"\\&", "", source.replace(found[0], ""))


def test_every_figure_is_where_the_paper_prints_it() -> None:
    """Cells of each table, copied by hand: first and last rows, and those where tables disagree."""
    assert figures(1, "ewc", "imagenet-subset", 10) == {"LA": 10.4, "AIA": 28.6}
    assert figures(1, "amgc", "imagenet-subset", 20) == {"LA": 32.9, "AIA": 47.2}
    assert figures(1, "fecam", "tiny-imagenet", 20) == {"LA": 17.7, "AIA": 30.1}
    assert figures(1, "amgc", "cifar100", 10) == {"LA": 36.2, "AIA": 51.7}
    assert figures(2, "sblc", "imagenet-subset", 20) == {"LA": 5.1, "AIA": 17.0}
    assert figures(2, "amgc", "imagenet-subset", 20) == figures(3, "amgc", "imagenet-subset", 20) == {"LA": 33.0, "AIA": 47.2}
    assert figures(3, "dbgc-sm", "cifar100", 20) == {"LA": 18.6, "AIA": 35.6}
    assert figures(2, "dbgc-sm", "cifar100", 20) == figures(1, "dbgc", "cifar100", 20) == figures(2, "amgc", "digits", 20) == {}
    assert all(
        set(figures(number, method, data, tasks)) == {"LA", "AIA"}
        for number, layout in TABLES.items()
        for method in layout.rows
        for data in layout.data
        for tasks in layout.tasks
    )


def test_a_file_is_written_whole_in_the_format_of_its_name(
    write_run: WriteRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from amgc.cli.main import main

    run = str(write_run("amgc", TEN, level(30), data="cifar100"))
    for name, start in (
        ("t.tex", "% needs"),
        ("t.md", "**Table 1 of the paper"),
        ("t.csv", "method,data"),
        ("t.txt", "Table 1 of the paper"),
    ):
        assert main(["table", "1", run, "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)
    assert main(["table", "1", run, "--format", "csv"]) == 0
    assert capsys.readouterr().out.endswith((tmp_path / "t.csv").read_text())
    assert main(["table", "1", run, "-o", str(tmp_path / "no" / "t.tex")]) == 2
    assert main(["table", "4", run]) == 2 and main(["table", "1"]) == 2 and main(["table", "1", "nowhere"]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["amgc", "t.csv", "t.md", "t.tex", "t.txt"]
