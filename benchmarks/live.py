"""Count the answers a second that the page of `amgc serve` shows while a camera runs: a fake one in Chromium.

    python benchmarks/live.py            # about a minute; keep the machine otherwise idle
    python benchmarks/live.py --quick    # two seconds

A model of five classes with lite0 (the extra `photos`) is served with the default settings. Browser and server share the
machine, so each answer includes taking the picture, encoding it as JPEG, the request, decoding, features and drawing the bars.
Answers are counted in the page by completed requests, in windows of five seconds after the first twenty answers. Needs Chromium
(`AMGC_CHROMIUM` names one that is not on the PATH).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from _report import kept
from start import make_model

from amgc.data.image_files import available_cores

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from browser import Browser, find_chromium
from serving import server

CAMERA = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]  # 20 pictures a second, 640 x 480 pixels
GOAL = 5  # answers a second
WARM = 20  # answers before the first window; 2 of a quick run
ANSWERS = "performance.getEntriesByType('resource').filter(({ name, responseEnd }) => name.includes('/predict') && responseEnd)"


def measure(address: str, chromium: str, windows: int, seconds: float, warm: int) -> tuple[list[float], float]:
    """Return the answers a second of each window, and the median milliseconds of a request."""
    tab = Browser(chromium, CAMERA)
    try:
        tab.resize(1400)
        tab.call("Page.navigate", url=address)
        wait(tab, "document.getElementById('known-sum')?.innerText.includes('5 classes')")
        tab.evaluate("performance.setResourceTimingBufferSize(100000); document.getElementById('live-toggle').click()")
        wait(tab, f"{ANSWERS}.length >= {warm}")
        rates = []
        for _ in range(windows):
            before, start = tab.evaluate(f"[{ANSWERS}.length, performance.now()]")
            time.sleep(seconds)
            after, end = tab.evaluate(f"[{ANSWERS}.length, performance.now()]")
            rates.append(1000 * (after - before) / (end - start))
        took = tab.evaluate(f"{ANSWERS}.slice({warm}).map(({{ duration }}) => duration)")
        return rates, statistics.median(took)
    finally:
        tab.close()


def wait(tab: Browser, expression: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not tab.evaluate(f"!!({expression})"):
        if time.monotonic() > end:
            raise SystemExit(f"The page does not come to {expression}: {tab.evaluate('document.body.innerText')}")
        time.sleep(0.1)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true")
    quick = arguments.parse_args().quick
    with tempfile.TemporaryDirectory() as folder, kept("live"):
        chromium = find_chromium()
        if chromium is None:
            print("Chromium was not found, so nothing was measured.")
            raise SystemExit(0 if quick else 1)
        model = make_model(Path(folder))
        with server(model, home=Path(folder), OMP_NUM_THREADS=str(available_cores())) as served:
            rates, took = measure(served.address, chromium, 1 if quick else 10, 1 if quick else 5, 2 if quick else WARM)
        print(
            f"  answers a second: {statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f}), goal at least {GOAL}"
        )
        print(f"  milliseconds of a request: {took:.0f}")


if __name__ == "__main__":
    main()
