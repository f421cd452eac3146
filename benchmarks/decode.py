"""JPEG files decoded per second by threads and by worker processes, for photographs of 500 × 376 and of 64 × 64 pixels.

    python benchmarks/decode.py            # half a minute
    python benchmarks/decode.py --quick    # few files, seconds

This is why `amgc.data.image_files.Files` uses threads.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from _report import kept, side_by_side
from PIL import Image

from amgc.data.decode import decode
from amgc.data.image_files import available_cores

SIZES = ((500, 376, 256, 200), (64, 64, 64, 2000))  # width and height of the files, side of the result, number of files


def write(folder: Path, width: int, height: int, count: int) -> list[Path]:
    random = np.random.RandomState(0)
    paths = [folder / f"{width}-{number}.jpg" for number in range(count)]
    for path in paths:  # smooth, as photographs are: noise would cost more to decode
        coarse = Image.fromarray(random.randint(0, 256, (height // 8, width // 8, 3), dtype=np.uint8))
        coarse.resize((width, height), Image.Resampling.BICUBIC).save(path, quality=90)
    return paths


def decoding(pool: Executor | None, paths: list[Path], size: int) -> Callable[[], object]:
    mapper = map if pool is None else partial(pool.map, chunksize=16)
    return lambda: list(mapper(partial(decode, size=size), paths))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="few files, to see that it runs")
    quick = arguments.parse_args().quick
    rounds, share = (1, 100) if quick else (5, 1)
    cores = available_cores()
    with kept("decode"), tempfile.TemporaryDirectory() as folder:
        for width, height, size, count in SIZES[-1:] if quick else SIZES:
            count //= share
            paths = write(Path(folder), width, height, count)
            with ThreadPoolExecutor(cores) as threads, ProcessPoolExecutor(cores) as processes:
                pools = {"serial": None, f"{cores} threads": threads, f"{cores} processes": processes}
                times = side_by_side({name: decoding(pool, paths, size) for name, pool in pools.items()}, rounds)
            print(f"{count} JPEG files of {width} × {height}, cut to {size} × {size}")
            for name, seconds in times.items():
                slow, fast = (count / end for end in reversed(times.spread[name]))
                ratio = times["serial"] / seconds
                print(f"  {name:14s} {count / seconds:9,.0f} images/s ({slow:,.0f} to {fast:,.0f})   {ratio:5.2f} x serial")


if __name__ == "__main__":
    main()
