"""The page in Chromium: no errors, no requests, readable in light, dark, wide, narrow and in print, and usable by keyboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import Browser, find_chromium
from report.observations import observe

from amgc.report.page import write_report

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; install it, or name it in AMGC_CHROMIUM")

WriteRun = Callable[..., Path]
NAMES = ["<script>alert(1)</script>", "🦊 fox", "حصان", "x" * 300, "cat", "dog", "owl", "hen", "bee", "ant"]
OPEN = "for (const part of document.querySelectorAll('details')) part.open = true"
# Figures that cannot be seen: without a box, or outside the page. Of wide and narrow ones just one is there.
UNSEEN = """[...document.querySelectorAll('svg[role=img]')].filter(figure => {
    const box = figure.getBoundingClientRect();
    const hidden = getComputedStyle(figure).display === 'none' && figure.matches('.wide, .narrow');
    return !hidden && (box.width < 100 || box.height < 60 || box.left < 0);
}).map(figure => figure.id)"""
SPILT = """[...document.querySelectorAll('main *')].filter(part => !part.closest('.scroll, svg, .aside, .track')
    && part.getBoundingClientRect().right > innerWidth + 0.5).map(part => part.outerHTML.slice(0, 200))"""
# The contrast of every visible text with its background; a cell's colour is mixed with the ground.
CONTRAST = """(() => {
    const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, place) => sum + c * [0.2126, 0.7152, 0.0722][place], 0);
    const ground = numbers(getComputedStyle(document.body).backgroundColor);
    const poor = [];
    for (const part of document.querySelectorAll('body *')) {
        const own = [...part.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
        const box = part.getBoundingClientRect();
        if (!own || !box.width || part.closest('.aside, .skip, title, desc, script, style')) continue;
        const style = getComputedStyle(part);
        const ink = numbers(part.closest('svg') ? style.fill : style.color);
        let under = ground;
        if (part.matches('.in')) {
            const cell = getComputedStyle(part.previousElementSibling);
            under = numbers(cell.fill).map((c, place) => c * cell.fillOpacity + ground[place] * (1 - cell.fillOpacity));
        }
        const [high, low] = [light(ink), light(under)].sort((a, b) => b - a);
        const contrast = (high + 0.05) / (low + 0.05);
        if (contrast < 4.5) poor.push(`${part.textContent.trim().slice(0, 30)}: ${contrast.toFixed(2)}`);
    }
    return poor;
})()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None
    started = Browser(CHROMIUM)
    yield started
    started.close()


@pytest.fixture
def page(write_run: WriteRun, tmp_path: Path) -> Path:
    """Return the page of two methods, one with three seeds, on ten classes in five tasks, with all data of a run."""
    for seed in (1, 2, 3):
        rows = [[min(100, 60 + 8 * (column + 1) - 3 * row + seed) for column in range(row + 1)] for row in range(5)]
        observe(write_run("amgc", [2] * 5, rows, folder=f"all/amgc-{seed}", names=NAMES, seed=seed))
    forgotten = [[100 * (row == column) for column in range(row + 1)] for row in range(5)]
    observe(write_run("finetune", [2] * 5, forgotten, folder="all/finetune", names=NAMES), margins=False)
    write_report([tmp_path / "all"], tmp_path / "report.html")
    return tmp_path / "report.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_is_silent_alone_complete_and_readable(page: Path, browser: Browser, width: int, dark: bool) -> None:
    browser.open(page, width, dark)
    browser.evaluate(OPEN)
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate(SPILT) == []
    assert browser.evaluate(UNSEEN) == []
    assert browser.evaluate("document.querySelectorAll('svg[role=img]').length") == 2 + 2 + 2 + 2 + 1 + 10
    shown = browser.evaluate(
        "[...document.querySelectorAll('.accuracy svg[role=img]')].filter(f => f.checkVisibility()).length"
    )
    assert shown == 1
    assert browser.evaluate(CONTRAST) == []
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
    assert browser.complaints == []
    assert browser.requests == [page.resolve().as_uri()]


def test_text_in_figures_is_not_small_on_a_phone(page: Path, browser: Browser) -> None:
    browser.open(page, 400)
    sizes = browser.evaluate("""[...document.querySelectorAll('svg[role=img] text')].filter(text => text.checkVisibility())
        .map(text => text.getScreenCTM().a ? Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b)
            * parseFloat(getComputedStyle(text).fontSize) : 12)""")
    assert len(sizes) > 50 and min(sizes) >= 10


def test_figures_tables_and_scrolling_boxes_have_names(page: Path, browser: Browser) -> None:
    browser.open(page, 400)
    browser.evaluate(OPEN)
    nodes = [node for node in browser.call("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")]
    named = {role: [n["name"]["value"] for n in nodes if n["role"]["value"] == role] for role in ("image", "table", "region")}
    assert all(name.strip() for names in named.values() for name in names)
    assert "Confusion of amgc" in named["image"] and "Pairwise margins of amgc" in named["image"]
    assert len(named["image"]) == 18  # all but the wide or the narrow one of the accuracy
    assert "Accuracies in percent after the last task" in named["table"]
    roles = {node["role"]["value"] for node in nodes}
    assert {"banner", "navigation", "main", "contentinfo"} <= roles


def test_the_keyboard_reaches_what_opens_and_what_scrolls(page: Path, browser: Browser) -> None:
    browser.open(page, 400)
    seen = []
    for _ in range(60):
        browser.press("Tab")
        seen.append(browser.evaluate("document.activeElement.tagName + '.' + document.activeElement.className"))
        outlined = browser.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outlined == "solid" or seen[-1].startswith("BODY"), seen[-1]
    assert seen[0] == "A.skip"
    assert {"SUMMARY.", "DIV.scroll"} <= set(seen)
    wide = (
        "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth && box.tabIndex < 0).length"
    )
    assert browser.evaluate(wide) == 0


def test_without_javascript_all_is_there(page: Path, browser: Browser) -> None:
    browser.open(page, 1400, javascript=False)
    document = browser.call("DOM.getDocument", depth=0)["root"]["nodeId"]
    for query, count in (("svg[role=img]", 19), (".scroll[tabindex='0']", None), ("details.method", 5)):
        found = browser.call("DOM.querySelectorAll", nodeId=document, selector=query)["nodeIds"]
        assert len(found) == count if count else found
    assert browser.complaints == []


def test_all_methods_are_printed_on_white(page: Path, browser: Browser) -> None:
    browser.open(page, 1400, dark=True)
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert browser.evaluate("document.querySelectorAll('details.method:not([open])').length") == 0
    browser.evaluate("dispatchEvent(new Event('afterprint'))")
    assert browser.evaluate("document.querySelectorAll('details.method:not([open])').length") == 2
    assert browser.print().startswith(b"%PDF")
    browser.open(page, 700, dark=True, media="print")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.evaluate("document.documentElement.scrollWidth") == 700
    assert browser.complaints == []


def test_pointing_at_a_cell_of_a_large_matrix_names_it(write_run: WriteRun, tmp_path: Path, browser: Browser) -> None:
    rows = [[70] * (row + 1) for row in range(20)]
    write_report([observe(write_run("amgc", [5] * 20, rows))], tmp_path / "report.html")
    browser.open(tmp_path / "report.html", 1400)
    at = """(() => {
        const figure = document.querySelector('.confusion svg[role=img]');
        figure.scrollIntoView({behavior: 'instant'});
        const box = figure.querySelector('.ground').getBoundingClientRect();
        return [box.left + box.width * 0.415, box.top + box.height * 0.405];
    })()"""
    x, y = browser.evaluate(at)  # the middle of row 40, column 41
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    said = browser.evaluate("document.querySelector('.readout').textContent")
    assert said == "class 40 predicted as class 41: 30 of 100"
    assert browser.evaluate(UNSEEN) == []
    assert browser.complaints == []
