"""Stands before the application: who asks, from where, how often and how much; and what every answer says to browsers.

- Host: a page of some other site may let its own name point to 127.0.0.1 (DNS rebinding), and would then be of the same origin
  as the server. It cannot change the name that the browser sends.
- Origin, Sec-Fetch-Site: a page of some other site may send a form here. Its browser says where it comes from.
- Token: compared in constant time. Files of the page need none; they say nothing of the model.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from amgc.serve.problems import Problem
from amgc.serve.rate import Allowance, client_of
from amgc.serve.settings import Settings

PORT = re.compile(r":[0-9]*\Z")  # at the end of a Host header
API, HEALTH = "/api/", "/api/health"
POLICY = "; ".join(
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
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Middleware. Bodies are counted while they are read: none is longer than allowed, nor are all that are read together."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings = app, settings
        self.allowance = Allowance(settings.limits.rate)
        self.together = 0  # bytes of bodies in memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # there are no web sockets; "lifespan" is the server's own
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
        except Problem as problem:
            if started:
                raise
            refusal = JSONResponse({"detail": problem.detail}, problem.status_code, dict(problem.headers or {}))
            await refusal(scope, receive, answer)
        finally:
            self.together -= body.size

    def check(self, scope: Scope) -> None:
        headers, path = Headers(scope=scope), scope["path"]
        host = headers.get("host", "")
        if self.settings.names is not None and PORT.sub("", host.lower()) not in self.settings.names:
            raise Problem(403, "This server answers only to the names of its own machine, such as 127.0.0.1 and localhost.")
        if not path.startswith(API) or path == HEALTH:
            return
        origin = headers.get("origin")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") or not _same(origin, host):
            raise Problem(403, "The request comes from a page of another site.")
        client = scope.get("client")
        seconds = self.allowance.wait(client_of(client[0] if client else ""))
        if seconds:
            raise Problem(429, f"Too many requests; try again in {seconds} s.", seconds)
        if self.settings.token is not None and not _authorised(headers.get("authorization", ""), self.settings.token):
            raise Problem(401, "The token is missing or wrong; send it as `Authorization: Bearer TOKEN`.")


class Body:
    """A request's body on its way in."""

    def __init__(self, guard: Guard, receive: Receive) -> None:
        self.guard, self._receive = guard, receive
        self.limits = guard.settings.limits
        self.size = 0  # bytes in memory
        self._complete = False

    def expect(self, length: str | None) -> None:
        """Refuse a body that is announced as too long, before any of it is read. Room is taken by what comes alone."""
        if length is not None and length.isascii() and length.isdigit():
            self._check(int(length[:18]))

    async def receive(self) -> Message:
        if self._complete:  # what comes now is that the client goes, whenever it likes
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), self.limits.silence)
        except asyncio.TimeoutError:
            raise Problem(408, f"Nothing of the request came for {self.limits.silence} s.") from None
        self._complete = not message.get("more_body", False)
        came = len(message.get("body", b""))
        self._check(self.size + came)
        if self.guard.together + came > self.limits.together_mb * 1_000_000:
            raise Problem(503, "Too many pictures are being sent at this moment; try again in 2 s.", 2)
        self.guard.together += came
        self.size += came
        return message

    def _check(self, size: int) -> None:
        if size > self.limits.upload_bytes:
            raise Problem(413, f"A request may have {self.limits.upload_mb} MB at most; send fewer or smaller pictures.")


def _same(origin: str | None, host: str) -> bool:
    """Whether the page that asks is this server's; programs that are no browsers name none."""
    return origin is None or urlsplit(origin).netloc.lower() == host.lower() != ""


def _authorised(header: str, token: str) -> bool:
    scheme, _, given = header.partition(" ")
    return secrets.compare_digest(given.strip().encode(), token.encode()) and scheme.lower() == "bearer"
