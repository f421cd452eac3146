"""Numbers about a server in the text format of Prometheus, `/healthz` and `/readyz`, and one line of JSON for each request.

Processes that serve one model share an array of numbers, so that each of them can report the sum.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, MutableSequence
from contextlib import suppress
from pathlib import Path

from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PATHS = ("/api/predict", "/api/learn", "other")
STATUSES = ("2xx", "4xx", "503", "5xx")
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)  # seconds
COUNTERS = {
    "images": "images that were classified",
    "batches": "calls of the extractor",
    "refused": "requests that were refused because too many images were waiting",
}
GAUGES = {"waiting": "images that are waiting to be classified"}
NAMES = (
    *COUNTERS,
    *GAUGES,
    *(f"requests {path} {status}" for path in PATHS for status in STATUSES),
    *(f"seconds {bound}" for bound in (*BUCKETS, "inf")),
    "seconds sum",
)
PLACES = {name: place for place, name in enumerate(NAMES)}
LOG = logging.getLogger("amgc.access")


class Metrics:
    """Counters of one process, in its row of a table that all processes share."""

    def __init__(self, table: MutableSequence[float] | None = None, worker: int = 0) -> None:
        self.table: MutableSequence[float] = [0.0] * len(NAMES) if table is None else table
        self.start = worker * len(NAMES)

    def add(self, name: str, amount: float = 1.0) -> None:
        self.table[self.start + PLACES[name]] += amount

    def set(self, name: str, value: float) -> None:
        self.table[self.start + PLACES[name]] = value

    def total(self, name: str) -> float:
        return sum(self.table[PLACES[name] :: len(NAMES)])

    def observe(self, path: str, status: int, seconds: float) -> None:
        known = path if path in PATHS else "other"
        kind = "503" if status == 503 else f"{min(max(status // 100, 2), 5)}xx".replace("3xx", "2xx")
        self.add(f"requests {known} {kind}")
        if known == "/api/predict":
            self.add(f"seconds {next((bound for bound in BUCKETS if seconds <= bound), 'inf')}")
            self.add("seconds sum", seconds)

    def text(self, gauges: dict[str, float]) -> str:
        """Return all numbers; `gauges` are further ones, of the model."""
        lines: list[str] = []

        def metric(name: str, kind: str, about: str, values: dict[str, float]) -> None:
            lines.extend([f"# HELP amgc_{name} {about}", f"# TYPE amgc_{name} {kind}"])
            lines.extend(f"amgc_{name}{labels} {value:g}" for labels, value in values.items())

        pairs = [(path, status) for path in PATHS for status in STATUSES]
        counts = {f'{{path="{path}",status="{status}"}}': self.total(f"requests {path} {status}") for path, status in pairs}
        metric("requests_total", "counter", "requests by path and status", counts)
        for name, about in COUNTERS.items():
            metric(f"{name}_total", "counter", about, {"": self.total(name)})
        for name, about in GAUGES.items():
            metric(name, "gauge", about, {"": self.total(name)})
        seen, buckets = 0.0, dict[str, float]()
        for bound in (*BUCKETS, "inf"):
            seen += self.total(f"seconds {bound}")
            buckets[f'_bucket{{le="{"+Inf" if bound == "inf" else bound}"}}'] = seen
        buckets |= {"_sum": self.total("seconds sum"), "_count": seen}
        metric("predict_seconds", "histogram", "time of predictions", buckets)
        for name, value in gauges.items():
            metric(name, "gauge", name.replace("_", " "), {"": value})
        return "\n".join(lines) + "\n"


class RequestMetrics:
    """Middleware that counts and logs requests and answers /healthz and /readyz. It is the outermost one.

    ready : whether the server can answer. log : whether to write a line for each request.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, ready: Callable[[], bool], log: bool = False) -> None:
        self.app, self.metrics, self.ready, self.log = app, metrics, ready, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.monotonic(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
            await send(message)

        try:
            if scope["path"] == "/healthz":
                await PlainTextResponse("ok\n")(scope, receive, send)
            elif scope["path"] == "/readyz":
                ready = self.ready()
                await PlainTextResponse("ready\n" if ready else "not ready\n", 200 if ready else 503)(scope, receive, send)
            else:
                await self.app(scope, receive, noted)
        finally:
            seconds = time.monotonic() - start
            if scope["path"] not in ("/healthz", "/readyz"):
                self.metrics.observe(scope["path"], status, seconds)
                if self.log:
                    about = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "method": scope["method"]}
                    about |= {"path": scope["path"][:200], "status": status, "ms": round(1000 * seconds, 1)}
                    LOG.info(json.dumps(about))


class ReadOnly:
    """Middleware that refuses changes."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD", "OPTIONS") and scope["path"] != "/api/predict":
            text = "This server only answers. Teach the model with `amgc learn`, or with an `amgc serve` without --workers."
            await JSONResponse({"detail": text}, 403)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def log_to_stderr() -> None:
    """Write the lines of requests to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False


def resident_bytes() -> float:
    """Return the memory of this process; 0 where it is not known."""
    with suppress(OSError, ValueError, IndexError):
        return 1024.0 * int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0])
    return 0.0
