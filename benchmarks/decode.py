"""JPEG files decoded per second, by threads and by worker processes; photographs of 500 × 376 and of 64 × 64 pixels.

Why `amgc.data.decode.Files` uses threads. Run: python benchmarks/decode.py
"""

from __future__ import annotations

import platform
import tempfile
import time
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from amgc.data.decode import available_cores, decode

ROUNDS = 3


def write(folder: Path, width: int, height: int, count: int) -> list[Path]:
    random = np.random.RandomState(0)
    paths = [folder / f"{width}-{number}.jpg" for number in range(count)]
    for path in paths:  # smooth, as photographs are: noise would cost more to decode
        coarse = Image.fromarray(random.randint(0, 256, (height // 8, width // 8, 3), dtype=np.uint8))
        coarse.resize((width, height), Image.Resampling.BICUBIC).save(path, quality=90)
    return paths


def rate(pool: Executor | None, paths: list[Path], size: int) -> float:
    function = partial(decode, size=size)
    mapper = map if pool is None else partial(pool.map, chunksize=16)
    list(mapper(function, paths[:16]))  # workers have started
    start = time.perf_counter()
    list(mapper(function, paths))
    return len(paths) / (time.perf_counter() - start)


def main() -> None:
    cores = available_cores()
    print(f"{platform.processor() or platform.machine()}, {cores} cores; images/s, best of {ROUNDS}")
    with tempfile.TemporaryDirectory() as folder:
        for width, height, size, count in ((500, 376, 256, 200), (64, 64, 64, 2000)):
            paths = write(Path(folder), width, height, count)
            best: dict[str, float] = {}
            for _ in range(ROUNDS):
                with ThreadPoolExecutor(cores) as threads, ProcessPoolExecutor(cores) as processes:
                    for name, pool in (("serial", None), ("threads", threads), ("processes", processes)):
                        best[name] = max(best.get(name, 0.0), rate(pool, paths, size))
            print(f"{width} × {height} → {size}:", ", ".join(f"{name} {value:,.0f}" for name, value in best.items()))


if __name__ == "__main__":
    main()
