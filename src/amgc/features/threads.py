"""Divide images among threads, each of which computes with one core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch


def in_threads(function: Callable[..., None], calls: Sequence[tuple[Any, ...]], threads: int) -> None:
    """Call `function` with each tuple of arguments. For small operations this scales better than several cores for each.

    Modes of torch are per thread: a new thread enters those of its caller that matter for inference.
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
