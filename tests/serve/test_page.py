"""The page in a browser: teach, ask, forget; narrow and wide, light and dark; nothing complained about.

`AMGC_SCREENSHOTS=FOLDER pytest tests/serve/test_page.py` keeps the pictures; docs/serve.png is taken-1400-light.png.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
from landscapes import SKIES, landscape
from serving import server

from amgc.model import Model

pytest.importorskip("fastapi", reason="needs the extra `serve`")
CHROMIUM = browser.find_chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found; AMGC_CHROMIUM names one")
CAMERA = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]  # a green picture with a clock


class Tab(browser.Browser):
    """With what a person does to a page."""

    def visit(self, url: str, width: int = 1400) -> None:
        self.resize(width)
        self.scheme("light")
        for place in ("about:blank", url):  # a new start also where only what is behind the # differs
            self.requests, self.complaints, self.loaded = [], [], False
            self.call("Page.navigate", url=place)
            while not self.loaded:
                self._receive()

    def scheme(self, name: str) -> None:
        self.call("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": name}])

    def press(self, key: str, text: str = "") -> None:
        code = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}[key]
        text = {"Enter": "\r", " ": " "}.get(key, "")
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def until(self, expression: str, seconds: float = 60) -> Any:
        """The expression's value, once it is true."""
        end = time.monotonic() + seconds
        while not (found := self.evaluate(expression)):
            assert time.monotonic() < end, f"{expression} never came: {self.evaluate('document.body.innerText')}"
            time.sleep(0.05)
        return found

    def text(self, place: str) -> str:
        return str(self.evaluate(f"document.getElementById('{place}').innerText"))

    def click(self, selector: str) -> None:
        """With the mouse, at the middle of an element that can be seen."""
        self.evaluate(f"document.querySelector('{selector}').scrollIntoView({{block: 'center', behavior: 'instant'}})")
        x, y = self.evaluate(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])(document.querySelector('{selector}').getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def files(self, place: str, paths: list[Path]) -> None:
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=f"#{place}-files")["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def teach(self, label: str, paths: list[Path]) -> str:
        self.files("teach", paths)
        self.until(f"document.querySelectorAll('#teach-thumbs li').length === {len(paths)}")
        self.click("#teach-name")
        self.type(label)
        self.click("#teach-go")
        self.until(f"document.getElementById('teach-said').innerText.includes('Learned “{label}”')")
        return self.text("teach-said")

    def ask(self, path: Path) -> str:
        before = self.evaluate("document.querySelectorAll('#answers > li').length")
        self.files("ask", [path])
        self.until(f"document.querySelectorAll('#answers > li').length > {before}")
        return str(self.evaluate("document.querySelector('#answers > li').innerText"))


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    assert CHROMIUM
    browser.FLAGS += CAMERA
    tab = Tab(CHROMIUM)
    yield tab
    tab.close()
    for flag in CAMERA:
        browser.FLAGS.remove(flag)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> dict[str, list[Path]]:
    folder = tmp_path_factory.mktemp("drawn")
    found: dict[str, list[Path]] = {kind: [] for kind in SKIES}
    for kind, paths in found.items():
        for seed in range(14):
            paths.append(folder / f"{kind}-{seed + 1}.jpg")
            landscape(kind, seed).save(paths[-1], quality=90)
    return found


def keep(tab: Tab, tmp_path: Path, name: str) -> None:
    """Screenshots by day and by night, and that nothing sticks out of the window."""
    folder = Path(os.environ.get("AMGC_SCREENSHOTS") or tmp_path)
    for scheme in ("dark", "light"):
        tab.scheme(scheme)
        time.sleep(0.5)  # what moves comes to rest
        tab.screenshot(folder / f"{name}-{scheme}.png")
        assert (folder / f"{name}-{scheme}.png").stat().st_size > 10_000
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name}: wider than the window"


@pytest.fixture
def model(tmp_path) -> Path:
    """Knows nothing yet; small, so that it learns at once."""
    return Model.create(tmp_path / "model", filters=32).path


@pytest.mark.parametrize("width", [400, 1400])
def test_a_person_teaches_asks_and_makes_it_forget(tab, drawn, model, tmp_path, width):
    with server(model, home=tmp_path) as served:
        assert "knows nothing yet" in served.said
        tab.visit(served.address, width)
        tab.until("document.getElementById('known-sum').textContent")
        assert "Nothing yet" in tab.text("known-sum") and "has to learn something" in tab.text("ask-needs")
        keep(tab, tmp_path, f"empty-{width}")

        assert "from 12 pictures" in tab.teach("sunset", drawn["sunset"][:12])
        assert "one class only" in tab.text("ask-needs")
        tab.teach("meadow", drawn["meadow"][:12])
        told = tab.teach("night sky", drawn["night"][:12])
        assert "None of them was kept." in told
        assert tab.text("ask-needs") == "" and "3 classes, learned from 36 pictures. None of them was kept." in tab.text("known-sum")
        assert tab.evaluate("[...document.querySelectorAll('#known-names option')].map(one => one.value)") == [
            *("sunset", "meadow", "night sky")
        ]

        assert tab.ask(drawn["meadow"][13]).startswith("meadow")
        assert tab.evaluate("document.querySelectorAll('#answers > li:first-child .bars li').length") == 3
        told = tab.ask(drawn["desert"][13])
        assert told.startswith("None of these") and "fewer than 1 in 100" in told
        assert tab.ask(drawn["sunset"][13]).startswith("sunset")
        tab.files("teach", drawn["desert"][:5])
        tab.click("#teach-name")
        tab.type("desert")
        keep(tab, tmp_path, f"taken-{width}")

        tab.click("#classes li:nth-child(2) button")
        assert tab.text("forget-title") == "Forget “meadow”?"
        keep(tab, tmp_path, f"forget-{width}")
        tab.press("Enter")  # the focus is on what does no harm
        assert not tab.evaluate("document.getElementById('forget').open") and "3 classes" in tab.text("known-sum")
        tab.click("#classes li:nth-child(2) button")
        tab.click("#forget-yes")
        tab.until("document.getElementById('known-said').innerText === 'Forgot “meadow”.'")
        assert "2 classes, learned from 24 pictures" in tab.text("known-sum")
        assert not tab.ask(drawn["meadow"][13]).startswith("meadow")
        assert all(url.startswith((served.address, "blob:")) for url in tab.requests)
        assert tab.complaints == []
