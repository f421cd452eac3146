"""The page in a browser, with the actions of a user."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
from landscapes import SKIES, landscape
from serving import BASE, Server, server, taught

from amgc.model import Model

KNOWN = ("meadow", "night")  # to the server that many tests share
LOOK = "document.dispatchEvent(new Event('visibilitychange'))"  # so that the page looks at once
CAMERA = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]  # a green picture with a clock

# A window that was resized is drawn again one or two frames later, and clicks go to where things were drawn. A window that is
# not shown has no frames.
FRAMES = """Promise.race([new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))),
    new Promise((done) => setTimeout(done, 200))]).then(() => true)"""


class Tab(browser.Browser):
    """A browser tab with the actions of a user."""

    def visit(self, url: str, width: int = 1400) -> None:
        self.resize(width)
        self.scheme("light")
        for place in ("about:blank", url):  # a new start also where only what is behind the # differs
            self.requests, self.complaints, self.loaded = [], [], False
            self.call("Page.navigate", url=place)
            while not self.loaded:
                self._receive()

    def scheme(self, name: str) -> None:
        """Set light or dark mode, without animations, so that tests need not wait for them."""
        wishes = {"prefers-color-scheme": name, "prefers-reduced-motion": "reduce"}
        features = [{"name": wish, "value": value} for wish, value in wishes.items()]
        self.call("Emulation.setEmulatedMedia", media="", features=features)

    def press(self, key: str, text: str = "") -> None:
        code = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}[key]
        text = {"Enter": "\r", " ": " "}.get(key, "")
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def until(self, expression: str, seconds: float = 120) -> None:
        """Wait for the expression to be true."""
        end = time.monotonic() + seconds
        while not self.evaluate(f"!!({expression})"):
            assert time.monotonic() < end, f"{expression} never came: {self.evaluate('document.body.innerText')}"
            time.sleep(0.05)

    def text(self, place: str) -> str:
        return str(self.evaluate(f"document.getElementById('{place}').innerText"))

    def click(self, selector: str) -> None:
        """Click with the mouse at the centre of a visible element."""
        x, y = self.centre(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def files(self, selector: str, paths: list[Path]) -> None:
        """Choose files, or a folder, in a file input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def drop(self, selector: str, paths: list[Path]) -> None:
        """Drop files or folders, as from a desktop."""
        x, y = self.centre(selector)
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def centre(self, selector: str) -> tuple[float, float]:
        """Scroll to an element and return its centre, as soon as the window shows it there."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{place}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        self.evaluate(FRAMES)
        x, y = self.evaluate(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({place}.getBoundingClientRect())")
        return x, y

    def card(self, label: str, rest: str = "") -> str:
        """Return the selector of a part of the card of a class."""
        found = f"[...document.querySelectorAll('.card')].findIndex((one) => one.card.label === {json.dumps(label)})"
        self.until(f"{found} >= 0")
        return f".card:nth-child({self.evaluate(found) + 1}) {rest}".strip()

    def said(self, label: str) -> str:
        return str(self.evaluate(f"document.querySelector({json.dumps(self.card(label, '> .said'))}).innerText"))

    def rename(self, label: str, to: str) -> None:
        """Type another name on the card."""
        self.click(self.card(label, ".name"))
        self.type(to)
        self.press("Enter")

    def teach(self, label: str, paths: list[Path]) -> str:
        """Choose pictures on the card of a class; an unused card gets the name. Return what the page says."""
        cards = "[...document.querySelectorAll('.card')]"
        if not self.evaluate(f"{cards}.some(({{ card }}) => card.label === {json.dumps(label)})"):
            free = self.evaluate(f"{cards}.find(({{ card }}) => !card.known && !card.busy)?.card.label")
            if free is None:
                self.click("#add")
                self.type(label)
                self.press("Enter")
            else:
                self.rename(free, label)
        self.files(self.card(label, ".files"), paths)
        said = self.card(label, "> .said")
        self.until(f"document.querySelector({json.dumps(said)}).innerText.includes('Learned from')")
        return self.said(label)

    def correct(self, place: str, label: str) -> None:
        """Say under an answer that the picture is of another class."""
        opened = "document.activeElement.matches('.correct input')"
        for _ in range(3):  # what is taught meanwhile may move it
            self.click(f"{place} summary")
            with contextlib.suppress(AssertionError):
                self.until(opened, seconds=10)
                break
        self.until(opened, seconds=1)
        self.type(label)
        self.press("Enter")
        self.until(f"document.querySelector('{place} .said').innerText.includes('Learned this picture as “{label}”.')")

    def ask(self, *paths: Path) -> str:
        """Ask about pictures and return the words of the first answer."""
        before = self.evaluate("document.querySelectorAll('#answers > li').length")
        self.files("#ask-files", list(paths))
        self.until(f"document.querySelectorAll('#answers > li').length === {before + len(paths)}")
        return str(self.evaluate("document.querySelector('#answers > li').innerText"))


@pytest.fixture(scope="session")
def tab() -> Iterator[Tab]:
    path = browser.find_chromium()
    if path is None:
        pytest.skip("no Chromium found; AMGC_CHROMIUM names one")
    tab = Tab(path, CAMERA)
    yield tab
    tab.close()


@pytest.fixture(scope="session")
def drawn(tmp_path_factory) -> dict[str, list[Path]]:
    folder = tmp_path_factory.mktemp("drawn")
    found: dict[str, list[Path]] = {kind: [] for kind in SKIES}
    for kind, paths in found.items():
        for seed in range(14):
            paths.append(folder / f"{kind}-{seed + 1}.jpg")
            landscape(kind, seed).save(paths[-1], quality=90)
    return found


@pytest.fixture(scope="session")
def served(tmp_path_factory) -> Iterator[Server]:
    """Serve a model of two classes, for many tests. `other` restores it before each test."""
    home = tmp_path_factory.mktemp("page")
    model = Model.create(home / "model", filters=32)
    model.learn_all({kind: [landscape(kind, seed) for seed in range(8)] for kind in KNOWN})
    with server(model.path, "--hold", "1", home=home) as served:  # what is in memory would stay for the next test
        served.first = model.state
        yield served


@pytest.fixture
def other(tab, served) -> Model:
    """Open the served model in the process of the test, as it was before all tests."""
    tab.visit("about:blank")  # the page of another test may still be teaching
    return Model.open(served.process.args[6]).restore(served.first).drop_previous()


@pytest.fixture
def page(tab, served, other) -> Tab:
    tab.visit(served.address, 700)
    tab.until(f"{LOOK} && document.getElementById('known-sum').innerText.includes('2 classes, learned from 16 pictures')")
    return tab


@pytest.fixture
def model(tmp_path) -> Model:
    return taught(tmp_path / "model")


@pytest.fixture
def client(model) -> Iterator[Any]:
    from fastapi.testclient import TestClient  # of the extra `serve`; files without it skip

    from amgc.serve.app import create_app

    with TestClient(create_app(model), base_url=BASE) as client:
        yield client
