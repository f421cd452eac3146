"""How often a client may ask: an allowance that fills up again as time goes by."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

CLIENTS = 10_000  # that are remembered; of more, those that were not heard of for longest are forgotten


class Allowance:
    """`rate` requests a minute for each client, which may come at once.

    >>> now = 0.0
    >>> allowance = Allowance(60, clock=lambda: now)
    >>> [allowance.wait("a") for _ in range(61)][-2:], allowance.wait("b")
    ([0, 1], 0)
    >>> now = 1.0
    >>> allowance.wait("a"), allowance.wait("a")
    (0, 1)
    """

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.clock = rate, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # requests, and when that was

    def wait(self, client: str) -> int:
        """0 if the client may ask now, which is counted; else the whole seconds until it may."""
        now = self.clock()
        left, then = self._left.get(client, (float(self.rate), now))
        left = min(self.rate, left + (now - then) * self.rate / 60)
        allowed = left >= 1
        self._left[client] = (left - allowed, now)
        self._left.move_to_end(client)
        if len(self._left) > CLIENTS:
            self._left.popitem(last=False)
        return 0 if allowed else math.ceil((1 - left) * 60 / self.rate)


def client_of(address: str) -> str:
    """Who counts as one: an IPv4 address, or the network of an IPv6 one, of which a single machine has many.

    >>> client_of("10.0.0.7"), client_of("2001:db8::1") == client_of("2001:db8::2"), client_of("testclient")
    ('10.0.0.7', True, 'testclient')
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return address if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False))
