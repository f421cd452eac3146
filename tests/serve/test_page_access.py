"""Accessibility of the page: keyboard, touch, contrast, any script, and feedback for every action."""

from __future__ import annotations

import pytest
from serve.conftest import LOOK

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytestmark = pytest.mark.slow


def sees(page, expression: str) -> None:
    """Wait until the page has updated and the expression is true."""
    page.until(f"{LOOK} && ({expression})")


def test_the_focus_stays_when_another_process_learns_and_forgets(page, other, drawn):
    page.evaluate("window.held = document.querySelector('.card .forget'); held.focus()")
    other.learn(drawn["desert"][:3], "desert")
    sees(page, "document.querySelectorAll('.card').length === 3")
    assert page.evaluate("document.activeElement === held && held.ariaLabel") == "Forget meadow"
    page.evaluate("window.held = document.querySelector('.card:last-child .forget'); held.focus()")
    other.learn(drawn["desert"][3:7], "desert")
    sees(page, "document.querySelector('.card:last-child').innerText.includes('7 pictures')")
    assert page.evaluate("document.activeElement === held && held.ariaLabel") == "Forget desert"
    other.forget("desert")
    sees(page, "document.querySelectorAll('.card').length === 2")
    assert page.evaluate("document.activeElement.id") == "teach-title"


def test_a_long_name_is_shown_whole_and_in_its_own_direction(page, other, drawn):
    label = "שלום" * 60
    other.learn(drawn["desert"][:8], label)
    sees(page, "document.querySelectorAll('.card').length === 3")
    page.resize(400)
    page.ask(drawn["desert"][2])
    names = (
        f"[...document.querySelectorAll('.name, .bars span, h3')].filter((one) => (one.value ?? one.textContent) === '{label}')"
    )
    page.until("[...document.querySelectorAll('.name')].every((one) => one.scrollHeight <= one.clientHeight)")
    shown = page.evaluate(
        f"{names}.map((one) => [getComputedStyle(one).direction, one.offsetHeight > 60, one.scrollWidth <= one.offsetWidth])"
    )
    assert shown == [["rtl", True, True]] * 3
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def luminance(colour: str) -> float:
    shares = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_edges_of_what_takes_input_can_be_seen(page, scheme):
    page.scheme(scheme)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    for place in (".card .zone", "#add-zone", "#ask-zone", "#token-text"):
        style = f"getComputedStyle(document.querySelector('{place}'))"
        edge, inside = page.evaluate(f"[{style}.borderTopColor, {style}.backgroundColor]")
        for beside in (ground, inside):
            darker, lighter = sorted([luminance(edge), luminance(beside)])
            assert (lighter + 0.05) / (darker + 0.05) >= 3, f"{place}: {edge} on {beside}"  # WCAG 2.2, 1.4.11


def test_pictures_given_before_the_server_has_answered_are_not_lost_in_silence(tab, served, drawn):
    silent = tab.call("Page.addScriptToEvaluateOnNewDocument", source="window.fetch = () => Promise.reject(new TypeError())")
    tab.visit(served.address)
    tab.call("Page.removeScriptToEvaluateOnNewDocument", **silent)
    tab.click("#add")
    tab.type("desert")
    tab.press("Enter")
    tab.files(tab.card("desert", ".files"), drawn["desert"][:1])
    tab.until("document.querySelector('.card > .said').innerText.includes('has not answered yet')")
    assert tab.evaluate("document.querySelectorAll('.card .thumbs .bad').length") == 1
    assert "does not answer" in tab.text("trouble")


def test_a_class_that_is_named_unknown_is_told_from_a_picture_of_no_class(page, other, drawn):
    other.learn(drawn["desert"][:12], "unknown")
    sees(page, "document.querySelectorAll('.card').length === 3")
    assert page.ask(drawn["desert"][0]).startswith("unknown")
    assert page.evaluate("document.querySelector('#answers > li').className") == ""
    assert page.ask(drawn["sunset"][13]).startswith("Unlike anything it has learned")
    assert page.evaluate("document.querySelector('#answers > li').className") == "none"
