"""The page in a browser: teach, ask, correct, undo and forget; narrow and wide, light and dark, without errors.

`AMGC_SCREENSHOTS=FOLDER pytest tests/serve/test_page.py` keeps the screenshots; docs/serve.png is taken-1400-light.png.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import time
from pathlib import Path

import pytest
from serving import server

from amgc.features.lite import is_installed
from amgc.model import Model

pytest.importorskip("fastapi", reason="needs the extra `serve`")


def keep(tab, tmp_path: Path, name: str, widths: tuple[int, ...] = (1400, 360)) -> None:
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
    tab.resize(1400)


@pytest.fixture
def model(tmp_path) -> Path:
    """Return a model without classes: of the network for photographs, or else a small one."""
    path = tmp_path / "model"
    return (Model.create(path, "lite0") if is_installed("lite0") else Model.create(path, filters=32)).path


@pytest.fixture
def tree(tmp_path, drawn) -> Path:
    """Return a folder of folders, with a file that is no picture, a damaged picture, and a folder within a folder."""
    root = tmp_path / "places"
    for kind in ("meadow", "night", "夜明け"):
        (root / kind / "more").mkdir(parents=True)
        for number, path in enumerate(drawn["sunset" if kind == "夜明け" else kind][:6]):
            (root / kind / ("more" if number > 3 else "") / path.name).write_bytes(path.read_bytes())
    (root / "night" / "notes.txt").write_text("not a picture")
    (root / "night" / "damaged.jpg").write_text("no picture at all")
    (root / ".hidden").write_text("not a picture")
    return root


@pytest.mark.slow
def test_the_page_says_when_there_are_too_few_pictures_to_tell_what_is_typical(tab, drawn, model, tmp_path):
    Model.open(model).learn_all({kind: drawn[kind][:2] for kind in ("meadow", "night")})
    with server(model, home=tmp_path) as served:
        tab.visit(served.address)
        tab.until("document.querySelectorAll('.card').length === 2")
        assert "It has learned too few pictures to tell whether this is something else." in tab.ask(drawn["desert"][0])
        assert "Too few pictures to say: each class needs 10 or more." in tab.text("quality-text")
        Model.open(model).learn(drawn["night"][2:6], "night")
        tab.until("document.getElementById('known-sum').innerText.includes('8 pictures')")
        assert "less typical" in tab.ask(drawn["desert"][0])


@pytest.mark.slow
def test_a_person_teaches_asks_corrects_and_makes_it_forget(tab, drawn, model, tmp_path):
    with server(model, "--hold", "1", home=tmp_path) as served:
        assert "has no classes yet" in served.said
        tab.visit(served.address)
        tab.until("document.querySelectorAll('.card').length === 2")
        assert "Nothing learned yet" in tab.text("known-sum") and "has to learn something" in tab.text("ask-needs")
        assert "when it knows two classes" in tab.text("quality-text")
        keep(tab, tmp_path, "empty")

        assert "Learned from 12 pictures" in tab.teach("sunset", drawn["sunset"][:12])
        assert "one class only" in tab.text("ask-needs")
        tab.teach("meadow", drawn["meadow"][:12])
        tab.teach("night sky", drawn["night"][:12])
        assert tab.text("ask-needs") == "" and "3 classes, learned from 36 pictures. None of them was kept." in tab.text(
            "known-sum"
        )
        assert re.fullmatch(r"about \d+\s%", tab.text("quality-figure"))
        assert "of new pictures like these would be named correctly" in tab.text("quality-text")

        output = tab.ask(drawn["meadow"][13])
        assert output.startswith("meadow") and re.search(
            r"(More typical than about \d+\s% of|As typical as most) pictures of what it knows\.", output
        )
        assert tab.evaluate("document.querySelectorAll('#answers > li:first-child .bars li').length") == 3
        output = tab.ask(drawn["desert"][13])
        assert (
            output.startswith("Unlike anything it has learned") and "of pictures of what it knows are less typical." in output
        )
        tab.ask(drawn["sunset"][13])
        tab.teach("desert", drawn["desert"][:11])
        keep(tab, tmp_path, "taken", (1400, 360, 3840))

        tab.correct("#answers > li:nth-child(2)", "desert")
        assert Model.open(model).classes["desert"] == 12
        tab.until("!document.getElementById('undo').disabled")
        tab.click("#undo")
        tab.until("document.getElementById('teach-said').innerText === 'Undone: learning “desert”.'")
        assert Model.open(model).classes["desert"] == 11
        assert tab.evaluate("document.querySelector('#answers > li:nth-child(2) details > .said').innerText") == ""

        tab.click(tab.card("meadow", ".forget"))
        assert tab.text("confirm-title") == "Forget “meadow”?"
        assert "What goes:" in tab.text("confirm-text") and "What stays:\nthe other classes" in tab.text(
            "confirm-text"
        ).replace("\n\n", "\n")
        assert "This cannot be undone." in tab.text("confirm-text")
        keep(tab, tmp_path, "forget")
        tab.press("Enter")  # the focus is on what does no harm
        assert not tab.evaluate("document.getElementById('confirm').open") and "4 classes" in tab.text("known-sum")
        tab.click(tab.card("meadow", ".forget"))
        tab.click("#confirm-yes")
        tab.until("document.getElementById('teach-said').innerText === 'Forgot “meadow”.'")
        assert "3 classes, learned from 35 pictures" in tab.text("known-sum")
        assert tab.evaluate("document.getElementById('undo').disabled")  # forgetting is final
        assert all(url.startswith((served.address, "blob:")) for url in tab.requests)
        assert tab.complaints == []


@pytest.mark.slow
def test_a_dropped_folder_of_folders_becomes_cards_and_one_undo_takes_all_back(tab, tree, model, tmp_path):
    with server(model, home=tmp_path) as served:
        tab.visit(served.address)
        tab.until("document.querySelectorAll('.card').length === 2")
        tab.drop("#add-zone", [tree])
        for kind in ("meadow", "night", "夜明け"):
            said = json.dumps(tab.card(kind, "> .said"))
            tab.until(f"document.querySelector({said}).innerText.includes('Learned from 6 pictures')")
        assert tab.evaluate("document.querySelectorAll('.card').length") == 3  # the empty cards have gone
        assert tab.text("teach-said") == "2 other files were left out: places/.hidden, places/night/notes.txt."
        assert "1 picture could not be used: damaged.jpg." in tab.said("night")
        bad = tab.card("night", ".thumbs .bad")
        assert tab.evaluate(f"document.querySelectorAll({json.dumps(bad)}).length") == 1
        assert "damaged.jpg" in tab.evaluate(f"document.querySelector({json.dumps(bad)}).innerText")
        assert Model.open(model).classes == {"meadow": 6, "night": 6, "夜明け": 6}
        tab.until("!document.getElementById('undo').disabled")
        tab.click("#undo")
        tab.until("document.getElementById('known-sum').innerText.includes('Nothing learned yet')")
        assert Model.open(model).classes == {} and tab.complaints == []


def test_what_the_browser_cannot_read_of_a_dropped_folder_is_named(page):
    file = "{ isFile: true, name: 'gone.jpg', file: (_, fail) => fail() }"
    locked = "{ name: 'locked', createReader: () => ({ readEntries: (_, fail) => fail() }) }"
    inside = f"let given = [{file}, {locked}]; const readEntries = (done) => done(given.splice(0, 9));"
    root = "{ name: 'places', createReader: () => ({ readEntries }) }"
    found = page.evaluate(
        f"import('/pictures.js').then(async ({{ dropped, sorted, portions }}) => {{ {inside}"
        f"const transfer = {{ files: [], items: [{{ kind: 'file', webkitGetAsEntry: () => ({root}) }}] }};"
        "const { folders, left } = sorted(await dropped(transfer)), refused = [];"
        "const limits = { upload_mb: 1, images: 9 };"
        "await portions(folders[0].files, limits, ({ name }, reason) => refused.push([name, reason]));"
        "return [left, refused]; })"
    )
    assert found == [["places/locked/…"], [["gone.jpg", "the browser cannot read it"]]]


@pytest.mark.slow
def test_a_folder_of_pictures_goes_to_the_card_it_is_dropped_on_or_chosen_for(page, other, drawn, tmp_path):
    folder = tmp_path / "holiday"
    folder.mkdir()
    for path in drawn["night"][8:13]:
        (folder / path.name).write_bytes(path.read_bytes())
    page.drop(page.card("night", ".zone"), [folder])
    page.until(f"document.querySelector({json.dumps(page.card('night', '.count'))}).innerText === '13 pictures'")
    page.files(page.card("meadow", ".folder"), [folder])
    page.until(f"document.querySelector({json.dumps(page.card('meadow', '.count'))}).innerText === '13 pictures'")
    assert page.complaints == []
    other.refresh()
    other.undo()
    page.until("document.getElementById('known-sum').innerText.includes('21 pictures')")


GIVEN = "const given = new DataTransfer(); given.items.add(new File([bytes], 'seen.jpg', {type: 'image/jpeg'}))"
WAYS = {
    "dropped": "place.dispatchEvent(new DragEvent('drop', {dataTransfer: given, bubbles: true, cancelable: true}))",
    "pasted": "document.body.dispatchEvent(new ClipboardEvent('paste', {clipboardData: given, bubbles: true}))",
}


@pytest.mark.slow
def test_the_page_says_which_pictures_are_in_memory_only(tab, drawn, model, tmp_path):
    Model.open(model).learn_all({kind: drawn[kind][:8] for kind in ("meadow", "night")})
    with server(model, home=tmp_path) as served:
        tab.visit(served.address)
        tab.until("document.getElementById('known-sum').innerText.includes('16 pictures')")
        assert tab.text("in-memory") == ""
        assert "Learned from 3 pictures" in tab.teach("desert", drawn["desert"][:3])
        tab.until("document.getElementById('in-memory').innerText.startsWith('In memory only: 3 of “desert”.')")
        assert "3 classes, learned from 19 pictures" in tab.text("known-sum")
        assert "desert" not in Model.open(model).classes
        tab.click("#take-zip")
        tab.until("document.getElementById('take-said').innerText.includes('In memory only: 3 of “desert”.')")
        tab.teach("desert", drawn["desert"][3:5])
        tab.until("document.getElementById('in-memory').innerText === ''")
        assert Model.open(model).classes["desert"] == 5 and tab.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("way", list(WAYS))
def test_a_picture_is_dropped_or_pasted(page, drawn, way):
    content = list(drawn["night"][9].read_bytes())
    script = f"const bytes = new Uint8Array({content}); {GIVEN}; const place = document.querySelector('#ask-zone'); {WAYS[way]}"
    page.evaluate(f"{{ {script} }}")
    page.until("document.querySelector('#answers > li')")
    assert page.evaluate("document.querySelector('#answers h3').innerText") == "night"
    before = page.evaluate(f"document.querySelector({json.dumps(page.card('night', '.count'))}).innerText")
    page.click(page.card("night", ".zone-text"))  # what is pasted goes to the part that was used last
    page.evaluate(f"{{ {script.replace('#ask-zone', page.card('night', '.zone'))} }}")
    page.until(f"document.querySelectorAll({json.dumps(page.card('night', '.thumbs li'))}).length === 1")
    page.until(f"document.querySelector({json.dumps(page.card('night', '.count'))}).innerText !== {json.dumps(before)}")
    assert page.complaints == []


@pytest.mark.slow
def test_pictures_are_recorded_while_the_button_is_held_and_the_camera_is_let_go(page, other):
    page.click("#add")
    page.type("clock")
    page.press("Enter")
    page.click(page.card("clock", ".camera"))
    hold, video = page.card("clock", ".hold"), json.dumps(page.card("clock", "video"))
    page.until(f"!document.querySelector({json.dumps(hold)}).disabled && document.querySelector({video}).videoWidth")
    x, y = page.centre(hold)
    page.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
    page.until(f"document.querySelector({json.dumps(hold)}).innerText === '4 pictures'")
    page.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)
    page.until(f"document.querySelector({json.dumps(page.card('clock', '> .said'))}).innerText.includes('Learned from')")
    other.refresh()
    recorded = other.classes["clock"]
    assert recorded >= 3  # the fake camera may show the same picture twice, which counts once

    key = {"key": " ", "code": "Space", "windowsVirtualKeyCode": 32}
    page.evaluate(f"document.querySelector({json.dumps(hold)}).focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", **key)
    page.until(f"document.querySelector({json.dumps(hold)}).innerText === '2 pictures'")
    page.call("Input.dispatchKeyEvent", type="keyUp", **key)
    page.until(f"parseInt(document.querySelector({json.dumps(page.card('clock', '.count'))}).innerText) > {recorded}")

    page.evaluate(f"window.used = document.querySelector({video}).srcObject.getTracks()[0]; 0")
    page.evaluate(f"document.querySelector({json.dumps(hold)}).focus()")
    page.press("Escape")
    page.until("window.used.readyState === 'ended'")
    page.evaluate("navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('', 'NotFoundError')); 0")
    page.click(page.card("clock", ".camera"))
    page.until(f"document.querySelector({json.dumps(page.card('clock', '> .said'))}).innerText === 'No camera was found.'")
    assert page.complaints == []


@pytest.mark.slow
def test_the_bars_follow_the_camera_until_it_is_stopped(page):
    page.click("#live-toggle")
    page.until("document.getElementById('live-speed').innerText.includes('answers a second')")
    assert page.evaluate("[...document.querySelectorAll('#live-bars li > span:first-child')].map((one) => one.innerText)") == [
        *("meadow", "night")  # in the order of the cards, so that they do not jump
    ]
    assert page.text("live-title") and page.evaluate("document.getElementById('live-toggle').ariaPressed") == "true"
    page.evaluate("window.used = document.getElementById('live-view').srcObject.getTracks()[0]; 0")
    page.click("#live-toggle")
    page.until("window.used.readyState === 'ended' && document.getElementById('live').hidden")
    asked = len([url for url in page.requests if "predict" in url])
    time.sleep(0.5)
    page.evaluate("0")
    assert len([url for url in page.requests if "predict" in url]) <= asked + 1
    assert page.complaints == []


@pytest.mark.slow
def test_what_the_camera_sees_is_corrected(page, other):
    page.click("#live-toggle")
    page.until("!document.getElementById('live-words').hidden")
    page.correct("#live-correct", "clock")
    page.click("#live-toggle")
    other.refresh()
    assert other.classes["clock"] == 1 and page.complaints == []


@pytest.mark.slow
def test_many_pictures_are_answered_as_a_grid_with_a_table(page, drawn, tmp_path):
    text = tmp_path / 'a "quoted", name.jpg'
    text.write_text("no picture at all")
    page.evaluate(
        "window.saved = []; URL.createObjectURL = ((make) => (blob) => (saved.push(blob), make(blob)))(URL.createObjectURL); 0"
    )
    asked = [*drawn["night"][8:14], text, *drawn["meadow"][8:14]]
    page.ask(*asked)
    titles = page.evaluate("[...document.querySelectorAll('#answers h3')].map((one) => one.innerText)")
    assert titles[6] == "No answer" and len(titles) == 13
    page.until("!document.getElementById('ask-tools').hidden")
    assert page.text("ask-sum") == "13 pictures"
    page.evaluate("HTMLAnchorElement.prototype.click = function () {}; 0")  # the file is read, not saved
    page.click("#ask-table")
    rows = list(csv.reader(io.StringIO(page.evaluate("saved.at(-1).text()").removeprefix("\ufeff"))))
    assert rows[0] == ["picture", "answer", "fit", "class 1", "probability 1", "class 2", "probability 2"]
    assert [row[0] for row in rows[1:]] == [path.name for path in asked]
    assert [row[3] for row in rows[1:7]] == ["night"] * 6 and rows[7][1:] == ["No answer", ""]
    assert float(rows[1][4]) + float(rows[1][6]) == pytest.approx(1)
    page.click("#ask-clear")
    assert page.evaluate("document.querySelectorAll('#answers > li').length") == 0


@pytest.mark.slow
def test_a_class_is_renamed_in_place_and_joined_after_a_question(page, other, drawn):
    other.learn(drawn["desert"][:3], "desert")
    page.rename("desert", "dunes 🏜")
    page.until(f"document.querySelector({json.dumps(page.card('dunes 🏜', '> .said'))}).innerText.includes('Renamed “desert”')")
    other.refresh()
    assert other.classes["dunes 🏜"] == 3
    page.rename("dunes 🏜", "night")
    page.until("document.getElementById('confirm').open")
    page.press("Enter")  # keeps both
    page.until(f"document.querySelector({json.dumps(page.card('dunes 🏜', '.name'))}).value === 'dunes 🏜'")
    page.rename("dunes 🏜", "night")
    page.until("document.getElementById('confirm').open")
    page.click("#confirm-yes")
    page.until("document.getElementById('teach-said').innerText === 'Joined “dunes 🏜” with “night”.'")
    other.refresh()
    assert set(other.classes) == {"meadow", "night"}
    page.click("#undo")
    page.until("document.querySelectorAll('.card').length === 3")
    assert page.complaints == []


@pytest.mark.slow
def test_undoing_a_name_or_a_joining_keeps_places_and_views(page, other, drawn):
    def views(label: str) -> int:
        return int(page.evaluate(f"document.querySelectorAll({json.dumps(page.card(label, '.thumbs > li'))}).length"))

    names = "[...document.querySelectorAll('.card')].map(({ card }) => card.label)"
    page.teach("meadow", drawn["meadow"][8:11])
    page.rename("meadow", "field")
    page.until("document.getElementById('undo').title === 'Undo renaming “meadow” to “field”'")
    page.click("#undo")
    page.until("document.getElementById('teach-said').innerText === 'Undone: renaming “meadow” to “field”.'")
    assert page.evaluate(names) == ["meadow", "night"] and views("meadow") == 3  # the lesson was not undone

    page.rename("meadow", "night")
    page.until("document.getElementById('confirm').open")
    page.click("#confirm-yes")
    page.until(f"{names}.length === 1 && !document.getElementById('undo').disabled")
    assert views("night") == 3
    page.click("#undo")
    page.until(f"{names}.join() === 'meadow,night'")
    page.until("document.getElementById('teach-said').innerText.startsWith('Undone')")
    assert (views("meadow"), views("night")) == (3, 0) and page.complaints == []


@pytest.mark.slow
def test_a_folder_is_asked_about_with_its_paths_and_without_other_files(page, tree):
    for way in (lambda: page.drop("#ask-zone", [tree]), lambda: page.files("#ask-folder", [tree])):
        way()
        page.until("document.querySelectorAll('#answers > li').length === 19 && !document.getElementById('ask-clear').disabled")
        assert "2 other files were left out: places/.hidden, places/night/notes.txt." in page.text("ask-said")
        titles = page.evaluate("[...document.querySelectorAll('#answers > li')].map(({ title }) => title)")
        assert "places/夜明け/more/sunset-5.jpg" in titles and "places/night/damaged.jpg" in titles
        page.click("#ask-clear")


@pytest.mark.slow
def test_answers_that_are_still_coming_cannot_be_cleared(page, drawn):
    page.ask(drawn["night"][8])
    page.until("!document.getElementById('ask-tools').hidden")
    page.files("#ask-files", [*drawn["night"][8:14], *drawn["meadow"][8:14]])
    page.until("document.getElementById('ask-clear').disabled || document.querySelectorAll('#answers > li').length === 13")
    page.evaluate("document.getElementById('ask-clear').click()")
    page.until("document.querySelectorAll('#answers > li').length === 13 && !document.getElementById('ask-clear').disabled")
    assert page.text("ask-sum") == "13 pictures" and page.complaints == []


@pytest.mark.slow
def test_pictures_that_are_taught_again_later_are_noticed(page, drawn):
    page.teach("night", drawn["night"][8:11])
    page.files(page.card("night", ".files"), drawn["night"][9:12])
    said = json.dumps(page.card("night", "> .said"))
    page.until(f"document.querySelector({said}).innerText.includes('2 pictures were probably taught before and count twice')")


@pytest.mark.slow
def test_the_model_is_saved_and_opened_on_the_page(page, other, drawn, tmp_path):
    page.evaluate("window.saved = []; HTMLAnchorElement.prototype.click = function () { saved.push(this.download) }; 0")
    page.click("#take-zip")
    page.until("document.getElementById('take-said').innerText.includes('Saved model.zip')")
    assert page.evaluate("saved") == ["model.zip"]
    (tmp_path / "kept.zip").write_bytes(other.packed())
    before = set(other.classes)
    other.learn(drawn["desert"][:3], "desert")
    page.until("document.querySelectorAll('.card').length === 3")
    page.files("#open-file", [tmp_path / "kept.zip"])
    page.until("document.getElementById('confirm').open")
    page.click("#confirm-yes")
    page.until("document.getElementById('take-said').innerText === 'Opened kept.zip.'")
    other.refresh()
    assert set(other.classes) == before
    (tmp_path / "no.zip").write_text("no zip file")
    page.files("#open-file", [tmp_path / "no.zip"])
    page.until("document.getElementById('confirm').open")
    page.click("#confirm-yes")
    page.until("document.getElementById('take-said').innerText.includes('cannot be opened as a model')")
    page.click("#example summary")
    page.until("document.getElementById('example-code').innerText.includes('onnxruntime')")


@pytest.mark.slow
def test_errors_are_shown_in_plain_words(page, tmp_path):
    text = tmp_path / "notes.jpg"
    text.write_text("no picture at all")
    page.files(page.card("night", ".files"), [text])
    said = json.dumps(page.card("night", "> .said"))
    page.until(f"document.querySelector({said}).innerText.includes('notes.jpg cannot be used')")
    page.until(f"document.querySelector({json.dumps(page.card('night', '.thumbs .bad'))})")
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "notes.txt").write_text("text")
    page.drop("#add-zone", [folder])
    page.until("document.getElementById('teach-said').innerText.includes('There are no pictures.')")
    assert "1 other file was left out: texts/notes.txt." in page.text("teach-said")
    page.files("#ask-files", [text])
    page.until("document.getElementById('ask-said').innerText.includes('notes.jpg cannot be used')")


@pytest.mark.slow
def test_predictions_continue_while_it_learns(page, other, drawn, tmp_path):
    with other._folder.lock():  # another process holds the folder: the lesson waits
        page.click("#add")
        page.type("desert")
        page.press("Enter")
        page.files(page.card("desert", ".files"), drawn["desert"][:6])
        doing = json.dumps(page.card("desert", ".doing"))
        page.until(f"document.querySelector({doing}).innerText.includes('Learning: 6 of 6 pictures.')")
        assert "It goes on answering meanwhile." in page.evaluate(f"document.querySelector({doing}).innerText")
        assert page.ask(drawn["meadow"][9]).startswith("meadow")
        keep(page, tmp_path, "learning", (700,))
    page.until(f"document.querySelector({json.dumps(page.card('desert', '> .said'))}).innerText.includes('Learned from 6')")
    assert page.evaluate(f"document.querySelector({json.dumps(page.card('desert', '.progress'))}).hidden")
    other.forget("desert")
    page.until("document.querySelectorAll('.card').length === 2")
    assert page.complaints == []


@pytest.mark.slow
def test_everything_can_be_reached_and_has_a_name(page):
    page.call("Accessibility.enable")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "textbox", "combobox", "link", "list", "region", "status", "progressbar", "heading", "image"}
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    titles = {"Teach it what you see", "Teach", "Ask", "How good is it?", "Take it along", "What is kept"}
    assert {name for role, name in named if role == "heading"} >= titles
    assert [role for role, name in named if role in roles - {"status", "list"} and not name.strip()] == []
    buttons = {name for role, name in named if role == "button"}
    assert {"Forget meadow", "Camera for meadow", "Choose pictures of meadow"} <= buttons
    assert any(name.startswith("Undo") for name in buttons), buttons  # it says what it would undo
    assert ("textbox", "Name of the class meadow") in named
    assert len([role for role, _ in named if role == "status"]) >= 5
    page.evaluate("document.body.focus(); 0")
    reached = []
    for _ in range(30):
        page.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.ariaLabel || document.activeElement.id || document.activeElement.innerText")
        )
    wanted = ["Name of the class meadow", "Forget meadow", "Choose pictures of meadow", "Choose a folder of pictures of meadow"]
    wanted += ["Camera for meadow", "Name of the class night", "add", "live-toggle", "ask-files", "take-zip", "take-onnx"]
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
        tab.until("document.getElementById('known-sum').innerText.includes('Nothing learned yet')")
        assert not tab.evaluate("document.getElementById('token').open")
        tab.visit(f"{address}/#token=%CE%BB%0A")
        tab.until("document.getElementById('token').open")
        assert tab.text("trouble") == ""
        tab.evaluate("sessionStorage.clear()")
        tab.visit(f"{address}/#token={token}")
        tab.until("document.getElementById('known-sum').innerText.includes('Nothing learned yet')")
        assert tab.evaluate("location.href") == f"{address}/" and tab.complaints == []


def test_the_documentation_of_the_api_is_a_page_without_requests_elsewhere(tab, served):
    tab.visit(f"{served.address}/docs")
    assert "POST /api/predict" in tab.evaluate("document.body.innerText")
    assert all(url.startswith(served.address) for url in tab.requests) and tab.complaints == []
