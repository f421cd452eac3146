"""Headless Chromium, controlled by the DevTools protocol through a pipe, without a driver, a port or another package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"]
FLAGS += ["--remote-debugging-pipe", "--force-color-profile=srgb"]
# The browser reads commands from file 3 and answers to file 4.
START = "import os, sys; a, b = os.dup(int(sys.argv[1])), os.dup(int(sys.argv[2])); "
START += "a, b = (os.dup(a), os.dup(b)) if {a, b} & {3, 4} else (a, b); "
START += "os.dup2(a, 3); os.dup2(b, 4); os.execv(sys.argv[3], sys.argv[3:])"


def find_chromium() -> str | None:
    return os.environ.get("AMGC_CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A tab. `requests` and `complaints` are the requests and the console messages since `open`."""

    def __init__(self, path: str, flags: Sequence[str] = ()) -> None:
        self.home = tempfile.mkdtemp(prefix="amgc-chromium-")
        reads, self.commands = os.pipe()
        self.answers, writes = os.pipe()
        command = [sys.executable, "-c", START, str(reads), str(writes), path, *FLAGS, *flags, f"--user-data-dir={self.home}"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, pass_fds=(reads, writes), stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
        )
        os.close(reads)
        os.close(writes)
        self.rest, self.number, self.session = b"", 0, ""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def open(self, page: Path, width: int = 1400, dark: bool = False, media: str = "", javascript: bool = True) -> None:
        """Load the file in a window of this width. Return when it is rendered."""
        self.requests, self.complaints, self.loaded = [], [], False
        self.call("Emulation.setScriptExecutionDisabled", value=not javascript)
        self.resize(width)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not self.loaded:
            self._receive()
        if javascript:
            self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def resize(self, width: int, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode={"Tab": 9, "Enter": 13}[key]
            )

    def screenshot(self, path: Path, height: int | None = None, scale: float = 1) -> None:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": scale}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def print(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def close(self) -> None:
        os.close(self.commands)
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)  # its own processes: it has its own session
            self.process.wait()
        os.close(self.answers)
        shutil.rmtree(self.home, ignore_errors=True)

    def _receive(self, seconds: float = 300) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.answers], [], [], max(0, end - time.monotonic()))
            piece = os.read(self.answers, 1 << 20) if ready else b""
            if not piece:
                raise RuntimeError(f"Chromium says nothing (exit code {self.process.poll()}).")
            self.rest += piece
        text, self.rest = self.rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, about: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(f"console.{about['type']}: {[part.get('value') for part in about['args']]}")
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(about["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(f"{about['entry']['level']}: {about['entry']['text']}")
        elif method == "Page.loadEventFired":
            self.loaded = True
