"""Settings of a server: who has access, and limits of requests."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")  # names under which a browser on this machine reaches the server


@dataclass(frozen=True)
class Limits:
    """Limits of requests."""

    upload_mb: int = 64  # size of a request's body
    megapixels: int = 50  # size of an image, checked before it is decoded
    images: int = 200  # images per request
    rate: int = 1200  # requests per minute and client; also the largest burst
    waiting: int = 8  # updates in the queue; each keeps its images in memory
    together_mb: int = 512  # size of all request bodies in memory
    silence: int = 30  # seconds without data before an incomplete request is aborted

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
    """

    token: str | None = None
    names: tuple[str, ...] | None = LOCAL_NAMES
    limits: Limits = field(default_factory=Limits)


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("box.lan")
    (True, True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
