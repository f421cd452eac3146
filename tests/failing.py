"""Let one of the calls through which a change reaches the disk fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def failing(
    patch: pytest.MonkeyPatch, steps: Sequence[tuple[Any, str]], number: int, fail: Callable[[], None]
) -> Iterator[list[str]]:
    """Let the `number`-th call of these functions, given by home and name, fail. Gives the names of the calls so far."""
    called: list[str] = []

    def watched(name: str, whole: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            called.append(name)
            if len(called) == number:
                fail()
            return whole(*args, **kwargs)

        return step

    with patch.context() as inner:
        for home, name in steps:
            inner.setattr(home, name, watched(name, getattr(home, name)))
        yield called
