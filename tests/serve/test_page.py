"""The page in a browser: teach, ask and forget; narrow and wide, light and dark, without errors.

`AMGC_SCREENSHOTS=FOLDER pytest tests/serve/test_page.py` keeps the screenshots; docs/serve.png is taken-1400-light.png.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from serving import server

from amgc.features.lite import is_installed
from amgc.model import Model

pytest.importorskip("fastapi", reason="needs the extra `serve`")


def keep(tab, tmp_path: Path, name: str, widths: tuple[int, ...] = (1400, 400)) -> None:
    """Take screenshots, wide and narrow, light and dark, and check that nothing overflows the window."""
    folder = Path(os.environ.get("AMGC_SCREENSHOTS") or tmp_path)
    for width in widths:
        tab.resize(width)
        for scheme in ("dark", "light"):
            tab.scheme(scheme)
            picture = folder / f"{name}-{width}-{scheme}.png"
            tab.screenshot(picture)
            assert picture.stat().st_size > 10_000
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name}: wider than {width}"


@pytest.fixture
def model(tmp_path) -> Path:
    """Return a model without classes: of the network for photographs, or else a small one."""
    path = tmp_path / "model"
    return (Model.create(path, "lite0") if is_installed("lite0") else Model.create(path, filters=32)).path


def test_the_page_says_when_there_are_too_few_pictures_to_tell_what_is_typical(tab, drawn, model, tmp_path):
    Model.open(model).learn_all({kind: drawn[kind][:2] for kind in ("meadow", "night")})
    with server(model, home=tmp_path) as served:
        tab.visit(served.address)
        tab.until("document.querySelectorAll('#classes li').length === 2")
        assert "It has learned too few pictures to tell whether this is something else." in tab.ask(drawn["desert"][0])
        Model.open(model).learn(drawn["night"][2:6], "night")
        tab.until("document.getElementById('known-sum').innerText.includes('8 pictures')")
        assert "less typical" in tab.ask(drawn["desert"][0])


def test_a_person_teaches_asks_and_makes_it_forget(tab, drawn, model, tmp_path):
    with server(model, home=tmp_path) as served:
        assert "has no classes yet" in served.said
        tab.visit(served.address)
        tab.until("document.getElementById('known-sum').textContent")
        assert "Nothing yet" in tab.text("known-sum") and "has to learn something" in tab.text("ask-needs")
        keep(tab, tmp_path, "empty")

        assert "from 12 pictures" in tab.teach("sunset", drawn["sunset"][:12])
        assert "one class only" in tab.text("ask-needs")
        tab.teach("meadow", drawn["meadow"][:12])
        told = tab.teach("night sky", drawn["night"][:12])
        assert "None of them was kept." in told
        assert tab.text("ask-needs") == "" and "3 classes, learned from 36 pictures. None of them was kept." in tab.text(
            "known-sum"
        )
        assert tab.evaluate("[...document.querySelectorAll('#known-names option')].map(one => one.value)") == [
            *("sunset", "meadow", "night sky")
        ]

        told = tab.ask(drawn["meadow"][13])
        assert told.startswith("meadow") and re.search(r"More typical than about \d+ % of pictures of what it knows\.", told)
        assert tab.evaluate("document.querySelectorAll('#answers > li:first-child .bars li').length") == 3
        told = tab.ask(drawn["desert"][13])
        assert told.startswith("Unlike anything it has learned") and "of pictures of what it knows are less typical." in told
        assert tab.ask(drawn["sunset"][13]).startswith("sunset")
        tab.files("teach", drawn["desert"][:5])
        tab.click("#teach-name")
        tab.type("desert")
        keep(tab, tmp_path, "taken")

        tab.click("#classes li:nth-child(2) button")
        assert tab.text("forget-title") == "Forget “meadow”?"
        keep(tab, tmp_path, "forget")
        tab.press("Enter")  # the focus is on what does no harm
        assert not tab.evaluate("document.getElementById('forget').open") and "3 classes" in tab.text("known-sum")
        tab.click("#classes li:nth-child(2) button")
        tab.click("#forget-yes")
        tab.until("document.getElementById('known-said').innerText === 'Forgot “meadow”.'")
        assert "2 classes, learned from 24 pictures" in tab.text("known-sum")
        assert not tab.ask(drawn["meadow"][13]).startswith("meadow")
        assert all(url.startswith((served.address, "blob:")) for url in tab.requests)
        assert tab.complaints == []


GIVEN = "const given = new DataTransfer(); given.items.add(new File([bytes], 'seen.jpg', {type: 'image/jpeg'}))"
WAYS = {
    "dropped": "place.dispatchEvent(new DragEvent('drop', {dataTransfer: given, bubbles: true, cancelable: true}))",
    "pasted": "document.body.dispatchEvent(new ClipboardEvent('paste', {clipboardData: given, bubbles: true}))",
}


@pytest.mark.slow
@pytest.mark.parametrize("way", list(WAYS))
def test_a_picture_is_dropped_or_pasted(page, drawn, way):
    content = list(drawn["night"][9].read_bytes())
    script = (
        f"const bytes = new Uint8Array({content}); {GIVEN}; const place = document.querySelector('#ask .zone'); {WAYS[way]}"
    )
    page.evaluate(f"{{ {script} }}")
    page.until("document.querySelector('#answers > li')")
    assert page.evaluate("document.querySelector('#answers h3').innerText") == "night"
    page.click("#teach-title")  # what is pasted goes to the part that was used last
    page.evaluate(f"{{ {script.replace('#ask', '#teach')} }}")
    page.until("document.querySelectorAll('#teach-thumbs li').length === 1")
    assert page.complaints == []


@pytest.mark.slow
def test_the_camera_takes_pictures_and_is_let_go(page):
    page.click("#teach [data-camera]")
    for count in (1, 2):
        page.until("!document.getElementById('camera-take').disabled")
        page.click("#camera-take")
        page.until(f"document.querySelectorAll('#teach-thumbs li').length === {count}")
    page.evaluate("window.used = document.getElementById('camera-view').srcObject.getTracks()[0]; 0")
    page.press("Escape")
    page.until("!document.getElementById('camera').open")
    page.until("window.used.readyState === 'ended'")
    page.click("#ask [data-camera]")
    page.until("!document.getElementById('camera-take').disabled")
    page.click("#camera-take")
    page.until("document.querySelector('#answers > li')")
    assert not page.evaluate("document.getElementById('camera').open")
    page.evaluate("navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('', 'NotFoundError')); 0")
    page.click("#ask [data-camera]")
    page.until("document.getElementById('camera-said').innerText === 'No camera was found.'")
    assert page.complaints == []


@pytest.mark.slow
def test_errors_are_shown_in_plain_words(page, tmp_path):
    page.click("#teach-go")
    assert page.text("teach-said") == "Add at least one picture first."
    text = tmp_path / "notes.jpg"
    text.write_text("no picture at all")
    page.files("teach", [text])
    page.until("document.querySelector('#teach-thumbs .no-view')")
    page.click("#teach-go")
    assert page.text("teach-said") == "Give it a name first."
    assert page.evaluate("document.activeElement.id") == "teach-name"
    page.type("notes")
    page.press("Enter")
    page.until("document.getElementById('teach-said').innerText.includes('notes.jpg cannot be used as a picture')")
    page.until("document.querySelectorAll('#teach-thumbs li').length === 1")  # can be tried again, or left out
    assert page.evaluate("document.getElementById('teach-name').value") == "notes"
    page.files("ask", [text])
    page.until("document.getElementById('ask-said').innerText.includes('notes.jpg cannot be used as a picture')")


@pytest.mark.slow
def test_a_picture_that_cannot_be_used_says_so_and_the_others_are_answered(page, drawn, tmp_path):
    text = tmp_path / "notes.jpg"
    text.write_text("no picture at all")
    page.files("ask", [text, drawn["night"][9]])
    page.until("document.querySelectorAll('#answers > li').length === 2")
    latest, first = page.evaluate("[...document.querySelectorAll('#answers > li')].map((item) => item.innerText)")
    assert latest.startswith("night") and "No answer" in first and "notes.jpg cannot be used as a picture" in first


@pytest.mark.slow
def test_predictions_continue_while_it_learns(page, other, drawn, tmp_path):
    with other._folder.lock():  # another process holds the folder: the lesson waits
        page.files("teach", drawn["desert"][:6])
        page.click("#teach-name")
        page.type("desert")
        page.press("Enter")
        page.until("document.getElementById('teach-doing').innerText.includes('Learning “desert”: 6 of 6 pictures.')")
        assert "It goes on answering meanwhile." in page.text("teach-doing")
        assert page.ask(drawn["meadow"][9]).startswith("meadow")
        keep(page, tmp_path, "learning", (700,))
    page.until("document.getElementById('teach-said').innerText.includes('Learned “desert” from 6 pictures')")
    assert page.evaluate("document.getElementById('teach-progress').hidden") and "3 classes" in page.text("known-sum")
    other.forget("desert")
    page.until("document.querySelectorAll('#classes li').length === 2")
    assert page.complaints == []


@pytest.mark.slow
def test_everything_can_be_reached_and_has_a_name(page):
    page.call("Accessibility.enable")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "textbox", "combobox", "link", "list", "region", "status", "progressbar", "heading", "image"}
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    assert {name for role, name in named if role == "heading"} >= {"Teach it what you see", "Teach", "Ask", "What it knows"}
    assert [role for role, name in named if role in roles - {"status", "list"} and not name.strip()] == []
    assert ("button", "Forget meadow") in named
    assert len([role for role, _ in named if role == "status"]) >= 3
    page.evaluate("document.body.focus(); 0")
    reached = []
    for _ in range(12):
        page.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.innerText"))
    wanted = ["teach-files", "Camera", "teach-name", "teach-go", "ask-files", "Camera", "Forget", "Forget"]
    assert [one for one in reached if one in wanted][: len(wanted)] == wanted


@pytest.mark.slow
def test_the_token_is_entered_on_the_page_or_comes_with_the_link(tab, model, tmp_path):
    with server(model, "--host", "0.0.0.0", home=tmp_path) as served:
        address = f"http://127.0.0.1:{served.address.rpartition(':')[2]}"
        token = served.said.rpartition("#token=")[2]
        tab.visit(address)
        for given in ("wrong", "λάθος", "é", token):
            tab.until("document.getElementById('token').open")
            tab.type(given)
            tab.press("Enter")
        tab.until("document.getElementById('known-sum').innerText.includes('Nothing yet')")
        assert not tab.evaluate("document.getElementById('token').open")
        tab.visit(f"{address}/#token=%CE%BB%0A")
        tab.until("document.getElementById('token').open")
        assert tab.text("trouble") == ""
        tab.evaluate("sessionStorage.clear()")
        tab.visit(f"{address}/#token={token}")
        tab.until("document.getElementById('known-sum').innerText.includes('Nothing yet')")
        assert tab.evaluate("location.href") == f"{address}/" and tab.complaints == []
