"""Middleware that controls access to the server, limits requests and sets security headers. It checks:

- Host: the name of another site may resolve to 127.0.0.1 (DNS rebinding). Its pages would then have the same origin as the
  server. But they cannot change the host name that the browser sends.
- Origin and Sec-Fetch-Site: a page of another site may send a form to the server. The browser sends the origin of the page.
- Token: compared in constant time. The files of the page need no token, because they reveal nothing about the model.
- The rate of requests of each client, and the size of bodies: of one request, and of all requests in memory.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from amgc.serve.errors import ApiError

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")  # names under which a browser on this machine reaches the server
PORT = re.compile(r":[0-9]*\Z")  # at the end of a Host header
MAX_CLIENTS = 10_000  # clients whose rate is tracked; beyond that, the least recent ones are dropped
SLOW = 408, "The data of the request arrived too slowly; send fewer pictures at a time."
SLOWEST = 64_000  # bytes; a slower body would occupy its connection and memory for hours
API, HEALTH, METRICS = "/api/", "/api/health", "/metrics"
CONTENT_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Limits:
    """Limits of requests."""

    upload_mb: int = 64  # size of a request's body
    megapixels: int = 50  # size of an image, checked before it is decoded
    images: int = 200  # images per request
    rate: int = 1200  # requests per minute and client; also the largest burst
    waiting: int = 8  # updates in the queue; each keeps its images in memory
    total_upload_mb: int = 512  # size of all request bodies in memory
    timeout: int = 30  # seconds in which at least SLOWEST bytes of an incomplete request must arrive
    patience: int = 600  # seconds in which a whole request must arrive
    total_megapixels: int = 1000  # size of all images of a request

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}.")

    @property
    def upload_bytes(self) -> int:
        return self.upload_mb * 1_000_000

    @property
    def pixels(self) -> int:
        return self.megapixels * 1_000_000


@dataclass(frozen=True)
class Settings:
    """Access to a server.

    token : required of every API request; None for no token.
    names : accepted host names; None for any.
    hold : lessons of fewer images of a class stay in memory until there are as many, or the server is stopped.
    """

    token: str | None = None
    names: tuple[str, ...] | None = LOCAL_NAMES
    limits: Limits = field(default_factory=Limits)
    hold: int = 1


class Guard:
    """Check host, origin, rate, token and size of requests."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings = app, settings
        self.rate = RateLimit(settings.limits.rate)
        self.received_bytes = 0  # size of all bodies in memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # "lifespan"; web sockets are disabled
            await self.app(scope, receive, send)
            return
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        body = Body(self, receive)
        try:
            self.check(scope)
            body.expect(Headers(scope=scope).get("content-length"))
            await self.app(scope, body.receive, answer)
        except ApiError as problem:
            if started:
                raise
            refusal = JSONResponse({"detail": problem.detail}, problem.status_code, dict(problem.headers or {}))
            await refusal(scope, receive, answer)
        finally:
            self.received_bytes -= body.size

    def check(self, scope: Scope) -> None:
        """Raise an error for a request that is not allowed."""
        headers, path = Headers(scope=scope), scope["path"]
        host = headers.get("host", "")
        if self.settings.names is not None and PORT.sub("", host.lower()) not in self.settings.names:
            raise ApiError(403, "This server accepts only the names of its own machine, such as 127.0.0.1 and localhost.")
        if not path.startswith((API, METRICS)) or path == HEALTH:
            return
        origin = headers.get("origin")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") or not _same(origin, host):
            raise ApiError(403, "The request comes from a page of another site.")
        client = scope.get("client")
        seconds = self.rate.wait(client_of(client[0] if client else ""))
        if seconds:
            raise ApiError(429, f"Too many requests; try again in {seconds} s.", seconds)
        if self.settings.token is not None and not _authorised(headers.get("authorization", ""), self.settings.token):
            raise ApiError(401, "The token is missing or wrong; send it as `Authorization: Bearer TOKEN`.")


class Body:
    """The body of a request, counted while it is received."""

    def __init__(self, guard: Guard, receive: Receive) -> None:
        self.guard, self._receive = guard, receive
        self.limits = guard.settings.limits
        self.size = 0
        self._complete = False
        self._began: float | None = None  # when the first part was waited for
        self._since, self._came = 0.0, 0  # the current period of `timeout` seconds, and the bytes that came in it

    def expect(self, length: str | None) -> None:
        """Reject a body whose Content-Length is too large, before reading it."""
        if length is not None and length.isascii() and length.isdigit():
            self._check(int(length[:18]))

    async def receive(self) -> Message:
        if self._complete:  # the next message, at any time, says that the client has disconnected
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), max(self._seconds_left(), 0.05))  # what is there is received
        except asyncio.TimeoutError:
            raise ApiError(*SLOW) from None
        self._complete = not message.get("more_body", False)
        came = len(message.get("body", b""))
        self._came += came
        if not self._complete and self._seconds_left() <= 0:
            raise ApiError(*SLOW)
        self._check(self.size + came)
        if self.guard.received_bytes + came > self.limits.total_upload_mb * 1_000_000:
            raise ApiError(503, "Too many pictures are being sent at the same time; try again in 2 s.", 2)
        self.guard.received_bytes += came
        self.size += came
        return message

    def _seconds_left(self) -> float:
        """Return how long to wait: until the end of the period, in which SLOWEST bytes must arrive, or of `patience`."""
        now = time.monotonic()
        if self._began is None:
            self._began = self._since = now
        if self._came >= SLOWEST:
            self._since, self._came = now, 0
        return min(self._since + self.limits.timeout, self._began + self.limits.patience) - now

    def _check(self, size: int) -> None:
        if size > self.limits.upload_bytes:
            raise ApiError(413, f"A request may have at most {self.limits.upload_mb} MB; send fewer or smaller pictures.")


def _same(origin: str | None, host: str) -> bool:
    """Return whether the request comes from a page of this server. Programs other than browsers send no origin."""
    if origin is None:
        return True
    try:
        found = urlsplit(origin)
        return found.scheme in ("http", "https") and found.netloc.lower() == host.lower() != ""
    except ValueError:  # not a URL, such as http://[::1
        return False


def _authorised(header: str, token: str) -> bool:
    scheme, _, given = header.partition(" ")
    return secrets.compare_digest(given.strip().encode(), token.encode()) and scheme.lower() == "bearer"


class RateLimit:
    """Allow `rate` requests per minute and client (token bucket).

    >>> now = 0.0
    >>> limit = RateLimit(60, clock=lambda: now)
    >>> [limit.wait("a") for _ in range(61)][-2:], limit.wait("b")
    ([0, 1], 0)
    >>> now = 1.0
    >>> limit.wait("a"), limit.wait("a")
    (0, 1)
    """

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.clock = rate, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # by client: remaining requests, time of the count

    def wait(self, client: str) -> int:
        """Count a request and return 0 if it is allowed, else the number of seconds to wait."""
        now = self.clock()
        left, then = self._left.get(client, (float(self.rate), now))
        left = min(self.rate, left + (now - then) * self.rate / 60)
        allowed = left >= 1
        self._left[client] = (left - allowed, now)
        self._left.move_to_end(client)
        if len(self._left) > MAX_CLIENTS:
            self._left.popitem(last=False)
        return 0 if allowed else math.ceil((1 - left) * 60 / self.rate)


def client_of(address: str) -> str:
    """Return the identity of a client: its IPv4 address, or the /64 network of its IPv6 address.

    >>> client_of("10.0.0.7"), client_of("2001:db8::1") == client_of("2001:db8::2"), client_of("testclient")
    ('10.0.0.7', True, 'testclient')
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return address if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False))


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("box.lan")
    (True, True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
