"""Divide images among threads that use one core each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch


def in_threads(function: Callable[..., None], calls: Sequence[tuple[Any, ...]], threads: int) -> None:
    """Call `function` with each tuple of arguments, in threads. For small operations this is faster than torch's own threads.

    Modes of torch are set per thread, so a new thread enters inference mode if its caller is in it.
    """
    inference = torch.is_inference_mode_enabled()

    def run(arguments: tuple[Any, ...]) -> None:
        with torch.inference_mode(inference), torch.no_grad(), torch.autocast("cpu", enabled=False):
            function(*arguments)

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(run, calls))
    finally:
        torch.set_num_threads(before)
