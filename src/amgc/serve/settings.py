"""What a server is told: who may ask it, and how much of it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")  # what a browser on this machine calls a server that is bound to it


@dataclass(frozen=True)
class Limits:
    """Of a request, and of a client's requests."""

    upload_mb: int = 64  # of a request's body
    megapixels: int = 50  # of a picture, seen before it is decoded
    images: int = 200  # in a request
    rate: int = 1200  # requests a minute of one client; as many may come at once
    waiting: int = 8  # lessons in the queue; each holds its pictures in memory
    together_mb: int = 512  # of all bodies that are in memory at a time
    silence: int = 30  # seconds without a byte of a body that is not complete

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
    """`token`: demanded of every request to the API, if there is one. `names`: of hosts that are answered to; None: any."""

    token: str | None = None
    names: tuple[str, ...] | None = LOCAL_NAMES
    limits: Limits = field(default_factory=Limits)


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can reach what is bound to the address.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("box.lan")
    (True, True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
