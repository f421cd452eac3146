"""Limits of connections: their number, and the time that a client may take to send the header of a request."""

from __future__ import annotations

import asyncio
import itertools

from uvicorn.protocols.http.h11_impl import H11Protocol

from amgc.serve.guard import client_of

MOST = 500  # connections
MOST_OF_CLIENT = 250  # connections of one client, as in `client_of`
HEADER_SECONDS = 10  # from the first byte, or from the connection, to the end of the header

_numbers = itertools.count()


class Connection(H11Protocol):
    """A connection with limits.

    If there are too many connections, of this client or in total, the oldest one that waits for its client is closed: first
    those without a complete header, then those without a complete body. The new one is closed if all others are being answered.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.number = next(_numbers)
        self.address = client_of(self.client[0] if self.client else "")
        self._expect_header()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.stage == 0:
            self._expect_header()
        else:
            self._stop_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    @property
    def stage(self) -> int:
        """0: between requests, or in a header. 1: in a body. 2: the request is complete and being answered."""
        if self.cycle is None or self.cycle.response_complete:
            return 0
        return 1 if self.cycle.more_body else 2

    def _expect_header(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _make_room(self) -> None:
        every = [one for one in self.connections if isinstance(one, Connection)]
        own = [one for one in every if one.address == self.address]
        crowd = own if len(own) > MOST_OF_CLIENT else every if len(every) > MOST else []
        if crowd:
            waiting = [one for one in crowd if one.stage < 2 and one is not self]
            closed = min(waiting, key=lambda one: (one.stage, one.number), default=self)
            self.connections.discard(closed)  # now, because others may connect before it is closed
            closed.transport.abort()
